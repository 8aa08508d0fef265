"""Tables for people, and figures that people would rather look at than read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qafel.errors import MissingExtraError

COLOURS = {"qafel": "#0b7a75", "fedbuff": "#d1495b", "naive": "#8d99ae", "fedasync": "#edae49"}


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


def curves(
    path: Path, panels: Sequence[tuple[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]]], y: str
) -> Path:
    """Panels side by side, each an x-label and (name, xs, ys) curves, over one logarithmic y-axis."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.6), sharey=True, squeeze=False)
    for axis, (label, lines) in zip(axes[0], panels, strict=True):
        for k, (name, xs, ys) in enumerate(lines):
            axis.plot(
                xs,
                ys,
                label=name,
                color=COLOURS.get(name.lower()),
                linewidth=1.5 * (k + 1),
                zorder=len(lines) - k + 2,
            )
        axis.set_xlabel(label)
        axis.set_yscale("log")
    axes[0][0].set_ylabel(y)
    axes[0][-1].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
