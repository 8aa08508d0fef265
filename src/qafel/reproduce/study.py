"""What a study is asked, what it gives back, and what it writes."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from qafel.records import finite, provenance
from qafel.reproduce.claims import Claim
from qafel.sim import Settings
from qafel.sim.batch import Outcome, State, run_all

PACKAGES = ("qafel", "numpy", "numba", "torch")


@dataclass(frozen=True)
class Options:
    """What a study is asked."""

    data: str | None = None
    seeds: int = 3
    quick: bool = False
    jobs: int | None = None
    out: Path | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    tell: Callable[[str, float], None] = lambda _what, _share: None
    """Called with what is being done, and how much of it is done."""

    def folder(self, data: str) -> Path:
        """Where results go: runs/reproduce-DATA when nobody says."""
        quick = "-quick" if self.quick else ""
        return self.out or Path("runs") / f"reproduce-{Path(data).name.partition('.')[0]}{quick}"

    def run(self, wanted: Mapping[str, Settings], folder: Path) -> dict[str, Outcome]:
        """Run what has not been run."""
        done: dict[str, float] = {}

        def tell(state: State) -> None:
            most = wanted[state.name].uploads
            done[state.name] = 1.0 if state.finished else min(1.0, state.uploads / most)
            percent = f", {100 * state.accuracy:.1f} %" if state.accuracy else ""
            self.tell(f"{state.name}: {state.uploads:,} uploads{percent}", sum(done.values()) / len(wanted))

        return run_all(wanted, folder / "runs", jobs=self.jobs, tell=tell)


class Printed(msgspec.Struct, frozen=True):
    """A table for people."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    name: str
    data: str
    tables: list[Printed]
    claims: list[Claim]
    numbers: dict[str, Any]
    """Everything, for machines."""
    notes: list[str]
    files: list[str]


def finish(
    name: str,
    folder: Path,
    *,
    data: str,
    tables: Sequence[Printed],
    claims: Sequence[Claim],
    numbers: Mapping[str, Any],
    notes: Sequence[str] = (),
    figures: Sequence[Path] = (),
) -> Study:
    """Write JSON, CSV and Markdown beside the figures, and give the study back."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {
        "study": name,
        "data": data,
        "claims": claims,
        "numbers": numbers,
        "notes": list(notes),
        **provenance(*PACKAGES),
    }
    plain = finite(msgspec.to_builtins(body))
    files = [folder / f"{name}.json", *(folder / f"{name}{_suffix(k)}.csv" for k in range(len(tables)))]
    files[0].write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")
    for path, table in zip(files[1:], tables, strict=True):
        path.write_text(_csv(table), encoding="utf-8")
    files.append(folder / f"{name}.md")
    study = Study(
        name=name,
        data=data,
        tables=list(tables),
        claims=list(claims),
        numbers=plain["numbers"],
        notes=list(notes),
        files=[str(path) for path in (*files, *figures)],
    )
    files[-1].write_text(markdown(study, [path.name for path in figures]), encoding="utf-8")
    return study


def markdown(study: Study, figures: Sequence[str] = ()) -> str:
    """A page to read: tables, claims and figures."""
    lines = []
    for table in study.tables:
        lines += [f"**{table.title}**", "", f"| {' | '.join(table.columns)} |"]
        lines += ["|---" + "|--:" * (len(table.columns) - 1) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table.rows] + [""]
    lines += ["| claim | here | numbers |", "|---|---|---|"]
    lines += [f"| {c.text} | {'held' if c.held else '**not held**'} | {c.numbers} |" for c in study.claims]
    lines += ["", *(f"- {note}" for note in study.notes)]
    lines += ["", *(f"![{name}]({name})" for name in figures if name.endswith(".png"))]
    return "\n".join(lines).strip() + "\n"


def _suffix(k: int) -> str:
    return "" if k == 0 else f"-{k + 1}"


def _csv(table: Printed) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return text.getvalue()
