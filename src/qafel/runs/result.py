"""What came out of a run, and several of them side by side."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel import report
from qafel.errors import ConfigError
from qafel.vectors import Layout, Vector

PANELS = (
    ("client uploads", "uploads", 1.0),
    ("MB up", "bytes_up", 1e-6),
    ("MB down", "bytes_down", 1e-6),
    ("time", "time", 1.0),
)


class Point(msgspec.Struct, frozen=True):
    """What was measured after so many uploads: a line of metrics.jsonl."""

    uploads: int
    version: int
    time: float
    accuracy: float
    smoothed: float
    loss: float
    bytes_up: int
    bytes_down: int
    staleness: float
    in_flight: int
    residual: float
    """‖x − x̂‖."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a run: summary.json."""

    algorithm: str
    client_quantizer: str
    server_quantizer: str
    reason: str
    """Why it ended: ``target``, ``uploads``, ``byte budget``, ``time limit``, or the end of a trace."""
    uploads: int
    version: int
    time: float
    accuracy: float
    """Smoothed."""
    best_accuracy: float
    loss: float
    bytes_up: int
    bytes_down: int
    downlink: str
    clients: int
    size: int
    staleness: dict[str, Any]
    concurrency: dict[str, float]
    rejected: dict[str, int]
    lost: int
    turned_away: int
    target: dict[str, float] | None
    """Where the target was first reached: uploads, bytes up and down, time."""
    seconds: dict[str, float]
    workers: int
    digest: str
    """Subjects the final model and hidden state, to the bit."""
    settings: dict[str, Any]
    provenance: dict[str, Any]


class Result:
    """A run that has ended: its summary, its measurements, its model."""

    def __init__(
        self,
        summary: Summary,
        points: Sequence[Point],
        x: Vector | None,
        layout: Layout | None,
        folder: Path | None,
    ) -> None:
        self.summary, self.points, self.x, self.layout, self.folder = summary, list(points), x, layout, folder

    def __repr__(self) -> str:
        s = self.summary
        return (
            f"Result({s.algorithm}: accuracy {s.accuracy:.3f} after {s.uploads} uploads, "
            f"{s.bytes_up / 1e6:.2f} MB up, {s.bytes_down / 1e6:.2f} MB down)"
        )

    @property
    def accuracy(self) -> float:
        """The smoothed accuracy at the end."""
        return self.summary.accuracy

    def parameters(self) -> dict[str, Vector]:
        """The model's tensors, by name."""
        if self.x is None:
            if self.folder is None:
                raise ConfigError("this result has neither a model nor a folder to read it from")
            from safetensors.numpy import load_file

            return load_file(self.folder / "model.safetensors")
        return self.layout.unflatten(self.x) if self.layout else {"x": self.x}

    def reached(self, accuracy: float) -> Point | None:
        """The first point whose smoothed accuracy is at least this."""
        full = self.points[self.summary.settings["smoothing"] :]
        return next((point for point in full if point.smoothed >= accuracy), None)

    def figure(self, path: str | Path) -> Path:
        """Accuracy against uploads, MB up, MB down and virtual time."""
        return figure({self.summary.algorithm: [self]}, Path(path))


def load(folder: str | Path) -> Result:
    """A run that has ended, from its folder."""
    folder = Path(folder)
    if not (folder / "summary.json").is_file():
        if (folder / "config.toml").is_file():
            raise ConfigError(f"the run in {folder} has not ended; qafel run --resume {folder}")
        raise ConfigError(f"{folder} is not the folder of a run: it has no summary.json")
    try:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
        points = [msgspec.json.decode(line, type=Point) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the run in {folder} cannot be read: {error}") from error
    return Result(summary, points, None, None, folder)


def figure(groups: dict[str, list[Result]], path: Path) -> Path:
    """Accuracy of each group (one run, or several seeds) against what it cost."""
    panels = []
    for label, name, unit in PANELS:
        lines = []
        for group, results in groups.items():
            runs = [
                ([getattr(p, name) * unit for p in r.points], [p.smoothed for p in r.points]) for r in results
            ]
            lines.append((group, runs))
        panels.append((label, lines))
    return report.bands(path, panels, "accuracy")


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for one value, not a number for none."""
    if not values:
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
