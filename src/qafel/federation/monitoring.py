"""Monitoring of a running server: metrics for Prometheus, health checks, and a status message every second.

/metrics   counters and gauges
/healthz   200 while the process runs
/readyz    200 while it leads and reaches the broker, otherwise 503 and the reason
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import BrokerError
from qafel.federation.nats import Connection
from qafel.federation.state import FederationState
from qafel.federation.subjects import Subjects

Labels = tuple[tuple[str, str], ...]
BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
HELP = {
    "qafel_uploads_accepted_total": ("counter", "Updates that were accepted."),
    "qafel_uploads_rejected_total": ("counter", "Uploads that were rejected, by reason."),
    "qafel_bytes_up_total": ("counter", "Bytes of frames that clients sent."),
    "qafel_bytes_down_total": ("counter", "Bytes of increments, each counted once."),
    "qafel_bytes_downloaded_total": ("counter", "Bytes of frames that clients downloaded, as they report."),
    "qafel_version": ("gauge", "Server steps taken."),
    "qafel_buffer_fill": ("gauge", "Updates in the buffer."),
    "qafel_leases": ("gauge", "Clients that train now."),
    "qafel_log_sequence": ("gauge", "The sequence number of the last upload that was processed."),
    "qafel_checkpoints_total": ("counter", "Checkpoints written."),
    "qafel_checkpoint_seconds_total": ("counter", "Time spent on checkpoints."),
    "qafel_snapshots_total": ("counter", "Snapshots written."),
    "qafel_resyncs_total": ("counter", "Times a client dropped a hidden state that was not the server's."),
    "qafel_evaluation": ("gauge", "Smoothed metrics on held-out samples, by name."),
    "qafel_leader": ("gauge", "1 while this server leads."),
    "qafel_staleness": ("histogram", "Staleness of accepted updates."),
}

LABELLED = {"qafel_uploads_rejected_total", "qafel_evaluation"}
"""Metrics that have no value without a label."""
SILENCE = 10.0
"""``watch`` gives up after this many seconds without a status message."""


class Metrics:
    """Counters and gauges by name and labels."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, Labels]] = Counter()
        self.staleness: Counter[int] = Counter()
        self.ready: Callable[[], str | None] = lambda: "starting"
        """Why the server is not ready, or None."""

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Increase a counter."""
        self.values[f"qafel_{name}", tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.values[f"qafel_{name}", tuple(sorted(labels.items()))] = value  # type: ignore[assignment]

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        lines = []
        for name, (kind, about) in HELP.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += self._histogram(name)
                continue
            values = {labels: value for (which, labels), value in self.values.items() if which == name}
            if not values and name not in LABELLED:
                values = {(): 0}
            for labels, value in sorted(values.items()):
                inside = ",".join(f'{key}="{text}"' for key, text in labels)
                lines.append(f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value!r}")
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines = []
        for edge in BUCKETS:
            below = sum(count for tau, count in self.staleness.items() if tau <= edge)
            lines.append(f'{name}_bucket{{le="{edge}"}} {below}')
        total = sum(tau * count for tau, count in self.staleness.items())
        count = self.staleness.total()
        return [*lines, f'{name}_bucket{{le="+Inf"}} {count}', f"{name}_sum {total}", f"{name}_count {count}"]

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Serve HTTP on this port until the returned server is closed."""
        return await asyncio.start_server(self._answer, host, port, limit=8192)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                line = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                path = line[1].partition("?")[0] if len(line) > 1 and line[0] in ("GET", "HEAD") else ""
                why = self.ready()
                status, body = {
                    "/metrics": ("200 OK", self.text()),
                    "/healthz": ("200 OK", "ok\n"),
                    "/readyz": ("200 OK", "ready\n") if why is None else ("503 Not Ready", f"{why}\n"),
                }.get(path, ("404 Not Found", "try /metrics, /healthz or /readyz\n"))
                data = body.encode() if line and line[0] != "HEAD" else b""
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                writer.write(
                    f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
                )
                await writer.drain()
        writer.close()


class Monitor:
    """Sets the gauges and publishes the status of a server."""

    def __init__(self, name: str, connection: Connection, metrics: Metrics) -> None:
        self._name, self._connection, self._metrics = name, connection, metrics

    def report(self, state: FederationState, *, leases: int, term: int, ended: bool) -> None:
        """Publish how things stand now."""
        tracker, server, plan = state.tracker, state.server, state.plan
        totals, buffered = tracker.totals, server.aggregator.count
        smoothed = totals.points[-1].smoothed if totals.points else {}
        gauges = {
            "version": server.version,
            "buffer_fill": buffered,
            "leases": leases,
            "log_sequence": state.sequence,
            "leader": 1.0,
        }
        for name, value in gauges.items():
            self._metrics.set(name, value)
        for name, value in smoothed.items():
            self._metrics.set("evaluation", value, metric=name)
        status = {
            "name": self._name,
            "version": server.version,
            "uploads": totals.uploads,
            "wanted": plan.uploads,
            "rejected": dict(server.rejections),
            "buffer": [buffered, state.job.buffer_size],
            "staleness": round(tracker.mean_staleness, 2),
            "bytes_up": totals.bytes_up,
            "bytes_down": totals.bytes_down,
            "leases": [leases, plan.concurrency],
            "metrics": smoothed,
            "seconds": round(totals.time, 1),
            "term": term,
            "reason": totals.reason if ended else None,
        }
        sending = self._connection.send(self._connection.subjects.status, msgspec.json.encode(status))
        task = asyncio.ensure_future(sending)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def watch(name: str, broker: str, keys: Path | None = None) -> Iterator[dict[str, Any]]:
    """The status messages of a server, until it has ended; BrokerError if there are none for a while."""
    loop, connection = asyncio.new_event_loop(), None
    try:
        subjects = Subjects(name)
        connection = loop.run_until_complete(Connection.open(broker, subjects, "server", keys=keys))
        messages: asyncio.Queue[bytes] = asyncio.Queue()

        async def receive(message: Any) -> None:
            messages.put_nowait(message.data)

        loop.run_until_complete(connection.subscribe(subjects.status, receive))
        while True:
            try:
                data = loop.run_until_complete(asyncio.wait_for(messages.get(), SILENCE))
            except TimeoutError:
                raise BrokerError(
                    f"no server of the federation {name!r} at {broker} has reported for {SILENCE:.0f} s; "
                    "start one with qafel serve"
                ) from None
            status: dict[str, Any] = msgspec.json.decode(data)
            yield status
            if status["reason"]:
                return
    finally:
        if connection is not None:
            loop.run_until_complete(connection.close())
        loop.close()
