"""Tables as text, and figures with matplotlib, drawn to files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qafel.errors import MissingExtraError

COLOURS = {
    "qafel": "#0b7a75",
    "fedbuff": "#d1495b",
    "naive": "#8d99ae",
    "fedasync": "#edae49",
    "fedavg": "#5e60ce",
}

Columns = Mapping[str, str | Callable[[Any], str]]
"""The columns of a table by heading: a format of the record, like "{.size:,}", or a function of it."""


def cells(columns: Columns, records: Iterable[Any]) -> list[list[str]]:
    """The rows of a table of records, without its headings."""
    return [
        [cell.format(record) if isinstance(cell, str) else cell(record) for cell in columns.values()]
        for record in records
    ]


def pyplot() -> Any:
    """Matplotlib's pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("drawing figures", "figures") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "figure.dpi": 150,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )
    return pyplot


Run = tuple[Sequence[float], Sequence[float]]
FAR = 5.0


def bands(path: Path, panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[Run]]]]], y: str) -> Path:
    """Panels side by side, each an x-label and (name, runs): the mean of the runs and their range.

    A panel whose lines end more than a factor FAR apart has a logarithmic axis.
    """
    import numpy as np

    plt = pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.4), sharey=True, squeeze=False)
    for axis, (label, lines) in zip(axes[0], panels, strict=True):
        last = [xs[-1] for _, runs in lines for xs, _ in runs]
        far = min(last) > 0 and max(last) > FAR * min(last)
        if far:
            axis.set_xscale("log")
        for k, (name, runs) in enumerate(lines):
            start = max(min(x for x in xs if x > 0 or not far) for xs, _ in runs)
            grid = (np.geomspace if far else np.linspace)(start, min(xs[-1] for xs, _ in runs), 400)
            values = np.array([np.interp(grid, xs, ys) for xs, ys in runs])
            colour = COLOURS.get(name.lower(), f"C{k}")
            axis.plot(
                grid, values.mean(0), label=name, color=colour, linewidth=1.8, zorder=len(lines) - k + 2
            )
            if len(runs) > 1:
                low, high = values.min(0), values.max(0)
                axis.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.set_xlabel(label)
    axes[0][0].set_ylabel(y)
    axes[0][0].legend()
    save(figure, path)
    return path


def histogram(path: Path, counts: Mapping[int, int], x: str, y: str) -> Path:
    """A bar chart of counts."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.bar(list(counts), list(counts.values()), width=0.9, color=COLOURS["qafel"])
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    save(figure, path)
    return path


def save(figure: Any, *paths: Path) -> None:
    """Write the figure to every path, in the format of its suffix, and close it.

    Equal figures give equal bytes, SVG included.
    """
    plt = pyplot()
    figure.tight_layout()
    with plt.rc_context({"svg.hashsalt": "qafel"}):
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
