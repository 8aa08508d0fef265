"""Options of a study, its result, and the files it writes."""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from qafel.errors import ConfigError
from qafel.files import write, write_json
from qafel.records import made_by, provenance
from qafel.runs.comparison import Outcome
from qafel.runs.result import Result
from qafel.sim import PACKAGES, Settings, make_settings
from qafel.sim.batch import reserve, run_all
from qafel.sim.processes import Progress, TaskProgress, in_parallel
from qafel.tables import Table

Value = TypeVar("Value")
SEEDS = 5
MARKS = {True: "held", False: "**not held**", None: "*undecided*"}


class Computation(msgspec.Struct, Generic[Value], frozen=True):
    """A run whose result is kept as one JSON file for every seed."""

    uploads: int
    """Uploads in total, for the progress bar."""
    call: Callable[[int, Callable[[int], None]], Value]
    """Returns the result with a seed; the second argument is called with the uploads done so far."""


@dataclass(frozen=True)
class Options:
    """Options of a study."""

    name: str
    data: str | None = None
    seeds: int = SEEDS
    quick: bool = False
    jobs: int | None = None
    out: Path | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = lambda *_: None

    def folder(self, data: str) -> Path:
        """The folder for results: ``out``, by default runs/reproduce-DATA.

        ConfigError if it has the results of this study with other data or settings.
        """
        quick = "-quick" if self.quick else ""
        folder = self.out or Path("runs") / f"reproduce-{Path(data).name.partition('.')[0]}{quick}"
        changes = dict(sorted(self.changes.items()))
        request = {"study": self.name, "data": data, "quick": self.quick, "changes": changes}
        return reserve(folder, request, f"{self.name}.request.json")

    def settings(
        self,
        protocol: Mapping[str, Any],
        varied: Mapping[str, Any],
        seeds: Iterable[int] | None = None,
        decided: Collection[str] = (),
    ) -> list[Settings]:
        """The settings of some runs, one for each seed: the protocol, the changes, what the study varies.

        ConfigError if the changes have what it varies, or what else is ``decided``.
        """
        for name in self.changes:
            if name in ("data", "seed", *varied, *decided):
                raise ConfigError(f"{self.name} decides about {name} itself; leave it out of the settings")
        shared = {**protocol, **self.changes, **varied}
        chosen = range(self.seeds) if seeds is None else seeds
        return [make_settings({**shared, "seed": seed}, "the changes") for seed in chosen]

    def run(self, groups: Mapping[str, Sequence[Settings]], folder: Path) -> dict[str, list[Outcome]]:
        """Simulate each group, a run for each seed; runs that ended in ``folder`` are read from there."""
        runs = {name: {f"{name}-seed{one.seed}": one for one in some} for name, some in groups.items()}
        wanted = {run: one for some in runs.values() for run, one in some.items()}
        outcomes = run_all(wanted, folder / "runs", jobs=self.jobs, progress=self.progress)
        return {name: [outcomes[run] for run in some] for name, some in runs.items()}

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
        done = {name: float(name not in missing) for mine in names.values() for name in mine}

        def ended_so_far(task: TaskProgress) -> None:
            done[task.name] = task.share
            self.progress(f"{task.name}: {task.text}", sum(done.values()) / len(done))

        in_parallel(missing, self.jobs, ended_so_far)
        decode = msgspec.json.Decoder(kind).decode
        return {
            cell: [decode((folder / f"{name}.json").read_bytes()) for name in mine]
            for cell, mine in names.items()
        }


def _compute(
    name: str, task: Computation[Any], seed: int, file: Path, progress: Callable[[TaskProgress], None]
) -> None:
    def after_event(uploads: int) -> None:
        progress(TaskProgress(name, min(0.999, uploads / task.uploads), f"{uploads:,} uploads"))

    write_json(file, task.call(seed, after_event))
    progress(TaskProgress(name, 1.0, "ended"))


class Claim(msgspec.Struct, frozen=True):
    """A claim, whether it held, and the numbers."""

    text: str
    held: bool | None
    """True only if the whole 95 % interval fulfils it, False if none of it does, None if a part does."""
    numbers: str


class Origin(msgspec.Struct, frozen=True):
    """Where the runs of a study come from."""

    commits: list[str]
    hours: float
    """Of one core."""

    @classmethod
    def of(cls, outcomes: Mapping[str, Sequence[Outcome]]) -> "Origin":
        """The origin of some groups of runs; those that diverged keep no record."""
        runs = [run.summary for some in outcomes.values() for run in some if isinstance(run, Result)]
        return cls(
            sorted({str(run.provenance["commit"]) for run in runs}),
            sum(run.seconds["total"] * run.workers for run in runs) / 3600,
        )


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a study."""

    name: str
    data: str
    tables: list[Table]
    claims: list[Claim]
    numbers: dict[str, Any]
    """All numbers, unrounded."""
    origin: Origin | None
    notes: list[str]
    files: list[str]


def finish(
    name: str,
    folder: Path,
    *,
    data: str,
    tables: list[Table],
    claims: list[Claim],
    numbers: Mapping[str, Any],
    origin: Origin | None = None,
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
        numbers=msgspec.json.decode(msgspec.json.encode(numbers)),
        origin=origin,
        notes=list(notes),
        files=[str(path) for path in (result, *sheets, page, *figures)],
    )
    content = {"data": data, "claims": claims, "numbers": study.numbers, "notes": study.notes}
    made = provenance(*PACKAGES)
    write_json(result, {"study": name, **content, "origin": origin, **made})
    for path, table in zip(sheets, tables, strict=True):
        write(path, table.csv().encode(), sync=False)
    write(page, _markdown(study, made).encode(), sync=False)
    return study


def _markdown(study: Study, made: Mapping[str, Any]) -> str:
    """The study as a page: tables, claims, figures, and what made it."""
    lines = [table.markdown() for table in study.tables]
    lines += ["| claim | here | numbers |", "|---|---|---|"] if study.claims else []
    lines += [f"| {c.text} | {MARKS[c.held]} | {c.numbers} |" for c in study.claims]
    notes = [textwrap.fill(f"- {note}", 100, subsequent_indent="  ") for note in study.notes]
    figures = [Path(file).name for file in study.files if file.endswith(".png")]
    lines += ["", *notes, "", *(f"![{name}]({name})" for name in figures), "", made_by(made)]
    if study.origin is not None:
        commits, hours = ", ".join(study.origin.commits), study.origin.hours
        lines += ["", f"Its runs: commit {commits}, {hours:.1f} hours of one core."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def plus_minus(pair: tuple[float, float], digits: int) -> str:
    """Mean ± standard deviation."""
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}" if math.isfinite(pair[0]) else "–"


def rounded(value: float | None, digits: int) -> str:
    """A number as text, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
