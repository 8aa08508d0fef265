"""A client of a federation: it asks for leases, trains and sends updates (Algorithm 2).

An update is kept until a receipt says what became of it: the broker's acknowledgement means "stored", the
server's answer "counted" or "rejected, because". The client's folder has x̂ with its version, the update that
waits for its receipt, and the session that makes a restarted process the same client. A client that was
killed continues from there, and never trains a task again whose update was sent.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel import vectors, wire
from qafel.client import Trainer, assign
from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, FrameError
from qafel.federation import objects
from qafel.federation.client.folder import ClientFolder
from qafel.federation.client.follower import Follower
from qafel.federation.connection import Connection, Notice, quiet, retry
from qafel.federation.entries import Report, Upload
from qafel.federation.messages import Answer, Ask, Done, Lease
from qafel.federation.nats import NO_SPACE
from qafel.federation.waiting import give_up
from qafel.vectors import Vector

SAVE_SECONDS = 5.0
MIN_WAIT, MAX_WAIT = 2.0, 30.0
"""A client that gets no answer asks again, after pauses that grow from MIN_WAIT to MAX_WAIT seconds."""
STOP_SECONDS = 5.0
"""After ``stop``, a client waits this many seconds for the receipt of its last update."""
Evaluator = Callable[[Vector], Report]
"""Sums of metrics over the client's held-out samples."""


class FederationClient:
    """One client; ``samples`` is the number of samples that it trains on, for weighted averages."""

    def __init__(
        self,
        connection: Connection,
        job: Job,
        client: int,
        trainer: Trainer,
        *,
        evaluate: Evaluator | None = None,
        samples: int = 0,
        broadcast: bool = True,
        state: Path | None = None,
        notice: Notice = quiet,
    ) -> None:
        if not 0 <= samples < 1 << 40:
            raise ConfigError(f"samples must be the number of this client's samples, got {samples}")
        self._connection, self._trainer, self._notice = connection, trainer, notice
        self._files = ClientFolder(state, notice)
        self._evaluate, self._samples, self._broadcast = evaluate, samples, broadcast
        self.core = self._files.core(job, client)
        self.follower = Follower(connection, self.core, broadcast=broadcast, notice=notice)
        self.follower.moved, self.follower.restarted = self.save, self._wake
        self.tasks = self.counted = self.bytes_up = 0
        self.rejected: dict[int, str] = {}
        """Why tasks of this process were rejected."""
        self.reason: str | None = None
        """Why the training has ended."""
        self._stopping = self._training = self._busy = False
        self._worker: asyncio.Task[None] | None = None
        self._session = self._files.session()
        self._kept = self._files.kept(job)
        self._sequence = 0
        """The number that the broker gave to the update that waits for its receipt."""
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._settled = -1
        """The last task whose receipt came."""
        self._downloaded = 0
        """The bytes down that were reported to the server."""
        self._saved_at = 0.0

    def save(self, *, now: bool = False) -> None:
        """Save x̂, at most every SAVE_SECONDS unless ``now``."""
        if now or time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._files.write("client.bin", self.core.state)
            self._saved_at = time.monotonic()

    def _keep(self, upload: Upload | None) -> None:
        """Keep an update until its receipt arrives; None: there is no such update any more."""
        self._kept, self._sequence = upload, 0
        self._files.keep(self.core.job, upload)

    async def run(self, tasks: int | None = None) -> None:
        """Follow and train until the training has ended, or for ``tasks`` tasks."""
        subject = self._connection.subjects.answer(self.core.client)
        await retry(lambda: self._connection.subscribe(subject, self._hear))
        self._worker = asyncio.create_task(self._work(tasks))
        jobs = {self._worker}
        if self._broadcast:
            await self.follower.subscribe()
            jobs.add(asyncio.create_task(self.follower.follow()))
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
        finally:
            await give_up(jobs)
            self.save(now=True)

    async def _hear(self, message: Any) -> None:
        with contextlib.suppress(FrameError):
            answer = Answer.from_bytes(message.data)
            if answer.session not in (self._session, b""):
                return
            if self._busy and answer.wait == 0:
                await self._tell(Ask(self._session, busy=True))
            else:
                self._answers.put_nowait(answer)

    def stop(self) -> None:
        """Leave after the task at hand, without waiting long for its receipt."""
        self._stopping = True
        self._wake()
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._worker is not None and not self._worker.done():
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._give_up)
            if not self._training:
                self._worker.cancel()

    def _wake(self) -> None:
        """A server has started: ask, if an answer is awaited."""
        self._answers.put_nowait(None)

    async def _work(self, tasks: int | None) -> None:
        lease: Lease | None = None
        waited = 0
        while self.reason is None:
            last = tasks is not None and self.tasks >= tasks
            if self._kept is None and (last or self._stopping):
                await self._ask(wants=False)  # gives a lease back
                return
            if self._broadcast and not self.core.in_sync:
                waited += 1
                if waited % 100 or not await self._ended():  # who would bring it into sync after the end?
                    await asyncio.sleep(0.02)
                continue
            self._busy = True
            if self._kept is None and lease is not None:
                await self._train(lease, more=tasks is None or self.tasks + 1 < tasks)
            if self._kept is not None and not self._sequence:
                await self._send()
            self._busy = False
            lease = await self._next_lease() if self.reason is None else None

    async def _next_lease(self) -> Lease | None:
        """Wait until the update is settled, a lease is granted, or the training has ended; ask if need be."""
        if self._kept is None and self._answers.empty():
            await self._ask()
        wait = MIN_WAIT
        while True:
            answer: Answer | None = None
            try:
                answer = await asyncio.wait_for(self._answers.get(), wait * random.uniform(0.8, 1.2))
            except TimeoutError:
                wait = min(1.5 * wait, MAX_WAIT)
                if await self._ended():
                    return None
            if self._stopping and self._kept is None:
                return None
            if answer is None or answer.wait == 0:  # nothing was heard, or the server wants a sign of life
                await self._ask()
                continue
            if answer.refused is not None:
                raise ConfigError(answer.refused)
            settled = self._receipt(answer.task, answer.reason, answer.frame)
            if self._kept is not None and answer.unknown == self._kept.token:
                self._settle("no_lease: the server did not grant the lease of this update")
                settled = True
            if answer.ended is not None:
                await self._finish(answer.ended)
                return None
            if self._kept is None and (settled or answer.lease is not None):
                return self._fresh(answer.lease)
            wait = max(wait, answer.wait) if self._kept is None else wait
            if self._kept is not None and self._sequence and answer.again == self._sequence:
                self._notice("sent again", task=self._kept.task)
                self._sequence = 0
                return None

    def _fresh(self, lease: Lease | None) -> Lease | None:
        """The lease, unless it is an old one that came late."""
        if lease is not None and lease.task <= self._settled:
            self._settled, lease = -1, None
        return lease

    async def _finish(self, reason: str) -> None:
        if self._kept is not None:
            self._settle(f"the training had ended: {reason}")
        with contextlib.suppress(TimeoutError):  # the federation may be deleted meanwhile
            await asyncio.wait_for(self.follower.catch_up(), MAX_WAIT)
        self.reason = reason

    async def _ended(self) -> bool:
        """Whether the training has ended, as the broker knows when the server is silent."""
        subjects = self._connection.subjects
        try:
            message = await self._connection.last(subjects.keys, subjects.public("done"))
            done = Done.from_bytes(message.data) if message else None
        except (BrokerError, FrameError):
            return False
        if done is None:
            return False
        last = done.decided.get(self.core.client)
        if last is not None:
            self._receipt(last.task, last.reason, last.frame)
        await self._finish(done.reason)
        return True

    def _receipt(self, task: int, reason: str, frame: int) -> bool:
        """Process the outcome of the newest decided task; return whether it settles the kept update."""
        kept = self._kept
        if kept is None or task < kept.task:
            return False
        if task > kept.task or frame != wire.fingerprint(kept.frame):
            reason = "another update of this client was decided in its place"
        self._settle(reason)
        return True

    def _settle(self, reason: str) -> None:
        """Drop the update: it was counted, or rejected for a reason."""
        task = self._settled = self._kept.task if self._kept is not None else -1
        if reason:
            self.rejected[task] = reason
            self._notice("rejected", task=task, reason=reason)
        else:
            self.counted += 1
            self._notice("counted", task=task, level="task")
        self._keep(None)

    async def _ask(self, *, wants: bool = True) -> None:
        """Ask what became of the last task, and for a lease."""
        resyncs = self.follower.resyncs
        task = self._kept.task if self._kept is not None else -1
        ask = Ask(self._session, task, self._sequence, wants, min(1 << 20, resyncs - self.follower.reported))
        if await self._tell(ask):
            self.follower.reported = resyncs

    async def _tell(self, ask: Ask) -> bool:
        """Send a request; False if there is no broker: the next pause is longer."""
        with contextlib.suppress(BrokerError):
            await self._connection.send(self._connection.subjects.ask(self.core.client), ask.to_bytes())
            return True
        return False

    async def _train(self, lease: Lease, *, more: bool) -> None:
        core, follower = self.core, self.follower
        if not self._broadcast and core.held != lease.version:
            await follower.catch_up()
            follower.resyncs += core.version < lease.version  # increments are gone: ask for a snapshot
        while self._broadcast and core.version < lease.version:
            await asyncio.sleep(0.005)  # the increment is on its way
        if not core.in_sync or core.version < lease.version:
            return
        task = assign(core.job, core.client, lease.task, core.version, vectors.copy(core.hidden.x))
        began, report = time.monotonic(), None
        if lease.evaluate and self._evaluate is not None:
            report = (await asyncio.to_thread(self._evaluate, vectors.copy(task.x))).checked()
        self._training = True
        try:
            frame = await asyncio.to_thread(core.train_task, task, self._trainer)
        finally:
            self._training = False
        mark = {"frame": wire.fingerprint(frame), "seconds": round(time.monotonic() - began, 3)}
        self._notice("trained", task=task.task, version=task.version, **mark, level="task")
        core.next_task = lease.task + 1
        downloaded, self._downloaded = follower.bytes_down - self._downloaded, follower.bytes_down
        upload = Upload(
            task=lease.task,
            version=lease.version,
            token=lease.token,
            frame=frame,
            more=more,
            samples=self._samples,
            downloaded=downloaded,
            report=report,
        )
        self.tasks += 1
        self._keep(upload)
        self.save()

    async def _send(self) -> None:
        """Send the update until the broker has acknowledged it, or the training has ended."""
        upload = self._kept
        if upload is None:
            return
        self._sequence = await retry(lambda: self._publish(upload))
        if self._sequence:
            self._notice("acknowledged", bytes=len(upload.frame), task=upload.task, level="task")
            self.bytes_up += len(upload.frame)

    async def _publish(self, upload: Upload) -> int:
        """Store the update and return its number; 0 if the training has ended."""
        connection, client = self._connection, self.core.client
        subjects = connection.subjects
        try:
            if len(upload.frame) > connection.room:
                manifest = await objects.put(connection, subjects.piece(client), upload.frame)
                upload = msgspec.structs.replace(upload, frame=manifest.to_bytes())
            return await connection.publish(subjects.upload(client), upload.to_bytes())
        except BrokerError as error:
            if error.code in NO_SPACE:
                await self._ask()  # the server makes room
            if await self._ended():
                return 0
            raise
