"""Printing: a table for people, JSON for machines."""

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from qafel.errors import ConfigError
from qafel.records import finite

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

FOLDED = 16
"""The first column of a table is never narrower."""

console = Console()
"""Standard output."""
err = Console(stderr=True)
"""Standard error."""


def progress(quiet: bool) -> Progress:
    """A progress bar on standard error; none when only a machine reads along."""
    return Progress(console=err, transient=True, disable=quiet or not err.is_terminal)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are numbers; no number is ever cut.

    On a terminal of 80 columns, headings go over several lines and the first column is folded; on a
    narrower one, lines are longer than it.
    """
    cells = [list(row) for row in rows]
    body = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    widths = [max(body[k], len(column)) for k, column in enumerate(columns)]
    room, gap = console.width if console.is_terminal else 160, "  "
    if sum(widths) + 2 * len(widths) > room:
        widths, gap = [max([body[k], *map(len, column.split())]) for k, column in enumerate(columns)], " "
        widths[0] = max(FOLDED, min(widths[0], room - sum(widths[1:]) - len(widths)))
    console.print(title, style="italic", soft_wrap=True, highlight=False)
    for index, row in enumerate([list(columns), *cells]):
        folded = [_fold(cell, widths[k]) for k, cell in enumerate(row)]
        height = max(map(len, folded))
        for parts in zip(*([""] * (height - len(lines)) + lines for lines in folded), strict=True):
            line = [part.rjust(widths[k]) if k else part.ljust(widths[0]) for k, part in enumerate(parts)]
            console.print(Text(gap.join(line).rstrip(), style="" if index else "bold"), soft_wrap=True)


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
    typer.echo(msgspec.json.encode(finite(msgspec.to_builtins(value))).decode())


def number(value: float, digits: int = 3) -> str:
    """A number as a person would write it."""
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
    """A folder to write to, made now: what cannot be written is better known before the work."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--out must be a folder, and {path} is a file")
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("permission denied")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {path} ({error.strerror or error}); choose another --out"
        ) from error
    return path


def yes(value: bool) -> str:
    """A tick or nothing."""
    return "✓" if value else "–"
