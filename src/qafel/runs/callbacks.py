"""Callbacks: objects that are called with every evaluation of a run.

A callback takes a ``Point``; if it returns True, the run ends and its results are kept. A resumed run shows
the saved evaluations to its callbacks again, so that they need no state of their own on disk. The first
evaluation of a run is at 0 uploads: there, these callbacks begin anew, and can be used for several runs.
"""

import csv
import math
from pathlib import Path
from typing import Any

from qafel.errors import ConfigError
from qafel.extras import require
from qafel.files import writing
from qafel.runs.summary import Point


class EarlyStopping:
    """Ends the run when a smoothed metric has not improved for ``patience`` evaluations.

    The loss and other errors are to be small (``mode="min"``, the default for ``loss``), accuracies large
    (``mode="max"``). An improvement is a change of more than ``min_delta``.
    """

    def __init__(
        self, metric: str = "loss", patience: int = 5, *, mode: str | None = None, min_delta: float = 0.0
    ) -> None:
        if patience < 1:
            raise ConfigError(f"patience must be at least 1, got {patience}")
        if mode not in ("min", "max", None):
            raise ConfigError(f"mode must be 'min' or 'max', got {mode!r}")
        if mode is None and metric not in ("loss", "accuracy"):
            raise ConfigError(f"say whether {metric!r} is to be small or large: mode='min' or mode='max'")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._sign = -1.0 if (mode or ("max" if metric == "accuracy" else "min")) == "max" else 1.0
        self.best, self.waited = math.inf, 0

    def __call__(self, point: Point) -> bool:
        """Whether the run should end."""
        if self.metric not in point.smoothed:
            raise ConfigError(
                f"early stopping watches {self.metric!r}, which is not measured; the metrics are "
                f"{', '.join(point.smoothed)}"
            )
        value = self._sign * point.smoothed[self.metric]
        if point.uploads == 0:
            self.best, self.waited = math.inf, 0
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class Csv:
    """Writes every evaluation to a CSV file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, point: Point) -> None:
        """Write a line; the first one after the names of the columns."""
        columns = values(point)
        with writing(self._path, "choose another file"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a" if point.uploads else "w", encoding="utf-8", newline="") as file:
                if not point.uploads:
                    csv.writer(file).writerow(columns)
                csv.writer(file).writerow(columns.values())


class TensorBoard:
    """Writes every evaluation to a folder that TensorBoard shows."""

    def __init__(self, folder: str | Path) -> None:
        require("TensorBoard", "tensorboard", "torch")
        self._folder = folder
        self._writer: Any = None

    def __call__(self, point: Point) -> None:
        """Write the numbers of an evaluation, at its number of uploads."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in values(point).items():
            if name != "uploads":
                self._writer.add_scalar(name, value, point.uploads)
        self._writer.flush()


def values(point: Point) -> dict[str, float]:
    """The numbers of an evaluation: what it cost, and its metrics."""
    costs = ("uploads", "version", "time", "bytes_up", "bytes_down", "staleness", "in_flight", "residual")
    return (
        {name: getattr(point, name) for name in costs}
        | point.metrics
        | {f"{name} (smoothed)": value for name, value in point.smoothed.items()}
    )
