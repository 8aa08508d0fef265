"""The measure of a comparison: mean curves, not crossings of single runs.

The smoothed evaluations of each run are a curve against uploads. A group of runs has the mean of the curves
of its seeds. Two groups are compared on the seeds that both have: at how many uploads do their mean curves
cross a level below the plateau, where the reference has made 95 % of its gain? The answer is a ratio of
uploads, and of bytes, with a bootstrap interval over the seeds. First crossings of single runs are noise near
a plateau; they are kept beside it.

The gain of the reference is the distance from its first evaluation to the mean of the last tenth of its
curve. A run that has ended, at its target for example, counts with its last evaluation from then on, and
with its bytes per upload.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.runs.result import Result

SHARE = 0.95
"""The level: this share of the reference's gain."""
RESAMPLES = 2000
TAIL = 0.9
"""The final value of a curve is its mean over the uploads beyond this share."""
MAX_PLACES = 2000
Floats = npt.NDArray[np.float64]
Interval = tuple[float, float, float]
"""A value and its 95 % interval; NaN where there is only one seed."""


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """A group of runs against a reference, at one level of one metric."""

    reference: str
    metric: str
    level: float
    share: float
    """The level is at this share of the reference's gain."""
    seeds: list[int]
    """The seeds that both have."""
    uploads: float
    """Where the mean curve crosses the level; infinite if it does not."""
    mb_up: float
    """What was sent up to there."""
    mb_down: float
    ratio: Interval
    """Uploads over those of the reference."""
    fewer_up: Interval
    """The reference's MB up over these."""
    fewer_down: Interval
    share_of_bytes: float
    """MB in both directions over those of the reference."""
    by_seed: list[float | None]
    """Where the curve of each seed crosses the level; None: nowhere."""
    reference_by_seed: list[float | None]


class _Curves:
    """The curves of some runs at the same places."""

    def __init__(self, runs: Sequence[Result], metric: str, places: Floats) -> None:
        rows = []
        for run in runs:
            points = run.points
            xs = np.array([point.uploads for point in points], float)
            value = np.interp(places, xs, [point.smoothed[metric] for point in points])
            sent = [
                np.interp(places, xs, [getattr(p, n) for p in points]) for n in ("bytes_up", "bytes_down")
            ]
            beyond = np.maximum(1.0, places / max(1.0, xs[-1]))
            rows.append([value, *(column * beyond / 1e6 for column in sent)])
        self.places = places
        self.value, self.up, self.down = (np.array(column) for column in zip(*rows, strict=True))
        self.end = max(run.points[-1].uploads for run in runs)

    def crossing(self, weights: Floats, level: Floats, sign: Floats) -> tuple[Floats, Floats, Floats]:
        """Where the weighted mean curves first reach their levels: (uploads, MB up, MB down)."""
        curves = weights @ self.value
        there = (curves - level[:, None]) * sign[:, None] >= 0
        after = there.argmax(1)
        before, rows = np.maximum(after - 1, 0), np.arange(len(after))
        rise = curves[rows, after] - curves[rows, before]
        part = np.divide(level - curves[rows, before], rise, out=np.ones(len(rise)), where=rise != 0)
        part = np.where(after == 0, 1.0, part)
        reached = there.any(1)

        def at(values: Floats) -> Floats:
            low, high = values[rows, before], values[rows, after]
            return np.where(reached, low + part * (high - low), np.inf)

        wide = np.broadcast_to(self.places, curves.shape)
        return at(wide), at(weights @ self.up), at(weights @ self.down)


def against(
    mine: Sequence[Result], reference: Sequence[Result], name: str, metric: str, share: float = SHARE
) -> Against | None:
    """Compare two groups of runs; None if they have no seed in common, or the reference gained nothing."""
    theirs = {_seed(run): run for run in reference if run.points}
    pairs = {_seed(run): (run, theirs[_seed(run)]) for run in mine if run.points and _seed(run) in theirs}
    seeds = sorted(pairs)
    if not seeds:
        return None
    sides = [[pairs[seed][k] for seed in seeds] for k in (0, 1)]
    places = _places([run for side in sides for run in side])
    ours, base = (_Curves(side, metric, places) for side in sides)
    count = len(seeds)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    weights = np.concatenate([np.full((1, count), 1 / count), np.eye(count), draws])
    curves = weights @ base.value
    tail = (places >= TAIL * base.end) & (places <= base.end)
    gain = curves[:, tail].mean(1) - curves[:, 0]
    if gain[0] == 0 or not np.isfinite(gain[0]):
        return None
    level, sign = curves[:, 0] + share * gain, np.sign(gain)
    fixed = np.arange(len(weights)) <= count  # single seeds are held against the level of all of them
    level[fixed], sign[fixed] = level[0], sign[0]
    uploads, up, down = ours.crossing(weights, level, sign)
    base_uploads, base_up, base_down = base.crossing(weights, level, sign)
    many = slice(1 + count, None)

    def interval(a: Floats, b: Floats) -> Interval:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = a / b
        spread = ratios[many][~np.isnan(ratios[many])]
        if count < 2 or not len(spread):
            return float(ratios[0]), float("nan"), float("nan")
        low, high = np.quantile(spread, 0.025, method="lower"), np.quantile(spread, 0.975, method="higher")
        return float(ratios[0]), float(low), float(high)

    return Against(
        reference=name,
        metric=metric,
        level=float(level[0]),
        share=share,
        seeds=seeds,
        uploads=float(uploads[0]),
        mb_up=float(up[0]),
        mb_down=float(down[0]),
        ratio=interval(uploads, base_uploads),
        fewer_up=interval(base_up, up),
        fewer_down=interval(base_down, down),
        share_of_bytes=float((up[0] + down[0]) / (base_up[0] + base_down[0])),
        by_seed=_known(uploads[1 : 1 + count]),
        reference_by_seed=_known(base_uploads[1 : 1 + count]),
    )


def _seed(run: Result) -> int:
    return int(run.summary.settings.get("seed", 0))


def _places(runs: Sequence[Result]) -> Floats:
    """The uploads at which any of the runs was evaluated; if they are too many, evenly spread ones."""
    places = np.unique([float(point.uploads) for run in runs for point in run.points])
    return places if len(places) <= MAX_PLACES else np.linspace(places[0], places[-1], MAX_PLACES)


def _known(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
