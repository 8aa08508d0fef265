"""Leases: which clients train now. They decide who is asked, never what is accepted."""

from typing import Annotated, NamedTuple

import msgspec

LAST_MOMENTS = 5.0
"""A client that is turned away asks again within this many seconds."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A client is free; ``number`` is the next task number it has not used. Since it asked last, its x̂ was
    not the server's ``resyncs`` times, and it downloaded so many bytes.
    """

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
    resyncs: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    downloaded: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0


class Lease(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """Train task ``number``; after ``seconds`` somebody else may be asked. The server is at ``version``."""

    number: int
    seconds: float
    version: int = 0


class Wait(msgspec.Struct, frozen=True, array_like=True, tag="wait"):
    """Ask again after so many seconds."""

    seconds: float


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The training has ended."""

    reason: str


Reply = Lease | Wait | Done


class _Held(NamedTuple):
    number: int
    until: float


class Leases:
    """At most ``limit`` at a time, and ``rest`` seconds between two of one client."""

    def __init__(self, limit: int, seconds: float, rest: float) -> None:
        self.limit, self.seconds, self.rest = limit, seconds, rest
        self._held: dict[int, _Held] = {}
        self._rested: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._held)

    def ask(self, client: int, number: int, now: float) -> Lease | Wait:
        """A lease for task ``number``; a client that asks again gets the one it has."""
        self.expire(now)
        if client in self._held:
            self._held.pop(client)  # it asks, so it is not training: a restart, or an answer that got lost
        else:
            tired = self._rested.get(client, now) - now
            if tired > 0:
                return Wait(tired)
        if len(self._held) >= self.limit:
            soonest = min(held.until for held in self._held.values())
            return Wait(min(LAST_MOMENTS, max(0.05, soonest - now)))
        self._held[client] = _Held(number, now + self.seconds)
        return Lease(number, self.seconds)

    def release(self, client: int, number: int, now: float) -> None:
        """The update of a task arrived."""
        held = self._held.get(client)
        if held is not None and held.number <= number:
            del self._held[client]
        if self.rest:
            self._rested[client] = now + self.rest

    def expire(self, now: float) -> None:
        """Forget leases that have run out, and clients that have rested."""
        for client in [client for client, held in self._held.items() if held.until <= now]:
            del self._held[client]
        if len(self._rested) > 2 * self.limit:
            self._rested = {client: until for client, until in self._rested.items() if until > now}
