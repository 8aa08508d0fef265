"""What a run measured and counted: its evaluations and its totals, and how numbers are shown."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from qafel.tasks.target import parse_target

FORMAT = 2
"""The version of metrics.jsonl and summary.json."""


class Point(msgspec.Struct, frozen=True):
    """One evaluation: a line of metrics.jsonl."""

    uploads: int
    version: int
    time: float
    metrics: dict[str, float]
    """Means over the held-out samples, by name."""
    smoothed: dict[str, float]
    """Medians of the newest evaluations, by name."""
    bytes_up: int
    bytes_down: int
    staleness: float
    """The mean over all updates so far."""
    in_flight: int
    residual: float
    """‖x − x̂‖; with ``lookahead``, the distance of x̂ from the point ahead of x."""
    buffer: int = 0
    """Updates in the buffer."""
    server_error: float | None = None
    """The server quantizer's squared relative error, the mean over the steps since the last evaluation."""
    client_error: float | None = None
    """The client quantizer's, on one task that was sampled for it; only the simulator measures it."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a run: summary.json."""

    format: int = FORMAT
    algorithm: str
    client_quantizer: str
    server_quantizer: str
    reason: str
    """Why it ended: ``target``, ``uploads``, ``byte budget``, ``time limit``, or the end of a trace."""
    uploads: int
    version: int
    time: float
    metrics: dict[str, float]
    """The last evaluation."""
    smoothed: dict[str, float]
    """The medians of the last evaluations."""
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
    """The digests of the final model and hidden state."""
    fingerprint: str = ""
    """The fingerprint of the data, the model and the training with this seed."""
    functions: str = ""
    """The fingerprint of the functions that cannot be imported by name."""
    held_out: str = ""
    """Which samples the metrics were measured on."""
    settings: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """The smoothed accuracy at the end; not a number where it was not measured."""
        return self.smoothed.get("accuracy", math.nan)

    @property
    def notes(self) -> list[str]:
        """Warnings about the run, one sentence each."""
        return [crowded(self.concurrency["mean"], self.clients)] if self._crowded else []

    @property
    def _crowded(self) -> bool:
        return self.concurrency.get("mean", 0.0) > self.clients

    @property
    def metric(self) -> str:
        """The metric that stands for the run: that of the target, the accuracy, or the first one."""
        target = parse_target(self.settings.get("target"))
        return target.metric if target is not None else main_metric(self.smoothed)


def crowded(in_flight: float, clients: int) -> str:
    """The note about a run with more tasks in flight than clients."""
    return (
        f"about {in_flight:,.0f} tasks are in flight at a time, more than the {clients:,} clients: clients "
        "train several at once; lower rate, or set sampling = idle, if they should not"
    )


def shown(metric: str, value: float) -> str:
    """A metric for people: an accuracy in percent, anything else as it is."""
    if value != value:
        return "–"
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def main_metric(names: Iterable[str]) -> str:
    """The accuracy if it is measured, otherwise the first metric."""
    listed = list(names)
    return "accuracy" if "accuracy" in listed or not listed else listed[0]


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for one value, NaN for none or where one is not finite."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
