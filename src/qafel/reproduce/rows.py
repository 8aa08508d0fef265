"""The runs of some cells under one protocol, and rows of tables from them, next to the paper's numbers."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel.reproduce import cells
from qafel.reproduce.cells import Cell
from qafel.reproduce.study import Options, Study, commits, finish
from qafel.runs.comparison import Diverged, Outcome
from qafel.runs.intervals import Floats, Interval, ratio_interval
from qafel.runs.result import Result
from qafel.runs.summary import mean_std

DATA = "faces"
PAIRED = 5
"""Seeds of cells that are compared with FedBuff seed by seed; the others have three."""
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
    mb_down_by_seed: list[float | None]
    """To the target."""
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

    def limited(self, max_uploads: int) -> Floats:
        """Uploads to the target, by seed; a run that never reached it counts with ``max_uploads``."""
        return np.array([max_uploads if uploads is None else uploads for uploads in self.uploads], float)


def row(cell: Cell, outcomes: Sequence[Outcome]) -> Row:
    """The row of a cell, from its runs in the order of their seeds."""
    runs = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    targets = [outcome.summary.target if isinstance(outcome, Result) else None for outcome in outcomes]
    there = [target for target in targets if target]
    thousands = mean_std([target["uploads"] / 1000 for target in there])
    sizes, paper = cell.sizes, cell.paper
    return Row(
        name=cell.name,
        label=cell.label,
        runs=len(outcomes),
        reached=len(there),
        diverged=next((outcome.sentence for outcome in outcomes if isinstance(outcome, Diverged)), None),
        uploads=[int(target["uploads"]) if target else None for target in targets],
        best_accuracy=[run.best_accuracy for run in runs],
        thousands=thousands,
        kb_up=mean_std([r.summary.bytes_up / r.summary.uploads / 1000 for r in runs])[0],
        kb_down=mean_std([r.summary.bytes_down / max(1, r.summary.version) / 1000 for r in runs])[0],
        mb_up=mean_std([target["bytes_up"] / 1e6 for target in there]),
        mb_down=mean_std([target["bytes_down"] / 1e6 for target in there]),
        mb_down_by_seed=[target["bytes_down"] / 1e6 if target else None for target in targets],
        paper_thousands=paper,
        paper_kb_up=sizes[0] / 1000 if sizes else None,
        paper_kb_down=sizes[1] / 1000 if sizes else None,
        paper_mb_up=paper[0] * sizes[0] / 1000 if sizes and paper else None,
        paper_mb_down=paper[0] * sizes[1] / 10_000 if sizes and paper else None,
        formula_mb_up=1000 * thousands[0] * sizes[0] / 1e6 if sizes else None,
        formula_mb_down=1000 * thousands[0] / 10 * sizes[1] / 1e6 if sizes else None,
    )


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """A cell against a reference, where both first reach the target, over paired seeds."""

    seeds: int
    uploads: list[int]
    """To the target, by seed."""
    reference: list[int]
    """Those of the reference."""
    ratio: Interval
    """Uploads over those of the reference: means, with their 95 % interval."""
    fewer_up: Interval
    """The reference's MB up over these."""
    fewer_down: Interval


@dataclass(frozen=True)
class Runs:
    """The outcomes of every cell, in the order of their seeds."""

    data: str
    folder: Path
    shared: Mapping[str, Any]
    """Settings that all cells share."""
    outcomes: Mapping[str, Sequence[Outcome]]

    def rows(self, chosen: Iterable[Cell], max_seeds: int | None = None) -> list[Row]:
        """Table rows from the first ``max_seeds`` seeds: the same seeds in every row."""
        return [row(cell, self.outcomes[cell.name][:max_seeds]) for cell in chosen]

    def against(self, cell: str, reference: str = "fedbuff") -> Paired:
        """A cell against a reference cell, where both first reach the target, on the seeds that both have."""
        mine, theirs = ([_costs(run, self.shared) for run in self.outcomes[n]] for n in (cell, reference))
        count = min(len(mine), len(theirs))
        ours, base = (np.array(costs[:count], float).T for costs in (mine, theirs))
        return Paired(
            seeds=count,
            uploads=[int(uploads) for uploads in ours[0]],
            reference=[int(uploads) for uploads in base[0]],
            ratio=ratio_interval(ours[0], base[0]),
            fewer_up=ratio_interval(base[1], ours[1]),
            fewer_down=ratio_interval(base[2], ours[2]),
        )

    @property
    def goal(self) -> str:
        """The data and the target, for titles."""
        return f"{self.data}, to {100 * self.shared['target']:.0f} % accuracy on held-out samples"

    @property
    def notes(self) -> list[str]:
        """Warnings about the runs, and one sentence for each that did not reach the target."""
        ended = [run for runs in self.outcomes.values() for run in runs if isinstance(run, Result)]
        ended.sort(key=lambda run: -run.summary.concurrency["mean"])
        notes = [*next((run.summary.notes for run in ended if run.summary.notes), [])]
        for cell, outcomes in self.outcomes.items():
            for seed, outcome in enumerate(outcomes):
                name = f"{cell}-seed{seed}"
                if isinstance(outcome, Diverged):
                    notes.append(f"{name} diverged: {outcome.sentence}")
                elif outcome.summary.target is None:
                    notes.append(
                        f"{name} did not reach {100 * self.shared['target']:.0f} % in "
                        f"{outcome.summary.uploads:,} uploads (best {100 * outcome.best_accuracy:.1f} %); "
                        "it is left out of the means; the claims count it with all of its uploads"
                    )
        return notes

    def finish(self, name: str, *, numbers: Mapping[str, Any], **results: Any) -> Study:
        """The study, with its protocol and the commits that the runs were made at."""
        origin = {"protocol": self.shared, "commits of the runs": commits(self.outcomes)}
        return finish(name, self.folder, data=self.data, numbers={**origin, **numbers}, **results)


def _costs(outcome: Outcome, shared: Mapping[str, Any]) -> tuple[float, float, float]:
    """Uploads, bytes up and bytes down to the target.

    A run that never reached it counts with all that it took, a lower bound; one that diverged, with the limit
    of uploads and infinite bytes.
    """
    if isinstance(outcome, Diverged):
        return float(shared["uploads"]), math.inf, math.inf
    summary = outcome.summary
    if summary.target is None:
        return summary.uploads, summary.bytes_up, summary.bytes_down
    return summary.target["uploads"], summary.target["bytes_up"], summary.target["bytes_down"]


def run_cells(
    options: Options,
    chosen: Sequence[Cell],
    *,
    paired: Collection[str] = (),
    uploads: tuple[int, int] = cells.MAX_UPLOADS,
) -> Runs:
    """Run the cells; those named in ``paired`` have at least five seeds, if it need not be quick."""
    data = options.data or DATA
    folder = options.folder(data)
    shared = cells.base(data, quick=options.quick, changes=options.changes, uploads=uploads)
    more = options.seeds if options.quick else max(options.seeds, PAIRED)
    groups = {
        cell.name: [
            cells.chosen(cell, shared, seed) for seed in range(more if cell.name in paired else options.seeds)
        ]
        for cell in chosen
    }
    return Runs(data, folder, shared, options.run(groups, folder))
