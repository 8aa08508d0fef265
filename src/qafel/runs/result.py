"""The result of a run: its evaluations, its summary, its model."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from qafel import report
from qafel.errors import ConfigError, MissingExtraError
from qafel.runs.folder import RunFolder
from qafel.runs.summary import FORMAT, Point, Summary, shown
from qafel.tables import Table, Tabular
from qafel.vectors import Layout, Vector

PANELS = (
    ("client uploads", "uploads", 1.0),
    ("MB up", "bytes_up", 1e-6),
    ("MB down", "bytes_down", 1e-6),
    ("time", "time", 1.0),
)
T = TypeVar("T")


class Result(Tabular):
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
        points = [decode_point(line) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the run in {folder} cannot be read: {error}") from error
    return Result(summary, points, None, None, folder)


_point = msgspec.json.Decoder(Point)


def decode_point(line: bytes) -> Point:
    """A line of metrics.jsonl; MsgspecError if it is none."""
    try:
        return _point.decode(line)
    except msgspec.ValidationError:
        return _decoded(line, Point)  # a metric that is not a number


def _decoded(data: bytes, kind: type[T]) -> T:
    """A struct from JSON, in which a metric that is not a number is null."""
    values = msgspec.json.decode(data)
    for name in ("metrics", "smoothed"):
        known = values.get(name, {}) if isinstance(values, dict) else {}
        known |= {metric: math.nan for metric, value in known.items() if value is None}
    return msgspec.convert(values, kind)


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
