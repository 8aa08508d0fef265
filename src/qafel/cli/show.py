"""Printing: a table for people, JSON for machines."""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

console = Console()
"""Standard output; tables keep their width when it is not a terminal."""
if not console.is_terminal:
    console = Console(width=160)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are numbers."""
    grid = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for k, column in enumerate(columns):
        grid.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)


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
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def yes(value: bool) -> str:
    """A tick or nothing."""
    return "✓" if value else "–"
