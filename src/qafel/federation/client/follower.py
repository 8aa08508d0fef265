"""QAFeL-client-background: x̂ follows the server's increments (Algorithm 3)."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

from qafel.client import Advanced, Client, Drifted, Ignored, Missed
from qafel.errors import FrameError
from qafel.federation import objects
from qafel.federation.connection import Connection, Notice, retry
from qafel.federation.messages import TERM_BYTES, SnapshotPointer
from qafel.federation.objects import PIECE_TIMEOUT
from qafel.federation.waiting import Backoff
from qafel.hidden import catch_up
from qafel.wire import Rejected

QUIET_SECONDS = 5.0
"""After this time without an increment, check whether one was missed."""
AT_ONCE, WINDOW = 16, 1 << 18
"""The number of increments, and of their bytes, that are requested at a time."""
ATTEMPTS = 4
"""A client that cannot catch up after this many attempts asks the server for a new snapshot."""


class Follower:
    """The hidden state of one client."""

    def __init__(self, connection: Connection, core: Client, *, broadcast: bool, notice: Notice) -> None:
        self._connection, self.core, self._broadcast, self._notice = connection, core, broadcast, notice
        self.bytes_down = self.resyncs = 0
        self.snapshots = self.increments = 0  # frames of each kind that were downloaded
        self.reported = 0
        """The resyncs that the server knows of."""
        self.moved: Callable[[], None] = lambda: None
        """Called when x̂ has moved."""
        self.restarted: Callable[[], None] = lambda: None
        """Called when a server has started."""
        self._confirmed_on = -1
        """The number of reconnections when the server last confirmed our x̂."""
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)

    async def subscribe(self) -> None:
        """Receive increments as they are published."""
        await retry(lambda: self._connection.subscribe(self._connection.subjects.live, self._receive))

    async def _receive(self, message: Any) -> None:
        """Queue an increment, or a manifest of one; a client that is too slow catches up later."""
        if not message.data:
            self.restarted()
            return
        if self._arrived.full():
            self._arrived.get_nowait()
        self._arrived.put_nowait(message.data)

    async def follow(self) -> None:
        """Apply increments as they arrive."""
        await self.catch_up()
        while True:
            data = None
            with contextlib.suppress(TimeoutError):
                data = await asyncio.wait_for(self._arrived.get(), QUIET_SECONDS * random.uniform(0.8, 1.2))
            if data is None:
                await self.catch_up()
                continue
            try:
                event = self._apply(await retry(lambda data=data: self._frame(data)))  # type: ignore[misc]
            except FrameError as error:
                self._notice("refused", detail=str(error))
                continue
            if isinstance(event, Missed | Drifted):
                version = self.core.version
                await self.catch_up()
                if isinstance(event, Missed) and self.core.version == version < event.version:
                    self.resyncs += 1  # the increments between are gone: only a snapshot helps
            self.moved()

    async def _frame(self, data: bytes) -> bytes:
        return await objects.increment(self._connection, data, self.core.frame_limit)

    def _apply(self, frame: bytes) -> Any:
        """Apply a frame of the server; count it, and report what went wrong."""
        self.bytes_down += len(frame)
        event = self.core.apply(frame)
        if isinstance(event, Advanced):
            self.increments += 1
        if isinstance(event, Drifted):
            self.resyncs += 1
            self._notice("drifted", version=event.version)
        if isinstance(event, Rejected):
            self._notice("refused", reason=event.reason, detail=event.detail)
        return event

    async def catch_up(self) -> None:
        """Bring x̂ to the version that the server had a moment ago."""
        backoff, damaged = Backoff(0.05, 1.0), 0
        while True:
            try:
                if await retry(self._newest if self.core.job.replaces else self._sync):
                    break
            except FrameError:  # damaged, or replaced by a newer one since
                damaged += 1
                if damaged % ATTEMPTS == 0:
                    self.resyncs += 1
                    self.restarted()  # ask the server for a snapshot
            if not self._broadcast and self.core.in_sync and self.resyncs > self.reported:
                break  # an increment is damaged: train from this x̂; the next request asks for a snapshot
            await backoff.pause()
        self.moved()

    async def _pointer(self) -> SnapshotPointer | None:
        subjects = self._connection.subjects
        message = await self._connection.last(subjects.keys, subjects.public("snapshot"))
        return SnapshotPointer.from_bytes(message.data[TERM_BYTES:]) if message else None

    async def _sync(self) -> bool:
        """Get to the newest snapshot's version as ``catch_up`` decides, then replay; False: try again."""
        pointer, core = await self._pointer(), self.core
        if pointer is None:
            return False
        before = core.held
        if before is None or before < pointer.version:
            sizes, whole = pointer.increments, pointer.manifest.size
            needed = catch_up(before, pointer.version, sizes, whole, replaces=False)
            replayed = not needed.snapshot and await self._replay(stop=pointer.version)
            # a snapshot precedes its increment by a moment; any other that is missing is gone
            if not replayed or core.version < pointer.version - 1:
                await self._apply_snapshot(pointer)
                if core.version < pointer.version:
                    return False
        if not await self._replay():
            return False
        if core.held != before:
            self._confirmed_on = self._connection.reconnects
        return await self._confirm(pointer)

    async def _apply_snapshot(self, pointer: SnapshotPointer) -> None:
        connection, subjects = self._connection, self._connection.subjects
        subject, limit = subjects.object("snapshot"), self.core.frame_limit
        frame = await objects.get(connection, subjects.objects, subject, pointer.manifest, limit)
        self.snapshots += 1
        self.bytes_down += len(frame)
        self.core.apply(frame)

    async def _confirm(self, pointer: SnapshotPointer) -> bool:
        """Check that the server has our x̂, unless this connection proved it; if not, drop it."""
        core = self.core
        if self._confirmed_on == self._connection.reconnects:
            return True
        if core.version == pointer.version:
            same = core.hidden.digest == pointer.digest
        else:
            message = await self._connection.get(self._connection.subjects.increments, core.version)
            same = message is not None and isinstance(self._apply(await self._frame(message.data)), Ignored)
        if not same:
            self._reset(pointer.version)
        self._confirmed_on = self._connection.reconnects
        return same

    def _reset(self, version: int) -> None:
        """Drop an x̂ that the server, restored to an older version, does not have."""
        self._notice("ahead", version=self.core.version, server=version)
        self.resyncs += 1
        self.core.reset()

    async def _replay(self, stop: int | None = None) -> bool:
        """Apply the increments that follow, up to ``stop``; False if one does not lead to its version."""
        stream, many = self._connection.subjects.increments, 1
        while stop is None or self.core.version < stop:
            first = self.core.version + 1
            end = first + many if stop is None else min(first + many, stop + 1)
            wanted = (self._connection.get(stream, v, PIECE_TIMEOUT) for v in range(first, end))
            messages = await asyncio.gather(*wanted)
            for message in messages:
                if message is None:
                    return True
                frame = await self._frame(message.data)
                event = self._apply(frame)
                if isinstance(event, Rejected):
                    self.resyncs += 1  # damaged in the broker: a snapshot will lead past it
                if not isinstance(event, Advanced | Ignored):
                    return False
                many = max(1, min(AT_ONCE, WINDOW // len(frame)))
        return True

    async def _newest(self) -> bool:
        """Where an increment replaces x̂, apply the newest; the snapshot of x⁰ where there is none yet."""
        subjects, core = self._connection.subjects, self.core
        request = json.dumps({"last_by_subj": subjects.increment()}).encode()
        last = await self._connection.find(f"$JS.API.DIRECT.GET.{subjects.increments}", request)
        if last is not None:
            if core.in_sync and core.version > last.sequence:
                self._reset(last.sequence)
            self._apply(await self._frame(last.data))
        elif not core.in_sync and (pointer := await self._pointer()) is not None:
            await self._apply_snapshot(pointer)
        return core.in_sync
