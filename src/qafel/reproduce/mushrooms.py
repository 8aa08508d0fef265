"""The authors' logistic-regression study: 100 clients that never rest, full-batch steps, and f − f*.

Every client restarts when its upload arrives; K = 10, η_g = 0.1, no momentum, no staleness weight. "c4 s8"
are the *levels* of QSGD at client and server, with one L2 norm over the vector; "c100 s1" are the percentages
of the coordinates that top-k keeps.

Delays are drawn as the authors drew them. With their seed, 0, the runs of FedBuff and of QAFeL with top-k are
the authors' runs up to float32 rounding. With QSGD they differ, because the authors draw rounding and delays
from one generator.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qafel.quantizers import quantizer
from qafel.reproduce import figures
from qafel.reproduce.claims import at_least
from qafel.reproduce.logistic import BUFFER, CLIENTS, RATE, STEPS, Logistic, settings
from qafel.reproduce.study import Claim, Computation, Options, Study, finish
from qafel.runs.comparison import spell
from qafel.runs.intervals import Interval, ratio_interval
from qafel.sim import Simulation
from qafel.sim.clock import Times
from qafel.sim.processes import run_to_the_end
from qafel.sim.timeline import BLOCK
from qafel.tables import Table
from qafel.tasks import data as datasets

DATA = "breast-cancer"
SERVER_STEPS, QUICK_STEPS = 10_000, 1000
MARKS = (100, 1000, 3000, 10_000)
COMPARED = ("FedBuff", "QAFeL qsgd c4 s8", "QAFeL topk c100 s1")
SAME = ("FedBuff", "QAFeL topk c100 s1")
"""Runs without random rounding: with the authors' seed they are the authors' runs."""

CLOCK = 2
"""Version of the delays; kept runs of another version are not used."""
DIGITS = 0.005
"""Tolerance against the authors' four digits: in float32 another coordinate is sometimes the largest."""

Gaps = list[tuple[int, float]]
"""(server steps, f − f*)."""

OPTIMUM = 0.014484174216922262
REFERENCE: dict[str, tuple[float, ...]] = {
    "FedBuff": (0.06551, 0.008576, 0.001661, 0.0008276),
    "QAFeL qsgd c4 s8": (0.06527, 0.008603, 0.001688, 0.0008061),
    "naive qsgd c4 s8": (0.0621, 0.007999, 0.004392, 0.006219),
    "QAFeL topk c100 s1": (0.08668, 0.008095, 0.001636, 0.0008305),
    "naive topk c100 s50": (0.06549, 0.02572, 0.02942, 0.02778),
}
"""Output of the authors' code on the mushrooms with seed 0: f*, and f − f* at MARKS, to four digits."""


LABELS = {
    "FedBuff": "FedBuff",
    "QAFeL qsgd c4 s8": "QAFeL, QSGD with 4 levels up, 8 down",
    "naive qsgd c4 s8": "naive, QSGD with 4 levels up, 8 down",
    "QAFeL topk c100 s1": "QAFeL, top 1 % down",
    "naive topk c100 s50": "naive, top 50 % down",
}
"""What the authors call the runs, and what tables and figures do."""


def runs(size: int) -> dict[str, dict[str, str]]:
    """The five runs at a dimension; the authors' top-k keeps ⌊percent⌋ of the coordinates, at least one."""
    qsgd = {"client_quantizer": "qsgd:levels=4", "server_quantizer": "qsgd:levels=8"}
    top = {
        percent: {"client_quantizer": "identity", "server_quantizer": f"topk:{max(1, size * percent // 100)}"}
        for percent in (1, 50)
    }
    return {
        "FedBuff": {"algorithm": "fedbuff"},
        "QAFeL qsgd c4 s8": {"algorithm": "qafel", **qsgd},
        "naive qsgd c4 s8": {"algorithm": "naive", **qsgd},
        "QAFeL topk c100 s1": {"algorithm": "qafel", **top[1]},
        "naive topk c100 s50": {"algorithm": "naive", **top[50]},
    }


def run(
    learner: Logistic,
    optimum: float,
    chosen: Mapping[str, Any],
    steps: int,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Gaps:
    """Simulate one run and return (server steps, f − f*) on a grid of steps."""
    gaps = [(0, learner.objective(learner.x.astype(np.float64)) - optimum)]
    marks = sorted({int(k) for k in np.geomspace(1, steps, 80)} | {mark for mark in MARKS if mark <= steps})

    def record(simulation: Simulation) -> None:
        if simulation.server.version == marks[0]:
            step = marks.pop(0)
            gaps.append((step, learner.objective(simulation.x.astype(np.float64)) - optimum))
            progress(simulation.tracker.totals.uploads)

    wanted = settings(chosen, steps * BUFFER, seed)
    run_to_the_end(Simulation(wanted, learner, workers=1, progress=record, durations=delays(seed)))
    return gaps


def delays(seed: int) -> Callable[[int], Times]:
    """|N(0, 1)| from numpy's legacy generator, in the order in which clients start."""

    def block(number: int) -> Times:
        drawn = np.random.RandomState(seed).standard_normal((number + 1) * BLOCK)
        return np.abs(drawn[-BLOCK:])

    return block


class Gathered:
    """The gaps of all runs, by cell and seed."""

    def __init__(self, optimum: float, gaps: Mapping[str, Sequence[Gaps]], steps: int) -> None:
        self.optimum, self.gaps = optimum, gaps
        self.marks = [mark for mark in MARKS if mark <= steps]
        self.by_seed = {
            cell: [[dict(one)[mark] for mark in self.marks] for one in curves]
            for cell, curves in gaps.items()
        }
        self.means = {cell: _means(curves) for cell, curves in self.by_seed.items()}
        self.is_mushrooms = abs(optimum - OPTIMUM) < 1e-4
        """Whether the data is the authors', so that their numbers apply."""

    def at_the_end(self, cell: str, reference: str) -> Interval:
        """f − f* of a run at the end over that of a reference, over paired seeds."""
        mine, theirs = ([values[-1] for values in self.by_seed[name]] for name in (cell, reference))
        return ratio_interval(mine, theirs)


def _means(curves: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def mushrooms(options: Options) -> Study:
    """Five runs per seed, f − f* against server steps."""
    data = options.data or DATA
    learner = Logistic(datasets.load(data))
    optimum = learner.optimum()
    steps = QUICK_STEPS if options.quick else SERVER_STEPS
    folder = options.folder(data)
    cells = runs(learner.x.size)
    slugs = {cell: cell.replace(" ", "-").lower() for cell in cells}
    tasks = {
        slugs[cell]: Computation(steps * BUFFER, partial(run, learner, optimum, chosen, steps))
        for cell, chosen in cells.items()
    }
    kept = folder / "mushrooms" / f"{steps}-{learner.fingerprint:016x}-{CLOCK}"
    gaps = options.compute(tasks, kept, Gaps)
    gathered = Gathered(optimum, {cell: gaps[slug] for cell, slug in slugs.items()}, steps)
    title = f"f − f* after server steps, mean of {options.seeds} seeds: {data}, f* = {optimum:.15f}"
    return finish(
        "mushrooms",
        folder,
        data=data,
        tables=[_table(title, gathered), _ends(gathered)],
        claims=_claims(gathered),
        numbers=_numbers(gathered, learner.x.size),
        figures=_draw(gathered, folder / "mushrooms"),
    )


def _table(title: str, gathered: Gathered) -> Table:
    rows = []
    for cell, mean in gathered.means.items():
        kinds: dict[str, Sequence[float]] = {"mean": mean, "seed 0": gathered.by_seed[cell][0]}
        if gathered.is_mushrooms:
            kinds["authors', seed 0"] = REFERENCE[cell]
        for kind, values in kinds.items():
            rows.append(
                [f"{LABELS[cell]}; {kind}", *(f"{value:.4g}" for value in values[: len(gathered.marks)])]
            )
    return Table(title, ["run", *(f"{mark:,}" for mark in gathered.marks)], rows)


def _ends(gathered: Gathered) -> Table:
    """f − f* at the end over FedBuff's, over paired seeds."""
    rows = [[LABELS[cell], spell(gathered.at_the_end(cell, "FedBuff"))] for cell in gathered.means]
    title = f"f − f* after {gathered.marks[-1]:,} server steps ÷ FedBuff's [95 % interval]"
    return Table(title, ["run", "÷ FedBuff's"], rows[1:])


def _draw(gathered: Gathered, path: Path) -> list[Path]:
    lines = []
    for cell, gaps in gathered.gaps.items():
        xs = [step for step, _ in gaps[0][1:]]
        lines.append((LABELS[cell], xs, _means([[gap for _, gap in one[1:]] for one in gaps])))
    return figures.lines(path, [("server steps", "f(x) − f*", lines)], logarithmic=("xy",))


def _numbers(gathered: Gathered, size: int) -> dict[str, Any]:
    def at_marks(values: Sequence[float]) -> dict[str, float]:
        return dict(zip(map(str, gathered.marks), values, strict=True))

    return {
        "optimum": gathered.optimum,
        "clients": CLIENTS,
        "local steps": STEPS,
        "local rate": RATE,
        "gaps": {cell: at_marks(values) for cell, values in gathered.means.items()},
        "by seed": {
            f"{cell}, seed {seed}": at_marks(values)
            for cell, curves in gathered.by_seed.items()
            for seed, values in enumerate(curves)
        },
        "kB an upload": {
            cell: quantizer(chosen.get("client_quantizer", "identity")).max_bytes(size) / 1000
            for cell, chosen in runs(size).items()
        },
    }


def _claims(gathered: Gathered) -> list[Claim]:
    return [
        *(_authors(gathered) if gathered.is_mushrooms else ()),
        *(
            Claim(
                f"without a hidden state {what} ends farther from the optimum than QAFeL",
                at_least(gathered.at_the_end(naive, qafel), 1),
                f"f − f* is {spell(gathered.at_the_end(naive, qafel))} QAFeL's",
            )
            for what, naive, qafel in (
                ("the same QSGD", "naive qsgd c4 s8", "QAFeL qsgd c4 s8"),
                ("top 50 %", "naive topk c100 s50", "QAFeL topk c100 s1"),
            )
        ),
    ]


def _authors(gathered: Gathered) -> list[Claim]:
    """Agreement with the authors' code."""
    means, by_seed = gathered.means, gathered.by_seed
    deviations = {cell: _deviation(means[cell], cell) for cell in COMPARED}
    exact = {cell: _deviation(by_seed[cell][0], cell) for cell in SAME}
    return [
        Claim(
            "f* by Newton's method agrees with the authors' to 1e-9",
            abs(gathered.optimum - OPTIMUM) < 1e-9,
            f"difference {gathered.optimum - OPTIMUM:.1e}",
        ),
        Claim(
            "f − f* agrees with the authors' code within 15 % at every mark, mean of the seeds",
            max(deviations.values()) <= 0.15,
            "; ".join(f"{LABELS[cell]}: at most {100 * far:.1f} % off" for cell, far in deviations.items()),
        ),
        Claim(
            "with the authors' seed, runs without random rounding are the authors' runs",
            max(exact.values()) <= DIGITS,
            "; ".join(f"{LABELS[cell]}: at most {100 * far:.3f} % off" for cell, far in exact.items()),
        ),
    ]


def _deviation(values: Sequence[float], cell: str) -> float:
    """The largest relative deviation from the authors' numbers."""
    return max(abs(ours / theirs - 1) for ours, theirs in zip(values, REFERENCE[cell], strict=False))
