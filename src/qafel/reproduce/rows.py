"""Rows of the paper's tables from runs, next to the paper's own numbers."""

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from qafel.reproduce.cells import Cell
from qafel.runs.result import Result, mean_std
from qafel.sim.batch import Diverged, Outcome

Pair = tuple[float, float]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row: numbers are (mean, standard deviation) over the runs that reached the target."""

    name: str
    label: str
    runs: int
    reached: int
    diverged: str | None
    uploads: list[int | None]
    """To the target, by seed; None where it was never reached."""
    best_accuracy: list[float]
    """By seed."""
    thousands: Pair
    """Uploads to the target, in thousands."""
    kb_up: float
    """Of a real frame, on average."""
    kb_down: float
    mb_up: Pair
    """In real frames, to the target."""
    mb_down: Pair
    paper_thousands: Pair | None
    paper_kb_up: float | None
    """By the paper's formula."""
    paper_kb_down: float | None
    paper_mb_up: float | None
    """The paper's uploads at its size; a download for every ten of them."""
    paper_mb_down: float | None
    formula_mb_up: float | None
    """Our uploads in the paper's accounting."""
    formula_mb_down: float | None


def row(cell: Cell, outcomes: Sequence[Outcome]) -> Row:
    """The row of a cell, from its runs in the order of their seeds."""
    runs = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    sentences = [outcome.sentence for outcome in outcomes if isinstance(outcome, Diverged)]
    there = [run.summary.target for run in runs if run.summary.target]
    uploads = [_uploads(outcome) for outcome in outcomes]
    thousands = mean_std([target["uploads"] / 1000 for target in there])
    mean, steps = 1000 * thousands[0], 1000 * thousands[0] / 10
    sizes = cell.sizes
    return Row(
        name=cell.name,
        label=cell.label,
        runs=len(outcomes),
        reached=len(there),
        diverged=sentences[0] if sentences else None,
        uploads=uploads,
        best_accuracy=[run.best_accuracy for run in runs],
        thousands=thousands,
        kb_up=_mean([r.summary.bytes_up / r.summary.uploads / 1000 for r in runs]),
        kb_down=_mean([r.summary.bytes_down / max(1, r.summary.version) / 1000 for r in runs]),
        mb_up=mean_std([target["bytes_up"] / 1e6 for target in there]),
        mb_down=mean_std([target["bytes_down"] / 1e6 for target in there]),
        paper_thousands=cell.paper,
        paper_kb_up=sizes[0] / 1000 if sizes else None,
        paper_kb_down=sizes[1] / 1000 if sizes else None,
        paper_mb_up=cell.paper[0] * sizes[0] / 1000 if sizes and cell.paper else None,
        paper_mb_down=cell.paper[0] * sizes[1] / 10_000 if sizes and cell.paper else None,
        formula_mb_up=mean * sizes[0] / 1e6 if sizes else None,
        formula_mb_down=steps * sizes[1] / 1e6 if sizes else None,
    )


def seeds(cell: str, runs: Iterable[str]) -> list[str]:
    """The names of a cell's runs, in the order of their seeds."""
    mine = [name for name in runs if name.rpartition("-seed")[0] == cell]
    return sorted(mine, key=lambda name: int(name.rpartition("-seed")[2]))


def _uploads(outcome: Outcome) -> int | None:
    if isinstance(outcome, Diverged) or outcome.summary.target is None:
        return None
    return int(outcome.summary.target["uploads"])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


class Paired(msgspec.Struct, frozen=True):
    """A cell against FedBuff on the same seeds: means and 95 % confidence intervals."""

    name: str
    seeds: int
    uploads: tuple[float, float, float]
    """Uploads over FedBuff's: mean, low, high."""
    mb_up: tuple[float, float, float]
    """How many times fewer MB."""
    mb_down: tuple[float, float, float]


def paired(mine: Sequence[Outcome], fedbuff: Sequence[Outcome], name: str) -> Paired:
    """Seed by seed, where both reached the target."""
    both = [
        (a.summary.target, b.summary.target)
        for a, b in zip(mine, fedbuff, strict=False)
        if isinstance(a, Result) and isinstance(b, Result) and a.summary.target and b.summary.target
    ]
    return Paired(
        name,
        len(both),
        interval([a["uploads"] / b["uploads"] for a, b in both]),
        interval([b["bytes_up"] / a["bytes_up"] for a, b in both]),
        interval([b["bytes_down"] / a["bytes_down"] for a, b in both]),
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and Student's 95 % confidence interval; NaN where there are too few values."""
    if not values:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, math.nan, math.nan
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def student(freedom: int, level: float = 0.975) -> float:
    """The quantile of Student's t distribution, by bisection on its integral (Simpson's rule)."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(t: float, pieces: int = 2000) -> float:
        width = t / pieces
        weights = (1 if k in (0, pieces) else 4 if k % 2 else 2 for k in range(pieces + 1))
        density = (math.pow(1 + (k * width) ** 2 / freedom, -(freedom + 1) / 2) for k in range(pieces + 1))
        return 0.5 + scale * width / 3 * sum(w * d for w, d in zip(weights, density, strict=True))

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < level else (low, middle)
    return low
