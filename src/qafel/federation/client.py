"""A client of a federation: it follows x̂ in the background while it trains (Algorithms 2 and 3).

Its folder keeps x̂ with its version, and the update that is not acknowledged yet. A client that was killed
continues from there, and never trains a task again whose update was sent.
"""

import asyncio
import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec

from qafel import files, vectors, wire
from qafel.client import Advanced, Client, Drifted, Ignored, Missed, Trainer, assign
from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.increments import SnapshotPointer
from qafel.federation.leader import TERM_BYTES
from qafel.federation.leases import Ask, Done, Journal, Lease, Reply, Wait
from qafel.federation.nats import Connection, retry
from qafel.federation.objects import PIECE_TIMEOUT, Manifest, frame_size, is_manifest
from qafel.hidden import catch_up
from qafel.wire import Rejected

QUIET_SECONDS = 5.0
"""After this time without an increment, check whether one was missed."""
SAVE_SECONDS = 5.0
AT_ONCE, WINDOW = 16, 1 << 18
"""The number of increments, and of their bytes, that are requested at a time."""
_reply: "msgspec.msgpack.Decoder[Reply]" = msgspec.msgpack.Decoder(Reply)


class FederationClient:
    """One client."""

    def __init__(
        self,
        connection: Connection,
        job: Job,
        client: int,
        trainer: Trainer,
        *,
        broadcast: bool = True,
        state: Path | None = None,
        journal: Journal = lambda event, **fields: None,  # noqa: ARG005
    ) -> None:
        self._connection, self._trainer, self._folder, self._journal = connection, trainer, state, journal
        self._broadcast = broadcast
        self.core = self._restore(job, client)
        self.tasks = self.bytes_up = self.bytes_down = self.resyncs = 0
        self.snapshots = self.increments = 0  # frames of each kind that were downloaded
        self.reason: str | None = None
        """Why the training has ended."""
        self._reported = (0, 0)  # the resyncs and bytes that the server knows of
        self._saved_at = 0.0
        self._confirmed_on = -1
        """The number of reconnections when the server last confirmed our x̂."""
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)

    def _restore(self, job: Job, client: int) -> Client:
        """The client from the folder, or a new one."""
        path = self._folder / "client.bin" if self._folder else None
        if path is not None and path.exists():
            try:
                core = Client.from_state(path.read_bytes())
            except StateError as error:
                self._journal("state refused", detail=str(error))
            else:
                if (core.job.id, core.client) == (job.id, client):
                    return core
                raise ConfigError(
                    f"{self._folder} holds client {core.client} of job {core.job.id:016x}, "
                    f"not client {client} of {job.id:016x}; choose another --state"
                )
        return Client(job, client=client)

    async def run(self, tasks: int | None = None) -> None:
        """Follow and train until the training has ended, or for so many tasks."""
        jobs = {asyncio.create_task(self._work(tasks))}
        if self._broadcast:
            live = self._connection.subjects.live
            await retry(lambda: self._connection.subscribe(live, self._receive))
            jobs.add(asyncio.create_task(self.follow()))
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in jobs:
                task.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            self.save(now=True)

    # --- following x̂ ---

    async def _receive(self, message: Any) -> None:
        """Queue an increment, or a manifest of one; a client that is too slow catches up later."""
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
                self._journal("refused", detail=str(error))
                continue
            if isinstance(event, Missed | Drifted):
                version = self.core.version
                await self.catch_up()
                if isinstance(event, Missed) and self.core.version == version < event.version:
                    self.resyncs += 1  # the increments between are gone: only a snapshot helps
            self.save()

    async def _frame(self, data: bytes) -> bytes:
        return await self._object(Manifest.from_bytes(data)) if is_manifest(data) else data

    async def _object(self, manifest: Manifest) -> bytes:
        root = self._connection.subjects.public("object")
        return await objects.get(self._connection, root, manifest, self.core.frame_limit)

    def _apply(self, frame: bytes) -> Any:
        """Apply a frame of the server; count it, and report what went wrong."""
        self.bytes_down += len(frame)
        event = self.core.apply(frame)
        if isinstance(event, Advanced):
            self.increments += 1
        if isinstance(event, Drifted):
            self.resyncs += 1
            self._journal("drifted", version=event.version)
        if isinstance(event, Rejected):
            self._journal("refused", reason=event.reason, detail=event.detail)
        return event

    async def catch_up(self) -> None:
        """Bring x̂ to the version that the server had a moment ago."""
        wait = 0.05
        while True:
            with contextlib.suppress(FrameError):  # damaged, or replaced by a newer one since
                if await retry(self._newest if self.core.job.replaces else self._sync):
                    break
            if not self._broadcast and self.core.in_sync and self.resyncs > self._reported[0]:
                break  # an increment is damaged: train from this x̂; the next request asks for a snapshot
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, 1.0)
        self.save()

    async def _pointer(self) -> SnapshotPointer | None:
        subjects = self._connection.subjects
        message = await self._connection.last(subjects.objects, subjects.public("snapshot"))
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
        frame = await self._object(pointer.manifest)
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
        self._journal("ahead", version=self.core.version, server=version)
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
                event = self._apply(await self._frame(message.data))
                if isinstance(event, Rejected):
                    self.resyncs += 1  # damaged in the broker: a snapshot will lead past it
                if not isinstance(event, Advanced | Ignored):
                    return False
                many = max(1, min(AT_ONCE, WINDOW // frame_size(message.data)))
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

    # --- training ---

    async def _work(self, tasks: int | None) -> None:
        await self._deliver_saved()
        while tasks is None or self.tasks < tasks:
            if self._broadcast and not self.core.in_sync:
                await asyncio.sleep(0.02)
                continue
            reply = await retry(self._ask, lambda error: self._journal("waiting", detail=str(error)))
            if isinstance(reply, Done):
                await self.catch_up()
                self.reason = reply.reason
                return
            if isinstance(reply, Wait):
                await asyncio.sleep(reply.seconds * random.uniform(1, 1.2))
                continue
            if not self._broadcast and self.core.held != reply.version:
                await self.catch_up()
                self.resyncs += self.core.version < reply.version  # increments are gone: ask for a snapshot
            if self.core.in_sync:
                await self._train(reply)

    async def _ask(self) -> Reply:
        """Ask for a lease; if the server does not answer, check whether the training has ended."""
        resyncs, downloaded = self.resyncs, self.bytes_down
        ask = Ask(self.core.next_task, resyncs - self._reported[0], downloaded - self._reported[1])
        subject = self._connection.subjects.ask(self.core.client)
        try:
            answer = await self._connection.request(subject, msgspec.msgpack.encode(ask))
        except BrokerError:
            reason = await self._ended()
            if reason is None:
                raise
            return Done(reason)
        self._reported = resyncs, downloaded
        try:
            return wire.unpack(answer.data, _reply)
        except FrameError as error:
            raise BrokerError(f"the server's answer cannot be read: {error}") from error

    async def _train(self, lease: Lease) -> None:
        core = self.core
        task = assign(core.job, core.client, lease.task, core.version, vectors.copy(core.hidden.x))
        began = time.monotonic()
        frame = await asyncio.to_thread(core.train_task, task, self._trainer)
        seconds = round(time.monotonic() - began, 3)
        self._journal("trained", task=task.task, version=task.version, seconds=seconds)
        core.next_task = lease.task + 1
        if self._folder is not None:
            files.write(self._folder / "upload.bin", frame)
            self.save(now=True)
        await self._deliver(frame)

    async def _deliver_saved(self) -> None:
        """Send the update that was not acknowledged before the client was stopped."""
        path = self._folder / "upload.bin" if self._folder else None
        if path is not None and path.exists():
            frame = path.read_bytes()
            with contextlib.suppress(FrameError):
                update = wire.decode(frame)
                if isinstance(update, wire.Update) and update.job == self.core.job.id:
                    self.core.next_task = max(self.core.next_task, update.task + 1)
                    await self._deliver(frame)
            path.unlink(missing_ok=True)

    async def _deliver(self, frame: bytes) -> None:
        """Send an update, under the same message id, until the broker has acknowledged it."""
        task = self.core.next_task - 1
        if not await retry(lambda: self._send(frame)):
            self._journal("too late", task=task)
            return
        self._journal("acknowledged", bytes=len(frame), task=task)
        self.tasks += 1
        self.bytes_up += len(frame)
        if self._folder is not None:
            (self._folder / "upload.bin").unlink(missing_ok=True)

    async def _send(self, frame: bytes) -> bool:
        """Send an update once; False if the training has ended and it is no longer wanted."""
        connection, client, data = self._connection, self.core.client, frame
        subjects = connection.subjects
        headers = {"Nats-Msg-Id": f"{client}-{wire.fingerprint(frame):016x}"}
        try:
            if len(frame) > connection.max_payload - 4096:
                manifest = await objects.put(connection, subjects.chunk(client, "object"), frame)
                data = manifest.to_bytes()
            await connection.publish(subjects.upload(client), data, headers=headers)
        except BrokerError:
            if await self._ended() is None:
                raise
            return False
        return True

    async def _ended(self) -> str | None:
        """Why the training has ended, or None."""
        subjects = self._connection.subjects
        done = await self._connection.last(subjects.objects, subjects.public("done"))
        return done.data.decode(errors="replace") if done else None

    def save(self, *, now: bool = False) -> None:
        """Save x̂ and the next task number, at most every SAVE_SECONDS unless ``now``."""
        if self._folder is not None and (now or time.monotonic() - self._saved_at > SAVE_SECONDS):
            files.write(self._folder / "client.bin", self.core.state())
            self._saved_at = time.monotonic()
