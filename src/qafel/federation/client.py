"""A client of a federation: the background task follows x̂ while local training runs (Algorithms 2 and 3).

Its folder keeps x̂ with its version, and the update that is not acknowledged yet: killed anywhere, it goes on
from there, and no update is trained twice that was sent once.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel import vectors, wire
from qafel.client import Advanced, Client, Drifted, Ignored, Missed, Task, Trainer, assign
from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.increments import Newest
from qafel.federation.leases import Ask, Done, Lease, Reply, Wait
from qafel.federation.nats import Connection, patiently
from qafel.federation.objects import SLOW, Manifest, is_manifest
from qafel.federation.register import TERM
from qafel.wire import Rejected

QUIET = 5.0
"""Without news for so many seconds, look whether some got lost."""
SAVE_SECONDS = 5.0
AT_ONCE, WINDOW = 16, 1 << 18
"""Increments, and bytes of them, asked for at a time."""
Journal = Callable[..., None]
_reply: "msgspec.msgpack.Decoder[Reply]" = msgspec.msgpack.Decoder(Reply)


class FederationClient:
    """One client."""

    def __init__(
        self,
        link: Connection,
        job: Job,
        client: int,
        trainer: Trainer,
        *,
        broadcast: bool = True,
        state: Path | None = None,
        journal: Journal = lambda event, **fields: None,  # noqa: ARG005
    ) -> None:
        self._link, self._trainer, self._folder, self._journal = link, trainer, state, journal
        self._broadcast = broadcast
        self.core = self._restore(job, client)
        self.tasks = self.bytes_up = self.bytes_down = self.resyncs = 0
        self.snapshots = self.increments = 0
        """Frames of each kind that were downloaded."""
        self.reason: str | None = None
        """Why the training has ended."""
        self._reported = (0, 0)
        """Resyncs and bytes that the server knows of."""
        self._saved = 0.0
        self._checked = -1
        """The connection over which the server has confirmed our x̂."""
        self._limit = max(self.core.server_quantizer.max_bytes(job.size), 4 * job.size) + wire.MAX_OVERHEAD
        self._news: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=64)

    def _restore(self, job: Job, client: int) -> Client:
        """Where we were; anew where there is nothing, or something else."""
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
        """Follow and train until the server says that it is done, or for so many tasks."""
        jobs = {asyncio.create_task(self._work(tasks))}
        if self._broadcast:
            await patiently(lambda: self._link.listen(self._link.names.live, self._heard))
            jobs.add(asyncio.create_task(self._follow()))
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in jobs:
                task.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            self._save(now=True)

    # --- following x̂ ---

    async def _heard(self, message: Any) -> None:
        """An increment, or a manifest of one; whoever is too slow catches up later."""
        if self._news.full():
            self._news.get_nowait()
        self._news.put_nowait(message.data)

    async def _follow(self) -> None:
        await self._catch_up()
        while True:
            data = None
            with contextlib.suppress(TimeoutError):
                data = await asyncio.wait_for(self._news.get(), QUIET * random.uniform(0.8, 1.2))
            if data is None:
                await self._catch_up()
                continue
            try:
                event = self._apply(await patiently(lambda data=data: self._frame(data)))  # type: ignore[misc]
            except FrameError as error:
                self._journal("refused", detail=str(error))
                continue
            if isinstance(event, Missed | Drifted):
                version = self.core.version
                await self._catch_up()
                if isinstance(event, Missed) and self.core.version == version < event.version:
                    self.resyncs += 1  # what lies between is gone: only a snapshot helps
            self._save()

    async def _frame(self, data: bytes) -> bytes:
        if not is_manifest(data):
            return data
        root = self._link.names.public("object")
        return await objects.get(self._link, root, Manifest.from_bytes(data), self._limit)

    def _apply(self, frame: bytes) -> Any:
        """One of the server's frames; a hidden state that is not the server's is reported."""
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

    async def _catch_up(self) -> None:
        """Until x̂ is where the server's was a moment ago."""
        wait, done = 0.05, False
        while not done:
            try:
                done = await patiently(self._sync)
            except FrameError as error:  # damaged, or replaced by a newer one in the meantime
                self._journal("refused", detail=str(error))
            if not done:
                await asyncio.sleep(wait * random.uniform(0.5, 1))
                wait = min(2 * wait, 1.0)
        self._save()

    async def _sync(self) -> bool:
        """By replay or by snapshot, whichever is fewer bytes; False: try again."""
        if self.core.job.replaces:
            return await self._newest()
        link, names = self._link, self._link.names
        message = await link.last(names.objects, names.public("snapshot"))
        if message is None:
            return False
        snapshot, core = Newest.from_bytes(message.data[TERM:]), self.core
        following = await link.get(names.increments, core.version + 1) if core.in_sync else None
        if following is None and core.in_sync and not await self._confirmed(snapshot):
            return False
        behind = snapshot.version - core.version
        replay = behind * _size(following.data) if following else 0
        if not core.in_sync or (behind > 0 and (following is None or replay > snapshot.manifest.size)):
            self.snapshots += 1
            core.catch_up()  # from here on a snapshot is welcome, whatever its version
            data = await objects.get(link, names.public("object"), snapshot.manifest, self._limit)
            self.bytes_down += len(data)
            if not isinstance(core.apply(data), Advanced):
                return False
        elif following is None:
            return True
        self._checked = link.reconnects
        return await self._replay(_size(following.data) if following else 1)

    async def _confirmed(self, snapshot: Newest) -> bool:
        """Whether the server knows our x̂; asked once in every connection, where nothing newer proves it."""
        core = self.core
        if self._checked == self._link.reconnects or core.version < snapshot.version:
            return True
        if core.version == snapshot.version:
            same = core.hidden.digest == snapshot.digest
        else:
            message = await self._link.get(self._link.names.increments, core.version)
            same = message is not None and isinstance(self._apply(await self._frame(message.data)), Ignored)
        if not same:
            self._ahead(snapshot.version)
        self._checked = self._link.reconnects
        return same

    def _ahead(self, target: int) -> None:
        """x̂ is of a version that the server does not know, or not like this: it was restored from before."""
        self._journal("ahead", version=self.core.version, server=target)
        self.resyncs += 1
        number = self.core.next_task
        self.core = Client(self.core.job, client=self.core.client)
        self.core.next_task = number

    async def _replay(self, size: int) -> bool:
        """The increments that are there, of about this size; False where one leads somewhere else."""
        stream, many = self._link.names.increments, max(1, min(AT_ONCE, WINDOW // size))
        while True:
            wanted = range(self.core.version + 1, self.core.version + 1 + many)
            found = await asyncio.gather(*(self._link.get(stream, version, SLOW) for version in wanted))
            for message in found:
                if message is None:
                    return True
                event = self._apply(await self._frame(message.data))
                if isinstance(event, Rejected):
                    self.resyncs += 1  # damaged in the broker: a snapshot will lead past it
                if not isinstance(event, Advanced | Ignored):
                    return False

    async def _newest(self) -> bool:
        """Where an increment carries the model itself, the newest is enough; x⁰ where there is none yet."""
        names, core = self._link.names, self.core
        request = json.dumps({"last_by_subj": names.increment()}).encode()
        last = await self._link.find(f"$JS.API.DIRECT.GET.{names.increments}", request)
        if last is not None:
            if core.in_sync and core.version > last.sequence:
                self._ahead(last.sequence)
            self._apply(await self._frame(last.data))
            return self.core.in_sync
        message = await self._link.last(names.objects, names.public("snapshot"))
        if message is not None and not core.in_sync:
            snapshot = Newest.from_bytes(message.data[TERM:])
            self.snapshots += 1
            core.catch_up()
            data = await objects.get(self._link, names.public("object"), snapshot.manifest, self._limit)
            self.bytes_down += len(data)
            core.apply(data)
        return core.in_sync

    # --- training ---

    async def _work(self, tasks: int | None) -> None:
        await self._deliver_kept()
        while tasks is None or self.tasks < tasks:
            if self._broadcast and not self.core.in_sync:
                await asyncio.sleep(0.02)
                continue
            reply = await patiently(self._ask, lambda error: self._journal("waiting", detail=str(error)))
            if isinstance(reply, Done):
                await self._catch_up()
                self.reason = reply.reason
                return
            if isinstance(reply, Wait):
                await asyncio.sleep(reply.seconds * random.uniform(1, 1.2))
                continue
            if not self._broadcast and not (self.core.in_sync and self.core.version == reply.version):
                await self._catch_up()
            if self.core.in_sync:
                await self._train(reply)

    async def _ask(self) -> Reply:
        """Ask for a lease; where nobody answers, look whether the training has ended."""
        link, names = self._link, self._link.names
        resyncs, downloaded = self.resyncs, self.bytes_down
        ask = Ask(self.core.next_task, resyncs - self._reported[0], downloaded - self._reported[1])
        try:
            answer = await link.request(names.ask(self.core.client), msgspec.msgpack.encode(ask))
        except BrokerError:
            done = await self._done()
            if done is None:
                raise
            return Done(done)
        self._reported = resyncs, downloaded
        try:
            return wire.unpack(answer.data, _reply)
        except FrameError as error:
            raise BrokerError(f"an answer that cannot be read: {error}") from error

    async def _train(self, lease: Lease) -> None:
        core = self.core
        task = assign(core.job, core.client, lease.number, core.version, vectors.copy(core.hidden.x))
        began = time.monotonic()
        frame = await asyncio.to_thread(self._delta, task)
        self._journal(
            "trained", task=task.number, version=task.version, seconds=round(time.monotonic() - began, 3)
        )
        self.core.next_task = lease.number + 1
        if self._folder is not None:
            _write(self._folder / "upload.bin", frame)
            self._save(now=True)
        await self._deliver(frame)

    def _delta(self, task: Task) -> bytes:
        delta = self._trainer(task.x, task)
        if delta is None:
            raise ConfigError("the trainer returned nothing; it must return its delta, y_P − y_0")
        return self.core.finish(task, delta)

    async def _deliver_kept(self) -> None:
        """An update that was not acknowledged before we were stopped."""
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
        """Until the broker has acknowledged it, under the same task id however often."""
        if not await patiently(lambda: self._sent(frame)):
            self._journal("too late", number=self.core.next_task - 1)
            return
        self._journal("acknowledged", bytes=len(frame), number=self.core.next_task - 1)
        self.tasks += 1
        self.bytes_up += len(frame)
        if self._folder is not None:
            (self._folder / "upload.bin").unlink(missing_ok=True)

    async def _sent(self, frame: bytes) -> bool:
        """Whether it was acknowledged; False: it is not wanted any more, the training has ended."""
        try:
            await self._send(frame)
        except BrokerError:
            if await self._done() is None:
                raise
            return False
        return True

    async def _done(self) -> str | None:
        """Why the training has ended, if it has."""
        names = self._link.names
        done = await self._link.last(names.objects, names.public("done"))
        return done.data.decode(errors="replace") if done else None

    async def _send(self, frame: bytes) -> None:
        link, client = self._link, self.core.client
        data = frame
        if len(frame) > link.max_payload - 4096:
            manifest = await objects.put(link, link.names.chunk(client, "object"), frame)
            data = manifest.to_bytes()
        number = wire.fingerprint(frame)
        await link.publish(
            link.names.upload(client), data, headers={"Nats-Msg-Id": f"{client}-{number:016x}"}
        )

    def _save(self, *, now: bool = False) -> None:
        """x̂ and where we are, every now and then."""
        if self._folder is not None and (now or time.monotonic() - self._saved > SAVE_SECONDS):
            _write(self._folder / "client.bin", self.core.state())
            self._saved = time.monotonic()


def _size(data: bytes) -> int:
    """The bytes of a frame, or of the frame that a manifest stands for."""
    return Manifest.from_bytes(data).size if is_manifest(data) else len(data)


def _write(path: Path, data: bytes) -> None:
    """A file, whole or not at all."""
    half = path.with_suffix(".half")
    with half.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
