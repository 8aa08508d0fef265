"""Printing: a table for people, JSON for machines."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from qafel.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

console = Console()
"""Standard output."""


def progress(quiet: bool) -> Progress:
    """A progress bar on standard error; none when only a machine reads along."""
    return Progress(console=Console(stderr=True), transient=True, disable=quiet)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text, folded where the terminal is narrow, and whose others are numbers,
    never cut.
    """
    cells = [list(row) for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    heads = [max(map(len, column.split())) for column in columns]
    narrow = [max(pair) for pair in zip(widths, heads, strict=True)]
    narrow[0] = min(narrow[0], 18)
    grid = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for k, column in enumerate(columns):
        grid.add_column(
            column, justify="right" if k else "left", min_width=narrow[k], overflow="fold", vertical="bottom"
        )
    for row in cells:
        grid.add_row(*row)
    wide = max(console.width if console.is_terminal else 160, sum(narrow) + len(narrow))
    console.print(title, style="italic", soft_wrap=True, highlight=False)
    console.print(grid, width=wide, crop=False)


def json(value: Any) -> None:
    """JSON on one line; numbers that JSON does not have become null."""
    typer.echo(msgspec.json.encode(_plain(msgspec.to_builtins(value))).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
    if abs(value) >= 1e3:
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
