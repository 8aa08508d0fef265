"""The runs of some cells under one protocol, as the studies with the paper's CNN read them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qafel.reproduce import cells
from qafel.reproduce.cells import Cell
from qafel.reproduce.rows import Paired, Row, paired, row, seeds
from qafel.reproduce.study import Options
from qafel.sim.batch import Diverged, Outcome

DATA = "faces"


@dataclass(frozen=True)
class Runs:
    """Outcomes by run name, CELL-seedN."""

    data: str
    folder: Path
    shared: Mapping[str, Any]
    """Settings that all cells share."""
    outcomes: Mapping[str, Outcome]

    def of(self, cell: str) -> list[Outcome]:
        """The runs of a cell, in the order of their seeds."""
        return [self.outcomes[name] for name in seeds(cell, self.outcomes)]

    def rows(self, chosen: Iterable[Cell], max_seeds: int) -> list[Row]:
        """Table rows from the first ``max_seeds`` seeds: the same seeds in every row."""
        return [row(cell, self.of(cell.name)[:max_seeds]) for cell in chosen]

    def paired(self, cell: str, reference: str = "fedbuff") -> Paired:
        """A cell against a reference cell on the same seeds."""
        return paired(self.of(cell), self.of(reference), cell)

    @property
    def goal(self) -> str:
        """The data and the target, for titles."""
        return f"{self.data}, to {100 * self.shared['target']:.0f} % accuracy on held-out samples"

    @property
    def origin(self) -> dict[str, Any]:
        """The protocol, and the commits that the runs were made at."""
        runs = [outcome for outcome in self.outcomes.values() if not isinstance(outcome, Diverged)]
        return {
            "protocol": self.shared,
            "commits of the runs": sorted({str(r.summary.provenance["commit"]) for r in runs}),
        }

    @property
    def notes(self) -> list[str]:
        """One sentence for every run that did not reach the target."""
        notes = []
        for name, outcome in self.outcomes.items():
            if isinstance(outcome, Diverged):
                notes.append(f"{name} diverged: {outcome.sentence}")
            elif outcome.summary.target is None:
                best = outcome.best_accuracy
                notes.append(
                    f"{name} did not reach {100 * self.shared['target']:.0f} % in "
                    f"{outcome.summary.uploads:,} uploads (best {100 * best:.1f} %); it is left out of the "
                    "means, and counts with all of them in the claims"
                )
        return notes


def run_cells(
    options: Options,
    chosen: Sequence[Cell],
    many: Mapping[str, int] | None = None,
    uploads: tuple[int, int] = (cells.MAX_UPLOADS, cells.QUICK_UPLOADS),
) -> Runs:
    """Run the cells; ``many`` gives the number of seeds by cell name, "" for the rest."""
    data = options.data or DATA
    folder = options.folder(data)
    shared = cells.base(data, quick=options.quick, changes=options.changes, uploads=uploads)
    wanted = cells.wanted(chosen, shared, many or {"": options.seeds})
    return Runs(data, folder, shared, options.run(wanted, folder))
