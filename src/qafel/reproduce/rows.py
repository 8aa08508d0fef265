"""The runs of some cells under one protocol, and rows of tables from them, next to the paper's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel.errors import ConfigError
from qafel.reproduce import cells
from qafel.reproduce.cells import Cell
from qafel.reproduce.study import Options, Origin, Study, finish
from qafel.runs.comparison import Diverged, Outcome
from qafel.runs.intervals import Floats, Interval, ratio_interval
from qafel.runs.result import Result
from qafel.runs.summary import mean_std
from qafel.tasks.target import parse_target

DATA = "faces"
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
    mb_up_by_seed: list[float | None]
    """To the target; None where it was never reached."""
    mb_down_by_seed: list[float | None]
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
        mb_up_by_seed=[target["bytes_up"] / 1e6 if target else None for target in targets],
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
    """A cell against a reference, where both first reach the target, over paired seeds.

    A run that never reached it has no costs: what follows from it is not a number.
    """

    seeds: int
    ratio: Interval
    """Uploads over those of the reference: means, with their 95 % interval."""
    fewer_up: Interval
    """The reference's MB up over these."""
    fewer_down: Interval

    @classmethod
    def of(cls, mine: Row, reference: Row) -> "Paired":
        """Two rows with the same seeds."""
        return cls(
            seeds=mine.runs,
            ratio=ratio_interval(by_seed(mine.uploads), by_seed(reference.uploads)),
            fewer_up=ratio_interval(by_seed(reference.mb_up_by_seed), by_seed(mine.mb_up_by_seed)),
            fewer_down=ratio_interval(by_seed(reference.mb_down_by_seed), by_seed(mine.mb_down_by_seed)),
        )


def by_seed(values: Sequence[float | None]) -> Floats:
    """One value for each seed; not a number where there is none."""
    return np.array(values, float)


@dataclass(frozen=True)
class Runs:
    """The outcomes of every cell, in the order of their seeds."""

    data: str
    folder: Path
    shared: Mapping[str, Any]
    """Settings that all cells share."""
    outcomes: Mapping[str, Sequence[Outcome]]

    def rows(self, chosen: Iterable[Cell]) -> dict[str, Row]:
        """The rows of a table, by the names of their cells."""
        return {cell.name: row(cell, self.outcomes[cell.name]) for cell in chosen}

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
                        "it is left out of the means, and claims about it are undecided"
                    )
        return notes

    def finish(self, name: str, *, numbers: Mapping[str, Any], **results: Any) -> Study:
        """The study, with its protocol and where its runs come from."""
        numbers = {"protocol": self.shared, **numbers}
        origin = Origin.of(self.outcomes)
        return finish(name, self.folder, data=self.data, numbers=numbers, origin=origin, **results)


def run_cells(options: Options, chosen: Sequence[Cell], uploads: tuple[int, int] = cells.MAX_UPLOADS) -> Runs:
    """Run the cells, each with the same seeds."""
    data = options.data or DATA
    protocol = cells.base(data, quick=options.quick, uploads=uploads)
    groups = {cell.name: options.settings(protocol, cell.settings) for cell in chosen}
    shared = {**protocol, **options.changes}
    target = parse_target(shared["target"])
    if target is None or target.metric != "accuracy":
        raise ConfigError(f"{options.name} needs an accuracy as its target, got {shared['target']!r}")
    folder = options.folder(data)
    return Runs(data, folder, shared, options.run(groups, folder))
