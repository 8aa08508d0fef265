"""The measure of a comparison: mean curves, not crossings of single runs.

The smoothed evaluations of each run are a curve against uploads. A group of runs has the mean of the curves
of its seeds. Two groups are compared on the seeds that both have: at how many uploads do their mean curves
cross a level below the plateau, where the reference has made 95 % of its gain? The answer is a ratio of
uploads, and of bytes, with a bootstrap interval over the seeds, widened where they are few. First crossings
of single runs are noise near a plateau; they are kept beside it.

The gain of the reference is the distance from its first evaluation to the mean of the last tenth of its
curve. A mean curve goes as far as all of its runs do: runs that end at a target make it short.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from qafel.runs.intervals import Floats, Interval, resamples, spread
from qafel.runs.result import Result
from qafel.runs.summary import Point
from qafel.tasks.target import parse_target

SHARE = 0.95
"""The level: this share of the reference's gain."""
TAIL = 0.9
"""The final value of a curve is its mean over the uploads beyond this share."""
MAX_PLACES = 2000


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
    """The curves of some runs at the same places, as far as all of them go."""

    def __init__(self, runs: Sequence[Result], metric: str) -> None:
        measured = [_measured(run, metric) for run in runs]
        self.end = min(points[-1].uploads for points in measured)
        every = np.unique([float(point.uploads) for points in measured for point in points])
        places = every[every <= self.end]
        if len(places) > MAX_PLACES:
            places = np.linspace(places[0], places[-1], MAX_PLACES)
        columns: list[list[Floats]] = [[], [], []]
        for points in measured:
            xs = [float(point.uploads) for point in points]
            values = [(p.smoothed[metric], p.bytes_up / 1e6, p.bytes_down / 1e6) for p in points]
            for column, ys in zip(columns, zip(*values, strict=True), strict=True):
                column.append(np.interp(places, xs, ys))
        self.places = places
        self.value, self.up, self.down = (np.array(column) for column in columns)

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
    """Compare two groups of runs; None if they have no seed in common, or the reference learned nothing."""
    seeds = common_seeds(mine, reference, metric)
    if not seeds:
        return None
    sides = [[{seed_of(run): run for run in runs}[seed] for seed in seeds] for runs in (mine, reference)]
    ours, base = (_Curves(side, metric) for side in sides)
    count = len(seeds)
    weights = resamples(count)
    curves = weights @ base.value
    gain = curves[:, base.places >= TAIL * base.end].mean(1) - curves[:, 0]
    better = _direction(metric, sides[1][0].summary.settings.get("target"))
    if gain[0] == 0 or not np.isfinite(gain[0]) or gain[0] * better < 0:
        return None
    level, sign = curves[:, 0] + share * gain, np.sign(gain)
    uploads, up, down = ours.crossing(weights, level, sign)
    base_uploads, base_up, base_down = base.crossing(weights, level, sign)

    return Against(
        reference=name,
        metric=metric,
        level=float(level[0]),
        share=share,
        seeds=seeds,
        uploads=float(uploads[0]),
        mb_up=float(up[0]),
        mb_down=float(down[0]),
        ratio=spread(uploads, base_uploads, count),
        fewer_up=spread(base_up, up, count),
        fewer_down=spread(base_down, down, count),
        share_of_bytes=float((up[0] + down[0]) / (base_up[0] + base_down[0])),
        by_seed=[_crossing(run, metric, level[0], sign[0]) for run in sides[0]],
        reference_by_seed=[_crossing(run, metric, level[0], sign[0]) for run in sides[1]],
    )


def _direction(metric: str, goal: float | str | None) -> int:
    """1 if more of a metric is better, −1 if less is, 0 if that is not known."""
    target = parse_target(goal)
    if target is not None and target.metric == metric:
        return 1 if target.above else -1
    return {"accuracy": 1, "loss": -1}.get(metric, 0)


def common_seeds(mine: Sequence[Result], theirs: Sequence[Result], metric: str) -> list[int]:
    """The seeds with which runs on both sides measured a metric."""
    sides = [{seed_of(run) for run in runs if _measured(run, metric)} for runs in (mine, theirs)]
    return sorted(sides[0] & sides[1])


def seed_of(run: Result) -> int:
    """The seed of a run."""
    return int(run.summary.settings.get("seed", 0))


def _measured(run: Result, metric: str) -> list[Point]:
    return [point for point in run.points if metric in point.smoothed]


def _crossing(run: Result, metric: str, level: float, sign: float) -> float | None:
    """Where the curve of one run first reaches a level; None: nowhere."""
    uploads, _, _ = _Curves([run], metric).crossing(np.ones((1, 1)), np.array([level]), np.array([sign]))
    return float(uploads[0]) if np.isfinite(uploads[0]) else None
