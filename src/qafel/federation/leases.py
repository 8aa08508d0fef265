"""Leases: which clients train now. They decide who is asked to train, never which update is accepted."""

import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from qafel.federation.monitoring import Metrics
from qafel.federation.plan import Plan
from qafel.federation.state import FederationState
from qafel.federation.subjects import owner

MAX_WAIT = 5.0
"""A client that is turned away asks again within this many seconds."""
Journal = Callable[..., None]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A client is free; ``task`` is the next task number that it has not used.

    Since its last request it had to drop its hidden state ``resyncs`` times, and downloaded so many bytes.
    """

    task: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    resyncs: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    downloaded: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0


class Lease(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """Train ``task``; after ``seconds`` another client may be asked. The server is at ``version``."""

    task: int
    seconds: float
    version: int = 0


class Wait(msgspec.Struct, frozen=True, array_like=True, tag="wait"):
    """Ask again after this many seconds."""

    seconds: float


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The training has ended."""

    reason: str


Reply = Lease | Wait | Done


class _Held(NamedTuple):
    task: int
    until: float


class Leases:
    """At most ``limit`` leases at a time, and ``rest`` seconds between two leases of one client."""

    def __init__(self, limit: int, seconds: float, rest: float) -> None:
        self.limit, self.seconds, self.rest = limit, seconds, rest
        self._held: dict[int, _Held] = {}
        self._resting: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._held)

    def ask(self, client: int, task: int, now: float) -> Lease | Wait:
        """Grant a lease for ``task``, or say how long to wait; a client that asks again gets a new lease."""
        self.expire(now)
        if client in self._held:
            self._held.pop(client)  # it asks, so it does not train: it restarted, or the answer was lost
        else:
            rest = self._resting.get(client, now) - now
            if rest > 0:
                return Wait(rest)
        if len(self._held) >= self.limit:
            soonest = min(held.until for held in self._held.values())
            return Wait(min(MAX_WAIT, max(0.05, soonest - now)))
        self._held[client] = _Held(task, now + self.seconds)
        return Lease(task, self.seconds)

    def release(self, client: int, task: int, now: float) -> None:
        """End a client's lease: the update of ``task`` arrived."""
        held = self._held.get(client)
        if held is not None and held.task <= task:
            del self._held[client]
        if self.rest:
            self._resting[client] = now + self.rest

    def expire(self, now: float) -> None:
        """Drop leases that have run out, and rests that are over."""
        for client in [client for client, held in self._held.items() if held.until <= now]:
            del self._held[client]
        if len(self._resting) > 2 * self.limit:
            self._resting = {client: until for client, until in self._resting.items() if until > now}


class LeaseDesk:
    """Answers the lease requests of clients."""

    def __init__(self, plan: Plan, metrics: Metrics, journal: Journal) -> None:
        self._metrics, self._journal = metrics, journal
        self.leases = Leases(plan.concurrency, plan.lease_seconds, plan.rest_seconds)
        self.state: FederationState | None = None
        self.version = 0
        """The newest version in the broker."""
        self.ended = False
        """Whether the result is stored, and clients may leave."""
        self.snapshot_wanted = False
        """Whether a client could not follow the increments."""

    async def answer(self, message: Any) -> None:
        """Answer one request; requests that cannot be read are ignored."""
        client, state = owner(message.subject), self.state
        try:
            ask = msgspec.msgpack.decode(message.data, type=Ask)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if client is None or state is None:
            return
        if ask.resyncs:
            self._metrics.add("resyncs_total", ask.resyncs)
            self._journal("resync", client=client, times=ask.resyncs)
            self.snapshot_wanted = True
        state.tracker.downloaded(ask.downloaded)
        self._metrics.add("bytes_downloaded_total", ask.downloaded)
        await message.respond(msgspec.msgpack.encode(self._reply(state, client, ask.task)))

    def _reply(self, state: FederationState, client: int, task: int) -> Reply:
        reason = state.tracker.reason
        if reason is not None:
            return Done(reason) if self.ended else Wait(0.2)
        reply = self.leases.ask(client, max(task, state.server.seen.next(client)), time.monotonic())
        return msgspec.structs.replace(reply, version=self.version) if isinstance(reply, Lease) else reply
