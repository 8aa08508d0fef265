"""A map of a sweep over two settings: uploads beside the reference, or the metric, for every combination."""

import math
from pathlib import Path
from typing import Any

from qafel import report
from qafel.runs.comparison import Comparison, Row
from qafel.runs.summary import shown

MAX_CELLS = 200


def draw_map(comparison: Comparison, path: str | Path | None = None) -> Any:
    """Draw every combination of two settings as a cell of a map; None if the rows are no such combinations.

    A cell has the uploads beside those of the reference and how many times fewer MB it sends up and down;
    where the rows have no common reference outside of the map, it has their metric at the end.
    """
    rows = {tuple(row.name.split(", ")): row for row in comparison.rows if "=" in row.name}
    across, down = (list(dict.fromkeys(key[k] for key in rows if len(key) == 2)) for k in (1, 0))
    if min(len(across), len(down)) < 2 or len(rows) != len(across) * len(down) or len(rows) > MAX_CELLS:
        return None
    compared = comparison.reference not in {row.name for row in rows.values()}
    values = [[_value(comparison, rows[y, x], compared) for x in across] for y in down]
    figure, (axis,) = report.subplots(1, 2.6 + 1.25 * len(across), 1.6 + 0.62 * len(down))
    finite = [value for line in values for value in line if math.isfinite(value)] or [1.0]
    colours, low, high = "viridis", min(finite), max(finite)
    if compared:  # green: fewer uploads than the reference, red: more
        far = min(1.0, max(0.25, *(abs(value - 1) for value in finite)))
        colours, low, high = "RdYlGn_r", 1 - far, 1 + far
    image = axis.imshow(values, cmap=colours, aspect="auto", vmin=low, vmax=high)
    axis.grid(visible=False)
    for j, y in enumerate(down):
        for i, x in enumerate(across):
            text = _text(comparison, rows[y, x], values[j][i], compared)
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "boxstyle": "round,pad=0.2"}
            axis.text(i, j, text, ha="center", va="center", fontsize=8, bbox=box)
    for ticks, labels, name in (
        (axis.set_xticks, across, axis.set_xlabel),
        (axis.set_yticks, down, axis.set_ylabel),
    ):
        ticks(range(len(labels)), [label.partition("=")[2] for label in labels], fontsize=8)
        name(labels[0].partition("=")[0])
    what = f"uploads ÷ {comparison.reference}'s" if compared else f"{comparison.metric} at the end"
    figure.colorbar(image, ax=axis).set_label(what, labelpad=8)
    if path is not None:
        report.save(figure, Path(path))
    return figure


def _value(comparison: Comparison, row: Row, compared: bool) -> float:
    if compared:
        return row.against.ratio[0] if row.against is not None else math.nan
    return row.metrics.get(comparison.metric, (math.nan, math.nan))[0]


def _text(comparison: Comparison, row: Row, value: float, compared: bool) -> str:
    lost = f"{row.diverged} of {row.runs} diverged"
    if not math.isfinite(value):
        return lost if row.diverged else "–"
    more = f"\n{lost}" if row.diverged else ""
    if not compared or row.against is None:
        return shown(comparison.metric, value) + more
    return f"{value:.2f}×\n{row.against.fewer_up[0]:.0f}× up, {row.against.fewer_down[0]:.0f}× down{more}"
