"""Checkpoints of the server: in the broker, where a standby reads them, and in the server's folder.

A new checkpoint is stored and acknowledged before the pointer moves to it; the previous one is kept.
"""

import contextlib
from collections.abc import Callable
from typing import ClassVar

from qafel import wire
from qafel.config import Job
from qafel.errors import FormatError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.increments import Increments
from qafel.federation.leader import FencedKey
from qafel.federation.nats import Connection
from qafel.federation.objects import Manifest
from qafel.federation.plan import Plan
from qafel.federation.state import FederationState
from qafel.runs.folder import RunFolder


class Pointer(wire.Sealed, frozen=True):
    """The newest checkpoint and the previous one."""

    MAGIC: ClassVar[bytes] = b"QK"

    newest: Manifest
    previous: Manifest | None


class Checkpoints:
    """The checkpoints of one federation."""

    def __init__(self, connection: Connection, folder: RunFolder) -> None:
        self._connection, self._folder = connection, folder
        self._root = connection.subjects.private("object")
        self.key = FencedKey(connection, connection.subjects.private("checkpoint"))
        self._pointer: Pointer | None = None

    async def lead(self, term: int) -> None:
        """Take over the pointer: a former leader can no longer write checkpoints."""
        self.key.term = term
        self._read(await self.key.take_over())

    def _read(self, data: bytes | None) -> None:
        self._pointer = None
        try:
            self._pointer = Pointer.from_bytes(data) if data else None
        except FormatError as error:
            raise StateError(f"the broker holds checkpoints of another version: {error}") from error
        except FrameError:
            pass  # damaged: the folder has a copy

    @property
    def digests(self) -> set[str]:
        """The digests of the objects that are still needed."""
        if self._pointer is None:
            return set()
        return {m.digest for m in (self._pointer.newest, self._pointer.previous) if m is not None}

    async def load(self, limit: int) -> list[bytes]:
        """The checkpoints that can be read: newest, previous, the folder's."""
        checkpoints: list[bytes] = []
        if not self.key.term:
            self._read(await self.key.read())
        if self._pointer is not None:
            for manifest in (self._pointer.newest, self._pointer.previous):
                if manifest is not None:
                    with contextlib.suppress(FrameError):
                        checkpoints.append(await objects.get(self._connection, self._root, manifest, limit))
        cached = self._folder.checkpoint()
        return [*checkpoints, cached] if cached is not None else checkpoints

    async def states(
        self, plan: Plan, job: Job, increments: Increments, journal: Callable[..., None]
    ) -> list[FederationState]:
        """The states in the checkpoints, without those that contradict the increments in the broker."""
        states: list[FederationState] = []
        for data in await self.load(limit=1 << 34):
            try:
                state = FederationState.from_state(plan, job, data)
            except (StateError, FrameError) as error:
                journal("checkpoint refused", detail=str(error))
                continue
            if await increments.agrees(state.server):
                states.append(state)
            else:
                journal("checkpoint refused", detail="it contradicts the increments")
        return states

    async def save(self, data: bytes) -> None:
        """Write a checkpoint; it is durable when this returns."""
        before = self._pointer
        manifest = await objects.put(self._connection, self._root, data)
        if before is not None and before.newest.digest == manifest.digest:
            return
        pointer = Pointer(manifest, before.newest if before else None)
        await self.key.write(pointer.to_bytes())
        self._pointer = pointer
        self._folder.save(data)
        old = before.previous if before else None
        if old is not None and old.digest not in self.digests:
            await objects.remove(self._connection, self._root, old)
