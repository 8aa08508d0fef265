"""The tracker of a run: what was sent and measured so far, and whether the run has ended.

Every driver holds one and feeds it events:

    advance(now)              time passes
    received(bytes, events)   the server processed an upload
    downloaded(bytes, request) a client asked for frames and fetched them, where they are not broadcast
    evaluated(metrics)        the model was measured on held-out samples

``reason`` says which condition ended the run: the number of uploads, the byte budget, the time limit, a
callback, or the target, which replaces any other reason. With ``decides=False``, a condition that the clock
or an evaluation fulfils is only ``wanted``: in a federation, the log decides. Metrics have names; a ``loss``
that grows a hundredfold is an error, and the target is about one smoothed metric.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from qafel.errors import ConfigError, DivergenceError
from qafel.hidden import digest
from qafel.runs.folder import RunFolder
from qafel.runs.summary import Point, Summary, main_metric, shown
from qafel.server import Accepted, Dropped, Event, Server, Stepped
from qafel.tasks.settings import Learning
from qafel.tasks.target import parse_target

Callback = Callable[[Point], Any]
"""Called with every evaluation; if it returns True, the run ends."""
MAX_LOSS_GROWTH = 100.0
"""A run stops when its smoothed loss is more than this many times its first loss."""


class Totals(msgspec.Struct, array_like=True):
    """Everything that a tracker counts; part of a checkpoint."""

    uploads: int = 0
    version: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    """Each increment once where they are broadcast, otherwise what clients downloaded."""
    lost: int = 0
    turned_away: int = 0
    in_flight: int = 0
    peak: int = 0
    time: float = 0.0
    area: float = 0.0
    """Tasks in flight, integrated over time."""
    residual: float = 0.0
    """‖x − x̂‖ after the newest step."""
    reason: str | None = None
    """Why the run ended; None while it goes on."""
    staleness: dict[int, int] = {}
    """How many accepted updates had each staleness."""
    points: list[Point] = []
    buffer: int = 0
    """Updates in the buffer."""
    errors: tuple[float, int] = (0.0, 0)
    """The server quantizer's errors since the last evaluation: their sum and their number."""
    reported: tuple[int, int] = (0, 0)
    """Client and task of the newest update: the simulator measures the client quantizer's error on it."""


class Tracker:
    """Follows one run under its settings; ``folder``, if there is one, gets a line for each evaluation."""

    def __init__(
        self, settings: Learning, folder: RunFolder | None = None, callbacks: Sequence[Callback] = ()
    ) -> None:
        if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
            raise ConfigError(f"callbacks must be a list of functions of a Point, got {callbacks!r:.60}")
        self.settings, self.folder, self._callbacks = settings, folder, callbacks
        self.totals = Totals()
        self.wanted: str | None = None
        """Why the run should end, by a condition that does not end it by itself."""
        self.about: dict[str, Any] = {}
        """What the driver knows of the run: the ``size`` of the model, the number of ``clients``."""

    @property
    def points(self) -> list[Point]:
        """The evaluations so far."""
        return self.totals.points

    @property
    def reason(self) -> str | None:
        """Why the run ended; None while it goes on."""
        return self.totals.reason

    def end(self, reason: str) -> None:
        """End the run for a reason, unless it has ended."""
        self.totals.reason = self.totals.reason or reason

    def want(self, reason: str) -> None:
        """Say that the run should end."""
        self.wanted = self.wanted or reason

    @property
    def headline(self) -> str:
        """The main metric of the newest evaluation, as text; empty before there is one."""
        smoothed = self.points[-1].smoothed if self.points else {}
        metric = main_metric(smoothed)
        return f"{metric} {shown(metric, smoothed[metric])}" if metric in smoothed else ""

    @property
    def live(self) -> dict[str, Any]:
        """The content of live.json: what the page shows of a running run beside its evaluations."""
        staleness = {str(tau): n for tau, n in sorted(self.totals.staleness.items())}
        return {**self.about, "staleness": staleness}

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of the accepted updates."""
        counts = dict(self.totals.staleness)  # a thread may be adding to it
        return sum(tau * n for tau, n in counts.items()) / max(1, sum(counts.values()))

    def advance(self, now: float, *, decides: bool = True) -> None:
        """Move the clock to ``now``, but not past the time limit, which ends the run."""
        totals, limit = self.totals, self.settings.time_limit
        moment = now if limit is None else min(now, limit)
        if moment > totals.time:
            totals.area += totals.in_flight * (moment - totals.time)
            totals.peak = max(totals.peak, totals.in_flight)
        totals.time = moment
        if limit is not None and now >= limit:
            (self.end if decides else self.want)("time limit")

    def received(self, size: int, events: Iterable[Event], *, counts: bool = True) -> None:
        """Account for an upload of ``size`` bytes and the server's events; ``counts``: it is an update."""
        totals, settings = self.totals, self.settings
        totals.uploads += counts
        totals.bytes_up += size
        for event in events:
            if isinstance(event, Accepted):
                totals.staleness[event.staleness] = totals.staleness.get(event.staleness, 0) + 1
                totals.buffer += 1
            elif isinstance(event, Stepped):
                totals.version, totals.residual, totals.buffer = event.version, event.residual, 0
                totals.errors = totals.errors[0] + event.error, totals.errors[1] + 1
            elif isinstance(event, Dropped):
                totals.buffer = 0
            if isinstance(event, Stepped) and settings.downlink == "broadcast":
                totals.bytes_down += len(event.frame)
        if totals.uploads >= settings.uploads:
            self.end("uploads")
        budget = settings.byte_budget
        if budget is not None and totals.bytes_up + totals.bytes_down >= budget:
            self.end("byte budget")

    def downloaded(self, size: int, request: int = 0) -> None:
        """Account for frames that a client asked for and fetched, where increments are not broadcast."""
        if self.settings.downlink != "broadcast":
            self.totals.bytes_down += size
            self.totals.bytes_up += request

    @property
    def evaluation_due(self) -> bool:
        """Whether the model must be evaluated now."""
        totals = self.totals
        last = totals.points[-1].uploads if totals.points else -1
        due = totals.uploads % self.settings.evaluate_every == 0 or totals.reason is not None
        return due and last < totals.uploads

    def evaluated(
        self, metrics: Mapping[str, float], client_error: float | None = None, *, decides: bool = True
    ) -> Point:
        """Record an evaluation; a target that is reached ends the run.

        DivergenceError if the loss is not finite, or its median has grown a hundredfold.
        """
        totals, settings = self.totals, self.settings
        recent = totals.points[1 - settings.smoothing :] if settings.smoothing > 1 else []
        point = Point(
            uploads=totals.uploads,
            version=totals.version,
            time=totals.time,
            metrics=dict(metrics),
            smoothed={
                name: statistics.median([*(p.metrics[name] for p in recent if name in p.metrics), value])
                for name, value in metrics.items()
            },
            bytes_up=totals.bytes_up,
            bytes_down=totals.bytes_down,
            staleness=self.mean_staleness,
            in_flight=totals.in_flight,
            residual=totals.residual,
            buffer=totals.buffer,
            server_error=totals.errors[0] / totals.errors[1] if totals.errors[1] else None,
            client_error=client_error,
        )
        totals.errors = 0.0, 0
        self._check_loss(point)
        totals.points.append(point)
        if self.folder is not None:
            self.folder.append(point)
            self.folder.write_live(self.live)
        target = parse_target(settings.target)
        if target is not None and target.reached(point.smoothed) and len(totals.points) > settings.smoothing:
            if decides:
                totals.reason = "target"
            else:
                self.want("target")
        for callback in self._callbacks:
            if isinstance(ends := callback(point), bool | np.bool_) and ends:
                self.end(f"callback {getattr(callback, '__name__', type(callback).__name__)}")
        return point

    def replay(self) -> None:
        """Show the saved evaluations to the callbacks, when a run is resumed."""
        for point in self.totals.points:
            for callback in self._callbacks:
                callback(point)

    def _check_loss(self, point: Point) -> None:
        if "loss" not in point.metrics:
            return
        loss, smoothed, points = point.metrics["loss"], point.smoothed["loss"], self.totals.points
        first = abs(points[0].metrics.get("loss", 0.0)) if points else 0.0
        if not math.isfinite(loss) or (first and smoothed > MAX_LOSS_GROWTH * first):
            raise DivergenceError(
                f"training diverged: the loss on the held-out samples is {loss:g} after {point.uploads} "
                f"uploads, {first:g} at the start; lower local_rate or server_rate, or check model and data"
            )

    def summary(
        self,
        server: Server,
        *,
        clients: int,
        workers: int,
        seconds: Mapping[str, float],
        provenance: dict[str, Any],
        held_out: str = "",
        fingerprint: str = "",
    ) -> Summary:
        """The totals of a run that has ended."""
        totals, settings, job = self.totals, self.settings, server.job
        last = totals.points[-1] if totals.points else None
        first = reached(totals.points[settings.smoothing :], settings.target)
        costs = ("uploads", "bytes_up", "bytes_down", "time")
        return Summary(
            algorithm=settings.algorithm,
            client_quantizer=job.client_quantizer,
            server_quantizer=job.server_quantizer,
            reason=totals.reason or "stopped",
            uploads=totals.uploads,
            version=server.version,
            time=totals.time,
            metrics=last.metrics if last else {},
            smoothed=last.smoothed if last else {},
            bytes_up=totals.bytes_up,
            bytes_down=totals.bytes_down,
            downlink=settings.downlink,
            clients=clients,
            size=job.size,
            staleness={
                "mean": self.mean_staleness,
                "max": max(totals.staleness, default=0),
                "histogram": {str(tau): n for tau, n in sorted(totals.staleness.items())},
            },
            concurrency={
                "mean": totals.area / totals.time if totals.time else 0.0,
                "max": float(totals.peak),
            },
            rejected=dict(server.rejections),
            lost=totals.lost,
            turned_away=totals.turned_away,
            target={name: getattr(first, name) for name in costs} if first else None,
            seconds={name: round(value, 4) for name, value in seconds.items()},
            workers=workers,
            digest=model_digest(server),
            held_out=held_out,
            fingerprint=fingerprint,
            functions=settings.functions,
            settings=settings.values(),
            provenance=provenance,
        )


def reached(points: Sequence[Point], target: float | str | None) -> Point | None:
    """The first point whose smoothed metrics reach the target."""
    wanted = parse_target(target)
    if wanted is None:
        return None
    known = (point for point in points if wanted.metric in point.smoothed)
    return next((point for point in known if wanted.reached(point.smoothed)), None)


def sum_metrics(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums over samples from sums over parts of them."""
    sums: Counter[str] = Counter()
    for part in parts:
        for name, value in part.items():
            sums[name] += value  # type: ignore[assignment]
    return dict(sums)


def mean_metrics(parts: Iterable[Mapping[str, float]], count: int) -> dict[str, float]:
    """The means over ``count`` samples from sums over parts of them."""
    return {name: value / count for name, value in sum_metrics(parts).items()}


def model_digest(server: Server) -> str:
    """The digests of x and of x̂: equal for equal models and hidden states, to the bit."""
    return f"{digest(server.x, server.version):016x}{server.hidden.digest:016x}"
