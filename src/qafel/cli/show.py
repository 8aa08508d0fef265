"""Printing: tables, lines, progress bars and JSON."""

import math
import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from qafel import files
from qafel.errors import ConfigError
from qafel.tables import Columns, Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class Format(Enum):
    """How tables are printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="How the tables are printed.")]
MIN_FIRST_COLUMN = 16
"""The least width of a table's first column."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""

console = Console()
"""Standard output."""
err = Console(stderr=True)
"""Standard error."""


def progress(quiet: bool) -> Progress:
    """A progress bar on standard error; hidden if ``quiet`` or without a terminal."""
    return Progress(console=err, transient=True, disable=quiet or not err.is_terminal)


def print_table(table: Table) -> None:
    """Print a table; numbers are aligned to the right and never cut.

    Where it is wider than the terminal, headings and the first column are folded; where that is not enough,
    each row becomes a block of lines.
    """
    columns, body = table.columns, table.rows
    least = [max((len(row[k]) for row in body), default=0) for k in range(len(columns))]
    widths = [max(least[k], len(column)) for k, column in enumerate(columns)]
    room, gap = console.width if console.is_terminal else 160, "  "
    if sum(widths) + 2 * len(widths) > room:
        widths, gap = [max([least[k], *map(len, column.split())]) for k, column in enumerate(columns)], " "
        widths[0] = max(MIN_FIRST_COLUMN, min(widths[0], room - sum(widths[1:]) - len(widths)))
    wide = not console.is_terminal
    console.print(table.title, style="italic", highlight=False, markup=False, soft_wrap=wide)
    if sum(widths) + len(widths) - 1 > room:
        _blocks(columns, body)
        return
    for index, row in enumerate([columns, *body]):
        folded = [_fold(cell, widths[k]) for k, cell in enumerate(row)]
        height = max(map(len, folded))
        for parts in zip(*([""] * (height - len(lines)) + lines for lines in folded), strict=True):
            line = [
                part.rjust(width) if number else part.ljust(width)
                for part, width, number in zip(parts, widths, table.numeric, strict=True)
            ]
            console.print(Text(gap.join(line).rstrip(), style="" if index else "bold"), soft_wrap=True)


def _blocks(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print each row as a block: its first cell, and a line for each of the others."""
    width = max(map(len, columns[1:]), default=0)
    for row in rows:
        console.print(Text(row[0], style="bold"))
        for column, cell in zip(columns[1:], row[1:], strict=True):
            console.print(Text(f"  {column.ljust(width)}  {cell}"))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of cells."""
    print_table(Table(title, list(columns), [list(row) for row in rows]))


def records(title: str, columns: Columns, rows: Iterable[Any]) -> None:
    """Print a table with a row for each record."""
    print_table(Table.of(title, columns, rows))


def tables(shown: Iterable[Table], form: Format, csv: str | None = None) -> None:
    """Print tables in a format; ``csv`` are their unrounded numbers."""
    if form is Format.CSV and csv is not None:
        typer.echo(csv, nl=False)
        return
    for k, one in enumerate(shown):
        if form is Format.TEXT:
            if k:
                line()
            print_table(one)
        else:
            typer.echo("\n" * (k > 0) + getattr(one, form.value)(), nl=False)


def line(text: str = "") -> None:
    """Print text as it is, without wrapping."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _fold(text: str, width: int) -> list[str]:
    """Lines of at most ``width``, broken at spaces and after commas and pluses where possible."""
    lines = [""]
    for piece in re.split(r"(?<=[ ,+])", text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def json(value: Any) -> None:
    """JSON on one line; numbers that JSON does not have become null."""
    typer.echo(msgspec.json.encode(value).decode())


def number(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits; large ones with thousands separators."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e3 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def out_folder(path: Path) -> Path:
    """Create a folder to write to; called before the work, so that an error comes early."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"the output must be a folder, and {path} is a file")
    with files.writing(path, "choose another --out"):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("permission denied")
    return path


def at_least_one(**options: int) -> None:
    """Raise ConfigError for an option below 1."""
    for name, value in options.items():
        if value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")


def yes(value: bool) -> str:
    """A tick or a dash."""
    return "✓" if value else "–"


def say(text: str, style: str = "") -> None:
    """Print a line to standard error, in colour where the terminal wants it."""
    err.print(Text(text, style=style), soft_wrap=True)


def look_at(folder: Path) -> None:
    """Name the command that shows a folder of runs in the browser."""
    line(f"In the browser: qafel dashboard {shlex.quote(str(folder))}")


def paragraph(text: str, indent: int) -> None:
    """Print text that is wrapped to the terminal and indented."""
    width = min(100, console.width)
    for part in textwrap.wrap(text, max(20, width - indent)):
        line(" " * indent + part)
