"""The figures of the studies, each as PNG and SVG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qafel import report
from qafel.reproduce.cells import RATES
from qafel.reproduce.claims import BITS
from qafel.reproduce.rows import Pair, Row

Value = Callable[[Row], Pair]
MB: list[tuple[str, Value]] = [
    ("MB uploaded", lambda row: row.mb_up),
    ("MB downloaded", lambda row: row.mb_down),
]
TO_TARGET: list[tuple[str, Value]] = [("uploads to the target (thousands)", lambda row: row.thousands), *MB]
"""Means over the runs that reached the target."""
MAX_TICKS = 6
"""An axis with at most this many places names all of them."""
SERVER_COLOURS = {8: "#9ad1cd", 4: "#0b7a75", 2: "#073b3a"}
WHISKERS = {"color": "black", "linewidth": 0.8, "capsize": 2}


def _panels(values: Sequence[tuple[str, Value]], height: float) -> tuple[Any, list[tuple[Any, Value]]]:
    """A figure, and the axis of each of the values."""
    figure, axes = report.subplots(len(values), 11, height)
    for axis, (title, _) in zip(axes, values, strict=True):
        axis.set_title(title, fontsize=10)
    return figure, [(axis, value) for axis, (_, value) in zip(axes, values, strict=True)]


def quantizers(path: Path, rows: Mapping[str, Row], kind: str) -> list[Path]:
    """The paper's three panels: uploads, MB up and MB down for each pair of quantizers, beside FedBuff."""
    figure, panels = _panels(TO_TARGET, 3.6)
    for axis, value in panels:
        for k, server in enumerate(BITS):
            for place, client in enumerate(BITS):
                row = rows[f"{kind}-{client}-{server}"]
                mean, spread = value(row)
                here = place + 0.26 * (k - 1)
                label = f"server {server}-bit" if place == 0 else None
                whole = row.reached == row.runs
                style = {} if whole else {"hatch": "///", "edgecolor": "white"}
                axis.bar(here, mean, 0.24, color=SERVER_COLOURS[server], label=label, **style)
                if row.reached > 1:
                    axis.errorbar(here, mean, spread, **WHISKERS)
                if not whole:
                    top = mean if mean == mean else 0
                    axis.annotate(f"{row.reached}/{row.runs}", (here, top), ha="center", fontsize=7)
        fedbuff = value(rows["fedbuff"])[0]
        report.spread_axis(axis, "y", [fedbuff, *(value(row)[0] for row in rows.values())])
        axis.axhline(fedbuff, color=report.COLOURS["fedbuff"], linestyle="--", label="FedBuff")
        axis.set_xticks(range(len(BITS)), [f"client {bits}-bit" for bits in BITS])
    report.legend(figure, [axis for axis, _ in panels])
    return save(figure, path)


def table2(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Uploads, MB up and MB down of every row, beside FedBuff, the first."""
    short = [row.label.replace(", ", "\n").replace("server ", "server\n") for row in rows]
    colours = [report.COLOURS["fedbuff"], *[report.COLOURS["qafel"]] * (len(rows) - 1)]
    figure, panels = _panels(TO_TARGET, 3.4)
    for axis, value in panels:
        values = [value(row) for row in rows]
        axis.bar(range(len(rows)), [mean for mean, _ in values], 0.6, color=colours)
        for place, (mean, spread) in enumerate(values):
            axis.errorbar(place, mean, spread, **WHISKERS)
            if mean == mean:
                axis.annotate(f"{mean:.3g}", (place + 0.06, mean), fontsize=8, va="bottom")
        axis.set_xticks(range(len(rows)), short, fontsize=8)
        report.spread_axis(axis, "y", [mean for mean, _ in values])
    return save(figure, path)


def concurrency(path: Path, rows: Mapping[str, Row]) -> list[Path]:
    """The paper's two panels: MB uploaded and uploads against the clients in flight; MB downloaded too."""
    figure, panels = _panels([*MB, ("uploads (thousands)", lambda row: row.thousands)], 3.4)
    for axis, value in panels:
        for k, (name, label) in enumerate((("fedbuff", "FedBuff"), ("qafel", "QAFeL 4/4"))):
            means, spreads = zip(*(value(rows[f"{name}-{n}"]) for n in RATES), strict=True)
            places = [place + 0.36 * (k - 0.5) for place in range(len(RATES))]
            axis.bar(places, means, 0.34, color=report.COLOURS[name], label=label)
            axis.errorbar(places, means, spreads, fmt="none", **WHISKERS)
        report.spread_axis(axis, "y", [value(row)[0] for row in rows.values()])
        axis.set_xticks(range(len(RATES)), [f"{n:,}" for n in RATES])
        axis.set_xlabel("clients in flight")
    report.legend(figure, [axis for axis, _ in panels])
    return save(figure, path)


Line = tuple[str, Sequence[float], Sequence[float]]


def lines(
    path: Path, panels: Sequence[tuple[str, str, Sequence[Line]]], *, logarithmic: Sequence[str] = ("y",)
) -> list[Path]:
    """Panels of (x-label, y-label, lines); ``logarithmic`` names the axes that are, panel by panel.

    Panels that have lines in common share one legend, and their colours.
    """
    alone = len(panels) == 1
    figure, axes = report.subplots(len(panels), 9.0 if alone else 1 + 4.2 * len(panels), 4.2)
    every = [name for _, _, curves in panels for name, _, _ in curves]
    names = list(dict.fromkeys(every))
    shared = len(names) < len(every)
    for axis, (x, y, curves), scales in zip(axes, panels, logarithmic, strict=True):
        colours = report.colours(names if shared else [name for name, _, _ in curves])
        for k, (name, xs, ys) in enumerate(curves):
            below = len(curves) - 1 - k if len(curves) <= MAX_TICKS else 0
            width = 1.4 + 0.6 * min(below, 4)  # lines that are equal stay visible below each other
            style = {"linestyle": "--", "color": "#333333"} if "bound" in name else {}
            axis.plot(xs, ys, label=name, linewidth=width, **({"color": colours[name]} | style))
        for which in scales:
            getattr(axis, f"set_{which}scale")("log")
        places = {at for _, xs, _ in curves for at in xs}
        if len(places) <= MAX_TICKS:
            axis.set_xticks(sorted(places), [f"{at:,}" for at in sorted(places)])
            axis.minorticks_off()
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        beside = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
        above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
        if not shared:
            axis.legend(fontsize=8, frameon=False, **(beside if alone else above))
    if shared:
        report.legend(figure, axes)
    return save(figure, path)


def save(figure: Any, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    report.save(figure, *paths)
    return paths
