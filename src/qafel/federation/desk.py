"""The server's desk: answers clients that are free, and says every second how things stand."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from qafel.federation.leases import Ask, Done, Lease, Leases, Reply, Wait
from qafel.federation.monitoring import Metrics
from qafel.federation.nats import Connection
from qafel.federation.plan import Plan
from qafel.federation.state import FederationState
from qafel.federation.subjects import owner

Journal = Callable[..., None]


class Desk:
    """Leases for clients, gauges and a status line for whoever watches."""

    def __init__(self, plan: Plan, link: Connection, metrics: Metrics, journal: Journal) -> None:
        self._plan, self._link, self._metrics, self._journal = plan, link, metrics, journal
        self.leases = Leases(plan.concurrency, plan.lease_seconds, plan.rest_seconds)
        self.fold: FederationState | None = None
        self.version = 0
        """The last version in the broker."""
        self.ended = False
        """Whether everything is written down, and clients may leave."""
        self.snapshot_wanted = False
        """Whether a client could not follow the increments."""

    async def asked(self, message: Any) -> None:
        """Answer a client that is free."""
        client, fold = owner(message.subject), self.fold
        try:
            ask = msgspec.msgpack.decode(message.data, type=Ask)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if client is None or fold is None:
            return
        if ask.resyncs:
            self._metrics.add("resyncs_total", ask.resyncs)
            self._journal("resync", client=client, times=ask.resyncs)
            self.snapshot_wanted = True
        fold.downloaded = min(fold.downloaded + ask.downloaded, 1 << 60)
        self._metrics.add("bytes_downloaded_total", ask.downloaded)
        await message.respond(msgspec.msgpack.encode(self._reply(fold, client, ask.number)))

    def _reply(self, fold: FederationState, client: int, number: int) -> Reply:
        if fold.reason is not None:
            return Done(fold.reason) if self.ended else Wait(0.2)
        reply = self.leases.ask(client, max(number, fold.server.seen.next(client)), time.monotonic())
        return msgspec.structs.replace(reply, version=self.version) if isinstance(reply, Lease) else reply

    def report(self, term: int) -> None:
        """Gauges, and a line for whoever watches."""
        fold = self.fold
        if fold is None:
            return
        self.leases.expire(time.monotonic())
        last = fold.points[-1] if fold.points else None
        buffered = fold.server.aggregator.count
        for name, value in (
            ("version", fold.server.version),
            ("buffer_fill", buffered),
            ("leases", len(self.leases)),
            ("log_sequence", fold.sequence),
            ("accuracy", last.smoothed if last else 0.0),
            ("leader", 1.0),
        ):
            self._metrics.set(name, value)
        status = {
            "name": self._plan.name,
            "version": fold.server.version,
            "uploads": fold.uploads,
            "wanted": self._plan.uploads,
            "rejected": dict(fold.server.rejections),
            "buffer": [buffered, fold.job.buffer_size],
            "staleness": round(fold.mean_staleness, 2),
            "bytes_up": fold.bytes_up,
            "bytes_down": fold.received,
            "leases": [len(self.leases), self._plan.concurrency],
            "accuracy": last.smoothed if last else None,
            "seconds": round(fold.seconds, 1),
            "term": term,
            "reason": fold.reason if self.ended else None,
        }
        sending = self._link.nc.publish(self._link.names.status, msgspec.json.encode(status))
        task = asyncio.ensure_future(sending)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
