"""Figures with matplotlib. They do not open a window: a notebook shows them, ``save`` writes them."""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qafel.errors import MissingExtraError
from qafel.files import write

COLOURS = {
    "qafel": "#0b7a75",
    "fedbuff": "#d1495b",
    "naive": "#8d99ae",
    "fedasync": "#edae49",
    "fedavg": "#5e60ce",
}
FAR = 5.0
"""Lines whose ends are further apart than this factor are drawn on a logarithmic axis."""
CROWDED = 300.0
"""A logarithmic axis that spans more than this factor has only powers of ten as marks."""
INCH = 14
"""The characters of a legend that fit into an inch."""

Run = tuple[Sequence[float], Sequence[float]]
Lines = Sequence[tuple[str, Sequence[Run]]]


@functools.cache
def _figure_class() -> Any:
    """Matplotlib's figure, which a notebook shows whatever its backend is."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing figures", "figures") from error

    class ShownFigure(Figure):
        """A figure."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=100)
            return file.getvalue()

    return ShownFigure


def subplots(count: int, width: float, height: float, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with ``count`` panels side by side."""
    figure = _figure_class()(figsize=(width, height), dpi=150, layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False, **options)[0])
    for axis in axes:
        axis.grid(visible=True, alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(figure: Any, axes: Iterable[Any], title: str | None = None) -> None:
    """One legend for all panels, above them, where it covers nothing."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    room = INCH * figure.get_figwidth() // (max(map(len, handles)) + 6)
    columns = max(1, min(len(handles), int(room)))
    figure.legend(
        handles.values(), handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=9,
        title=title, title_fontsize=9, alignment="left",
    )  # fmt: skip


def colours(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each name: an algorithm's own, otherwise one that no other name has."""
    if any(name.lower() in COLOURS for name in names) or len(names) <= 10:
        own = [colour for colour in (f"C{k}" for k in range(10)) if colour not in ("C3",)]
        others = [name for name in names if name.lower() not in COLOURS]
        if len(others) <= len(own):
            cycle = dict(zip(others, own, strict=False))
            return {name: COLOURS.get(name.lower()) or cycle[name] for name in names}
    import matplotlib

    shades = matplotlib.colormaps["turbo"]
    return {name: shades((k + 0.5) / len(names)) for k, name in enumerate(names)}


def bands(panels: Sequence[tuple[str, Lines]], y: str) -> Any:
    """Panels side by side, each an x-label and (name, runs): the mean of the runs ± their standard deviation.

    A panel whose lines end more than a factor FAR apart has a logarithmic axis.
    """
    figure, axes = subplots(len(panels), 3.6 * len(panels), 3.8, sharey=True)
    names = [name for name, _ in panels[0][1]]
    chosen = colours(names)
    for axis, (label, lines) in zip(axes, panels, strict=True):
        _draw_lines(axis, lines, chosen)
        axis.set_xlabel(label)
    axes[0].set_ylabel(y)
    counts = {len(runs) for _, runs in panels[0][1]}
    several = " to ".join(str(n) for n in sorted({min(counts), max(counts)})) if counts else ""
    seeds = f"mean ± standard deviation over {several} seeds" if max(counts, default=1) > 1 else None
    legend(figure, axes, seeds)
    return figure


def _draw_lines(axis: Any, lines: Lines, chosen: Mapping[str, Any]) -> None:
    import numpy as np

    far = spread_axis(axis, "x", [xs[-1] for _, runs in lines for xs, _ in runs])
    for k, (name, all_runs) in enumerate(lines):
        runs = [(xs, ys) for xs, ys in all_runs if not far or xs[-1] > 0]
        if not runs:
            axis.plot([], [], label=f"{name} (diverged)", color=chosen[name])
            continue
        start = max(min((x for x in xs if x > 0 or not far), default=xs[-1]) for xs, _ in runs)
        grid = (np.geomspace if far else np.linspace)(start, min(xs[-1] for xs, _ in runs), 400)
        values = np.array([np.interp(grid, xs, ys) for xs, ys in runs])
        mean, place = values.mean(0), len(lines) - k + 2
        width = 1.6 + 0.6 * min(k, 4)  # lines that are equal stay visible below each other
        axis.plot(grid, mean, label=name, color=chosen[name], linewidth=width, zorder=place)
        if len(runs) > 1:
            spread = values.std(0, ddof=1)
            shade = {"color": chosen[name], "alpha": 0.18, "linewidth": 0}
            axis.fill_between(grid, mean - spread, mean + spread, **shade)


def spread_axis(axis: Any, which: str, values: Iterable[float]) -> bool:
    """Make an axis logarithmic, with plain numbers, if its values are more than a factor FAR apart."""
    from matplotlib import ticker

    class Marks(ticker.LogLocator):
        """Powers of ten, and 2 and 5 between them where there is room."""

        def tick_values(self, low: float, high: float) -> Any:
            self.set_params(subs=(1,) if high > CROWDED * low else (1, 2, 5))
            return super().tick_values(low, high)

    known = [value for value in values if value > 0]
    far = bool(known) and max(known) > FAR * min(known)
    if far:
        getattr(axis, f"set_{which}scale")("log")
        side = getattr(axis, f"{which}axis")
        side.set_major_locator(Marks())
        side.set_major_formatter(lambda value, _place: f"{value:g}")
        side.set_minor_formatter(ticker.NullFormatter())
    return far


def histogram(counts: Mapping[int, int], x: str, y: str) -> Any:
    """A bar chart of counts."""
    figure, (axis,) = subplots(1, 5, 3.2)
    axis.bar(list(counts), list(counts.values()), width=0.9, color=COLOURS["qafel"])
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    return figure


def save(figure: Any, *paths: Path) -> None:
    """Write the figure to every path, in the format of its suffix.

    Equal figures give equal bytes, SVG included.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "qafel"}):
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            data, kind = io.BytesIO(), path.suffix[1:] or "png"
            figure.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
            write(path if path.suffix else path.with_suffix(".png"), data.getvalue(), sync=False)
