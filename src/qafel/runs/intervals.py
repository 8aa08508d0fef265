"""95 % intervals over seeds: of a mean, and of a ratio of means over paired seeds."""

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
Floats = npt.NDArray[np.float64]
Interval = tuple[float, float, float]
"""A value and its 95 % interval; NaN where there is only one seed."""


def mean_interval(values: Sequence[float] | Floats) -> Interval:
    """The mean of one value per seed, with Student's interval."""
    count = len(values)
    mean = float(np.mean(values)) if count else math.nan
    if count < 2:
        return mean, math.nan, math.nan
    margin = student_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return mean, mean - margin, mean + margin


def ratio_interval(mine: Sequence[float] | Floats, theirs: Sequence[float] | Floats) -> Interval:
    """The mean of one value per seed over the mean of another, with Student's interval.

    The interval is that of the mean of mine − ratio · theirs, over the mean of theirs.
    """
    base = np.array(theirs, float)
    if not len(mine) or not base.mean():
        return math.nan, math.nan, math.nan
    ratio = float(np.mean(mine) / base.mean())
    _, low, high = mean_interval(np.array(mine, float) - ratio * base)
    return ratio, ratio + low / float(base.mean()), ratio + high / float(base.mean())


def resamples(count: int) -> Floats:
    """Weights of the seeds: first all alike, then of ``RESAMPLES`` draws with replacement."""
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    return np.concatenate([np.full((1, count), 1 / count), draws])


def spread(above: Floats, below: Floats, count: int) -> Interval:
    """The first ratio, and the interval that the other ones, of resamples of ``count`` seeds, give."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    others = ratios[1:][~np.isnan(ratios[1:])]
    if count < 2 or not len(others):
        return float(ratios[0]), math.nan, math.nan
    tail = tail_share(count)
    low, high = np.quantile(others, tail, method="lower"), np.quantile(others, 1 - tail, method="higher")
    return float(ratios[0]), float(low), float(high)


@functools.cache
def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with ``freedom`` degrees of freedom."""
    angles = np.linspace(0.0, np.pi / 2, 20_001)  # t = √freedom·tan(angle): a density of cos(angle)^(f − 1)
    weights = np.cos(angles) ** (freedom - 1)
    below = 0.5 + 0.5 * np.cumsum(weights) / weights.sum()
    return math.sqrt(freedom) * math.tan(float(np.interp(0.975, below, angles)))


@functools.cache
def tail_share(count: int) -> float:
    """The share of resamples below a 95 % interval from ``count`` seeds.

    The plain percentiles, 2.5 % on each side, are too narrow for few seeds: they take no account of Student's
    distribution, nor of the spread of resamples being smaller by √((n − 1)/n). This share makes up for both.
    """
    freedom = count - 1
    return NormalDist().cdf(-math.sqrt(count / freedom) * student_quantile(freedom))
