"""Tables of text cells, and how they are written: Markdown, LaTeX, CSV, HTML."""

import csv
import html
import io
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import MissingExtraError
from qafel.files import write

NUMBER = re.compile(r"[-+−±~<>≤]?\s*[0-9∞]")
Columns = Mapping[str, str | Callable[[Any], str]]
"""The columns of a table by heading: a format of the record, like "{.size:,}", or a function of it."""

LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "x̂": r"$\hat{x}$",
    "–": "--",
    **{sign: f"${name}$" for sign, name in zip("±×÷−≤≥√τ‖∞δω·β", (
        r"\pm", r"\times", r"\div", "-", r"\le", r"\ge", r"\surd", r"\tau", r"\|", r"\infty", r"\delta",
        r"\omega", r"\cdot", r"\beta",
    ), strict=True)},
}  # fmt: skip
"""What LaTeX has in place of some characters."""


class Table(msgspec.Struct, frozen=True):
    """A table of text cells; columns with a number in any row are aligned to the right, but the first."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    @classmethod
    def of(cls, title: str, columns: Columns, records: Iterable[Any]) -> "Table":
        """The table of some records, one in each row."""
        rows = [
            [cell.format(record) if isinstance(cell, str) else cell(record) for cell in columns.values()]
            for record in records
        ]
        return cls(title, list(columns), rows)

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers."""
        columns = [[row[k] for row in self.rows] for k in range(len(self.columns))]
        return [k > 0 and any(NUMBER.match(cell) for cell in column) for k, column in enumerate(columns)]

    def markdown(self) -> str:
        """A Markdown table below its title."""
        lines = [[cell.replace("|", "\\|") for cell in row] for row in [self.columns, *self.rows]]
        rule = "".join("|--:" if number else "|---" for number in self.numeric) + "|"
        head, *body = [f"| {' | '.join(row)} |" for row in lines]
        return (
            "\n".join(
                [textwrap.fill(f"**{self.title}**", 100, break_on_hyphens=False), "", head, rule, *body]
            )
            + "\n"
        )

    def latex(self) -> str:
        """A LaTeX table; it needs the package booktabs."""
        head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in [self.columns, *self.rows]]
        columns = "".join("r" if number else "l" for number in self.numeric)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """The cells, separated by commas, below the headings."""
        return to_csv([self.columns, *self.rows])

    def html(self) -> str:
        """An HTML table with its title."""
        head, *body = [[html.escape(cell) for cell in row] for row in [self.columns, *self.rows]]
        right = ' style="text-align: right"'
        lines = [f"<caption>{html.escape(self.title)}</caption>"]
        lines.append("<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>")
        for row in body:
            cells = zip(self.numeric, row, strict=True)
            inner = "".join(f"<td{right if number else ''}>{cell}</td>" for number, cell in cells)
            lines.append(f"<tr>{inner}</tr>")
        return "<table>\n" + "\n".join(lines) + "\n</table>"


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class Tabular(ABC):
    """Something with flat records of numbers: CSV files and data frames."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """The records."""

    def frame(self) -> Any:
        """The records as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("frame()", "notebook") from error
        return pandas.DataFrame(self.records())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The records as CSV below the names of all their fields, which is also written to ``path``."""
        records = self.records()
        names = list(dict.fromkeys(name for record in records for name in record))
        text = to_csv([names, *([record.get(name, "") for name in names] for record in records)])
        if path is not None:
            write(Path(path), text.encode(), sync=False)
        return text


def _latex(text: str) -> str:
    pattern = "|".join(map(re.escape, sorted(LATEX, key=len, reverse=True)))
    return re.sub(pattern, lambda match: LATEX[match.group()], text)
