"""What a running server counts, for Prometheus, and its health: a few lines of HTTP on loopback.

/metrics   counters and gauges
/healthz   200 while the process is well
/readyz    200 while it leads and the broker is there, otherwise 503 and why
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

Labels = tuple[tuple[str, str], ...]
BUCKETS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
HELP = {
    "qafel_uploads_accepted_total": ("counter", "Updates in the buffer or in the model."),
    "qafel_uploads_rejected_total": ("counter", "Uploads that were not taken, by reason."),
    "qafel_bytes_up_total": ("counter", "Bytes of frames that clients sent."),
    "qafel_bytes_down_total": ("counter", "Bytes of increments, each counted once."),
    "qafel_bytes_downloaded_total": ("counter", "Bytes of frames that clients downloaded, as they report."),
    "qafel_version": ("gauge", "Server steps taken."),
    "qafel_buffer_fill": ("gauge", "Updates in the buffer."),
    "qafel_leases": ("gauge", "Clients that train now."),
    "qafel_log_sequence": ("gauge", "The last upload that was taken in."),
    "qafel_checkpoints_total": ("counter", "Checkpoints written."),
    "qafel_checkpoint_seconds_total": ("counter", "Time spent on checkpoints."),
    "qafel_snapshots_total": ("counter", "Snapshots written."),
    "qafel_resyncs_total": ("counter", "Times a client reported that its hidden state was not the server's."),
    "qafel_accuracy": ("gauge", "Smoothed accuracy on held-out samples."),
    "qafel_leader": ("gauge", "1 while this server leads."),
    "qafel_staleness": ("histogram", "Staleness of accepted updates."),
}


class Metrics:
    """Numbers by name and labels."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, Labels]] = Counter()
        self.staleness: Counter[int] = Counter()
        self.ready: Callable[[], str | None] = lambda: "starting"
        """Why the server is not ready, or None."""

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count."""
        self.values[f"qafel_{name}", tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def set(self, name: str, value: float) -> None:
        """A gauge's value."""
        self.values[f"qafel_{name}", ()] = value  # type: ignore[assignment]

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines = []
        for name, (kind, about) in HELP.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += self._histogram(name)
                continue
            found = {labels: value for (which, labels), value in self.values.items() if which == name}
            if not found and name != "qafel_uploads_rejected_total":
                found = {(): 0}
            for labels, value in sorted(found.items()):
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
        """Answer on this port until the server is closed."""
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
