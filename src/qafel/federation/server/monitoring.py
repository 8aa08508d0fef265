"""Monitoring of a running server: metrics for Prometheus, health checks, and a status message every second.

/metrics   counters and gauges
/healthz   200 while the process runs
/readyz    200 while it leads and reaches the broker, otherwise 503 and the reason
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from qafel.errors import BrokerError
from qafel.federation.connection import Connection, Notice
from qafel.federation.server.leases import Leases
from qafel.federation.server.state import FederationState
from qafel.server import Dropped, Event, Stepped
from qafel.wire import Rejected

Labels = tuple[tuple[str, str], ...]
BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
HELP = {
    "qafel_uploads_accepted_total": ("counter", "Updates that were accepted."),
    "qafel_uploads_rejected_total": ("counter", "Uploads that were rejected, by reason."),
    "qafel_buffers_dropped_total": ("counter", "Buffers that were dropped because their step diverged."),
    "qafel_bytes_up_total": ("counter", "Bytes of frames that clients sent."),
    "qafel_bytes_down_total": ("counter", "Bytes of increments, each counted once."),
    "qafel_bytes_downloaded_total": ("counter", "Bytes of frames that clients downloaded, as they report."),
    "qafel_version": ("gauge", "Server steps taken."),
    "qafel_buffer_fill": ("gauge", "Updates in the buffer."),
    "qafel_leases": ("gauge", "Tasks in flight."),
    "qafel_clients": ("gauge", "Clients that were heard in the last minute."),
    "qafel_log_sequence": ("gauge", "The sequence number of the last entry of the log that was processed."),
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
REPORT_SECONDS = 10.0
"""The rejections of one client are reported once in this time."""
MAX_ROWS = 10_000
"""The table of clients has at most this many rows."""


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
                inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines = []
        for edge in BUCKETS:
            below = sum(count for tau, count in self.staleness.items() if tau <= edge)
            lines.append(f'{name}_bucket{{le="{edge}"}} {below}')
        total = sum(tau * count for tau, count in self.staleness.items())
        count = self.staleness.total()
        return [*lines, f'{name}_bucket{{le="+Inf"}} {count}', f"{name}_sum {total}", f"{name}_count {count}"]

    async def serve(self, port: int) -> asyncio.Server:
        """Serve HTTP on this port of loopback until the returned server is closed."""
        return await asyncio.start_server(self._answer, "127.0.0.1", port, limit=8192)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                line = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                path = line[1].partition("?")[0] if len(line) > 1 and line[0] in ("GET", "HEAD") else ""
                why = self.ready()
                self.set("leader", float(why != "it does not lead"))
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


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Monitor:
    """Counts what the tracker does not, sets the metrics, and publishes the status of a server."""

    def __init__(self, connection: Connection, metrics: Metrics) -> None:
        self._connection, self.metrics = connection, metrics
        self._status: dict[str, Any] = {}
        self._rejected: dict[int | None, Counter[str]] = {}
        self._reported: dict[int | None, float] = {}
        self.saved_at: float | None = None
        """When the last checkpoint was saved."""

    def event(self, event: Event, client: int | None, notice: Notice) -> None:
        """Count an event of the server; the rejections of one client are reported now and then."""
        if isinstance(event, Stepped):
            self.metrics.add("bytes_down_total", len(event.frame))
        elif isinstance(event, Dropped):
            self.metrics.add("buffers_dropped_total")
            notice("dropped a buffer", version=event.version, updates=event.count, reason=event.reason)
        elif isinstance(event, Rejected):
            reasons = self._rejected.setdefault(client, Counter())
            reasons[event.reason] += 1
            now = time.monotonic()
            if now - self._reported.get(client, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported[client] = now
                notice(
                    "rejected",
                    client=client,
                    reason=event.reason,
                    detail=event.detail,
                    so_far=reasons.total(),
                )

    async def report(self, state: FederationState, leases: Leases, term: int) -> None:
        """Publish how things stand now."""
        tracker, server, plan, now = state.tracker, state.server, state.plan, time.monotonic()
        totals, buffered = tracker.totals, server.aggregator.count
        smoothed = totals.points[-1].smoothed if totals.points else {}
        self.metrics.staleness = Counter(totals.staleness)
        values: dict[str, float] = {
            "uploads_accepted_total": self.metrics.staleness.total(),
            "version": server.version,
            "buffer_fill": buffered,
            "leases": leases.in_flight,
            "clients": sum(now - heard < 60 for heard in leases.seen.values()),
            "log_sequence": state.sequence,
            "bytes_up_total": totals.bytes_up,
            "bytes_downloaded_total": 0 if plan.downlink == "broadcast" else totals.bytes_down,
        }
        for name, value in values.items():
            self.metrics.set(name, value)
        for reason, count in server.rejections.items():
            self.metrics.set("uploads_rejected_total", count, reason=reason)
        for name, value in smoothed.items():
            self.metrics.set("evaluation", value, metric=name)
        self._status = {
            "name": plan.name,
            "version": server.version,
            "uploads": totals.uploads,
            "wanted": plan.uploads,
            "rejected": dict(server.rejections),
            "buffer": [buffered, state.job.buffer_size],
            "staleness": round(tracker.mean_staleness, 2),
            "bytes_up": totals.bytes_up,
            "bytes_down": totals.bytes_down,
            "leases": [leases.in_flight, plan.concurrency],
            "clients": int(values["clients"]),
            "metrics": smoothed,
            "seconds": round(totals.time, 1),
            "term": term,
            "sequence": state.sequence,
            "checkpoint": None if self.saved_at is None else round(now - self.saved_at, 1),
            "reason": leases.ended,
        }
        with contextlib.suppress(BrokerError):
            await self._connection.send(self._connection.subjects.status, msgspec.json.encode(self._status))

    async def store(self, state: FederationState, leases: Leases) -> None:
        """Keep the status, the evaluations and the table of clients where an observer can read them."""
        if not self._status:
            return
        subjects, room = self._connection.subjects, self._connection.room
        values = {
            "status": self._status,
            "clients": self._clients(state, leases),
            "points": state.tracker.points,
        }
        for key, value in values.items():
            data = msgspec.json.encode(value)
            if len(data) <= room:
                await self._connection.publish(subjects.report(key), data)

    def _clients(self, state: FederationState, leases: Leases) -> list[list[Any]]:
        """The table of clients.

        A row has the client, the seconds since it was heard, its decided tasks, why the last one was rejected
        (empty: it was counted), its rejections by reason, and how many versions ago its newest lease was
        granted.
        """
        now, version = time.monotonic(), state.server.version
        return [
            [
                client,
                round(now - heard, 1),
                state.last(client).task + 1,
                state.last(client).reason,
                dict(self._rejected.get(client, {})),
                version - leases.granted[client] if client in leases.granted else None,
            ]
            for client, heard in list(leases.seen.items())[:MAX_ROWS]
        ]
