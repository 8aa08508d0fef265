"""Options of a study, its result, and the files it writes."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from qafel import report
from qafel.files import write, write_json
from qafel.records import finite, provenance
from qafel.sim import PACKAGES, Settings
from qafel.sim.batch import Outcome, State, Tell, in_parallel, run_all

Value = TypeVar("Value")


class Computation(msgspec.Struct, Generic[Value], frozen=True):
    """A run whose result is kept as one JSON file for every seed."""

    uploads: int
    """Uploads in total, for the progress bar."""
    call: Callable[[int, Callable[[int], None]], Value]
    """Returns the result with a seed; the second argument is called with the uploads done so far."""


@dataclass(frozen=True)
class Options:
    """Options of a study."""

    data: str | None = None
    seeds: int = 3
    quick: bool = False
    jobs: int | None = None
    out: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    tell: Callable[[str, float], None] = lambda _what, _share: None
    """Progress callback: what is being done, and the share of the work that is done."""

    def folder(self, data: str) -> Path:
        """The folder for results: ``out``, by default runs/reproduce-DATA."""
        quick = "-quick" if self.quick else ""
        return self.out or Path("runs") / f"reproduce-{Path(data).name.partition('.')[0]}{quick}"

    def run(self, wanted: Mapping[str, Settings], folder: Path) -> dict[str, Outcome]:
        """Simulate these settings; runs that have finished in ``folder`` are read from there."""
        tell = self._progress({name: chosen.uploads for name, chosen in wanted.items()})
        return run_all(wanted, folder / "runs", jobs=self.jobs, tell=tell)

    def compute(
        self, cells: Mapping[str, Computation[Value]], folder: Path, kind: type[Value]
    ) -> dict[str, list[Value]]:
        """Compute what has no file in ``folder`` yet, several at a time; return the results of all seeds."""
        folder.mkdir(parents=True, exist_ok=True)
        names = {cell: [f"{cell}-seed{seed}" for seed in range(self.seeds)] for cell in cells}
        missing = {
            name: partial(_compute, name, cells[cell], seed, folder / f"{name}.json")
            for cell, mine in names.items()
            for seed, name in enumerate(mine)
            if not (folder / f"{name}.json").exists()
        }
        totals = {name: cells[cell].uploads for cell, mine in names.items() for name in mine}
        in_parallel(missing, self.jobs, self._progress(totals))
        decode = msgspec.json.Decoder(kind).decode
        return {
            cell: [decode((folder / f"{name}.json").read_bytes()) for name in mine]
            for cell, mine in names.items()
        }

    def _progress(self, totals: Mapping[str, int]) -> Tell:
        """A callback that turns the states of parallel runs into one progress bar."""
        done: dict[str, float] = {}

        def tell(state: State) -> None:
            done[state.name] = 1.0 if state.finished else min(1.0, state.uploads / totals[state.name])
            percent = f", {100 * state.accuracy:.1f} %" if state.accuracy else ""
            self.tell(f"{state.name}: {state.uploads:,} uploads{percent}", sum(done.values()) / len(totals))

        return tell


def _compute(name: str, task: Computation[Any], seed: int, file: Path, tell: Tell) -> None:
    write_json(file, task.call(seed, lambda uploads: tell(State(name, uploads, 0.0))))
    tell(State(name, task.uploads, 0.0, finished=True))


class Claim(msgspec.Struct, frozen=True):
    """A claim, whether it held, and the numbers."""

    text: str
    held: bool
    numbers: str


class Printed(msgspec.Struct, frozen=True):
    """A table of text cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    @classmethod
    def of(cls, title: str, columns: report.Columns, records: Iterable[Any]) -> "Printed":
        """The table of some records."""
        return cls(title, list(columns), report.cells(columns, records))


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a study."""

    name: str
    data: str
    tables: list[Printed]
    claims: list[Claim]
    numbers: dict[str, Any]
    """All numbers, unrounded."""
    notes: list[str]
    files: list[str]


def finish(
    name: str,
    folder: Path,
    *,
    data: str,
    tables: list[Printed],
    claims: list[Claim],
    numbers: Mapping[str, Any],
    notes: Sequence[str] = (),
    figures: Sequence[Path] = (),
) -> Study:
    """Write JSON, CSV and Markdown beside the figures, and return the study."""
    folder.mkdir(parents=True, exist_ok=True)
    result, page = folder / f"{name}.json", folder / f"{name}.md"
    sheets = [folder / (f"{name}-{k}.csv" if k > 1 else f"{name}.csv") for k in range(1, len(tables) + 1)]
    study = Study(
        name=name,
        data=data,
        tables=tables,
        claims=claims,
        numbers=finite(msgspec.to_builtins(numbers)),
        notes=list(notes),
        files=[str(path) for path in (result, *sheets, page, *figures)],
    )
    told = {"data": data, "claims": claims, "numbers": study.numbers, "notes": study.notes}
    write_json(result, {"study": name, **told, **provenance(*PACKAGES)})
    for path, table in zip(sheets, tables, strict=True):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
        write(path, text.getvalue().encode(), sync=False)
    write(page, _markdown(study, figures).encode(), sync=False)
    return study


def _markdown(study: Study, figures: Sequence[Path]) -> str:
    """The study as a page: tables, claims and figures."""
    lines = []
    for table in study.tables:
        lines += [f"**{table.title}**", "", f"| {' | '.join(table.columns)} |"]
        lines += ["|---" + "|--:" * (len(table.columns) - 1) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table.rows] + [""]
    lines += ["| claim | here | numbers |", "|---|---|---|"]
    lines += [f"| {c.text} | {'held' if c.held else '**not held**'} | {c.numbers} |" for c in study.claims]
    lines += ["", *(f"- {note}" for note in study.notes)]
    lines += ["", *(f"![{path.name}]({path.name})" for path in figures if path.suffix == ".png")]
    return "\n".join(lines).strip() + "\n"


def plus_minus(pair: tuple[float, float], digits: int) -> str:
    """Mean ± standard deviation."""
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}" if math.isfinite(pair[0]) else "–"
