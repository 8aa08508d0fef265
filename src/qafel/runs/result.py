"""The result of a run: its evaluations, its summary, its model; and results side by side."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from qafel import report
from qafel.errors import ConfigError, MissingExtraError
from qafel.runs.folder import RunFolder
from qafel.tables import Table, records_to_csv
from qafel.tasks.target import parse_target
from qafel.vectors import Layout, Vector

PANELS = (
    ("client uploads", "uploads", 1.0),
    ("MB up", "bytes_up", 1e-6),
    ("MB down", "bytes_down", 1e-6),
    ("time", "time", 1.0),
)
T = TypeVar("T")
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
    """‖x − x̂‖."""


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
    """That of the data, the model and the training."""
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
        """What one should know about the run."""
        return [crowded(self.concurrency["mean"], self.clients)] if self._crowded else []

    @property
    def _crowded(self) -> bool:
        return self.concurrency.get("mean", 0.0) > self.clients

    @property
    def metric(self) -> str:
        """The metric that stands for the run: that of the target, the accuracy, or the first one."""
        target = parse_target(self.settings.get("target"))
        return target.metric if target is not None else main_metric(self.smoothed)


class Result:
    """A run that has ended: its summary, its evaluations, its model."""

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
        metrics = ", ".join(f"{name} {value:.3f}" for name, value in s.smoothed.items())
        return (
            f"Result({s.algorithm}: {metrics} after {s.uploads} uploads, "
            f"{s.bytes_up / 1e6:.2f} MB up, {s.bytes_down / 1e6:.2f} MB down)"
        )

    @property
    def accuracy(self) -> float:
        """The smoothed accuracy at the end."""
        return self.summary.accuracy

    @property
    def best_accuracy(self) -> float:
        """The largest smoothed accuracy of all evaluations."""
        return max((point.smoothed.get("accuracy", math.nan) for point in self.points), default=0.0)

    def parameters(self) -> dict[str, Vector]:
        """The model's tensors, by name."""
        if self.x is None:
            if self.folder is None:
                raise ConfigError("this result has neither a model nor a folder to read it from")
            from safetensors.numpy import load_file

            return load_file(self.folder / "model.safetensors")
        return self.layout.unflatten(self.x) if self.layout else {"x": self.x}

    def figure(self, path: str | Path | None = None) -> Any:
        """The main metric against uploads, MB up, MB down and time: a matplotlib figure, which is also
        written to ``path``.
        """
        return figure_of({self.summary.algorithm: [self]}, self.summary.metric, path)

    def records(self) -> list[dict[str, Any]]:
        """A flat record of numbers for each evaluation, for CSV files and data frames."""
        records = []
        for point in self.points:
            values = msgspec.structs.asdict(point)
            metrics, smoothed = values.pop("metrics"), values.pop("smoothed")
            smooth = {f"smoothed {name}": value for name, value in smoothed.items()}
            first = {name: values.pop(name) for name in ("uploads", "version", "time")}
            records.append({**first, **metrics, **smooth, **values})
        return records

    def frame(self) -> Any:
        """A pandas data frame with a row for each evaluation."""
        return data_frame(self.records())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The evaluations as CSV, which is also written to ``path``."""
        text = records_to_csv(self.records())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def table(self) -> Table:
        """What the run reached and sent, as one row."""
        s = self.summary
        row = {
            "run": self.folder.name if self.folder else s.algorithm,
            s.metric: shown(s.metric, s.smoothed.get(s.metric, math.nan)),
            "uploads": f"{s.uploads:,}",
            "MB up": f"{s.bytes_up / 1e6:,.2f}",
            "MB down": f"{s.bytes_down / 1e6:,.2f}",
            "time": f"{s.time:,.1f}",
            "staleness": f"{s.staleness['mean']:.1f}",
            "in flight": f"{s.concurrency['mean']:.0f}",
        }
        title = f"{s.algorithm}: {s.clients:,} clients, {s.size:,} parameters; ended by {s.reason}"
        return Table(title, list(row), [list(row.values())])

    def _repr_html_(self) -> str:
        return self.table().html()

    def load_into(self, module: Any) -> Any:
        """Copy the model into a PyTorch module with the same trained parameters, and return it.

        Parameters that do not require a gradient, and buffers, are left as they are.
        """
        from qafel.tasks.models import load_parameters

        return load_parameters(module, self.parameters())

    def write(self, folder: RunFolder) -> None:
        """Write the model, the figures and, last, the summary: without it a folder is not a result."""
        from safetensors.numpy import save

        folder.write("model.safetensors", save(self.parameters(), {"digest": self.summary.digest}))
        with folder.writing():
            try:
                if self.points:
                    self.figure(folder.path / "curves.png")
                histogram = {int(tau): n for tau, n in self.summary.staleness["histogram"].items()}
                if histogram:
                    drawn = report.histogram(histogram, "staleness", "updates")
                    report.save(drawn, folder.path / "staleness.png")
            except MissingExtraError:
                pass  # the numbers are complete without figures
        folder.finish(self.summary)


def load(folder: str | Path) -> Result:
    """The result of a run that has ended, from its folder."""
    folder = Path(folder)
    if not (folder / "summary.json").is_file():
        if (folder / "config.toml").is_file():
            raise ConfigError(f"the run in {folder} has not ended; resume it")
        raise ConfigError(f"{folder} is not the folder of a run: it has no summary.json")
    try:
        data = (folder / "summary.json").read_bytes()
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format", 1)
        if version != FORMAT:
            raise ConfigError(
                f"the run in {folder} has format {version}; this qafel reads {FORMAT}; run it again"
            )
        summary = _decoded(data, Summary)
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
        points = [_decoded(line, Point) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the run in {folder} cannot be read: {error}") from error
    return Result(summary, points, None, None, folder)


def _decoded(data: bytes, kind: type[T]) -> T:
    """A struct from JSON, in which a metric that is not a number is null."""
    values = msgspec.json.decode(data)
    for name in ("metrics", "smoothed"):
        known = values.get(name, {}) if isinstance(values, dict) else {}
        known |= {metric: math.nan for metric, value in known.items() if value is None}
    return msgspec.convert(values, kind)


def crowded(in_flight: float, clients: int) -> str:
    """The note about a run with more tasks in flight than clients."""
    return (
        f"about {in_flight:,.0f} tasks are in flight at a time, more than the {clients:,} clients: clients "
        "train several at once; lower rate, or set sampling = idle, if they should not"
    )


def figure_of(groups: Mapping[str, Sequence[Result]], metric: str, path: str | Path | None = None) -> Any:
    """Draw a smoothed metric of each group (one run, or several seeds) against what it cost."""
    panels = []
    for label, name, unit in PANELS:
        lines = []
        for group, results in groups.items():
            drawn = [r for r in results if r.points and all(metric in p.smoothed for p in r.points)]
            curves = [
                ([getattr(p, name) * unit for p in r.points], [p.smoothed[metric] for p in r.points])
                for r in drawn
            ]
            lines.append((group, curves))
        panels.append((label, lines))
    figure = report.bands(panels, metric)
    if path is not None:
        report.save(figure, Path(path))
    return figure


def data_frame(records: Sequence[Mapping[str, Any]]) -> Any:
    """Records as a pandas data frame."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("a data frame (to_csv() does not)", "notebook") from error
    return pandas.DataFrame(records)


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
    """Mean and sample standard deviation; 0 for one value, NaN for none."""
    if not values:
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
