"""The server of a federation: it reads the upload log, processes it, writes increments and saves itself.

    read      uploads after the last one that was processed, in order
    publish   the increments of each step; version t + 1 only after version t, only by the leader of this term
    save      the state with the number of the last upload in it; then the log below may be purged

A server that was killed starts from the last checkpoint, reads the same uploads and arrives at the same
bytes. Increments that are in the broker already are compared, not written twice.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from qafel.config import Job
from qafel.errors import BrokerError, DivergenceError, FencedError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.checkpoints import Checkpoints
from qafel.federation.increments import Increments
from qafel.federation.leader import LEASE, RENEW, Leadership
from qafel.federation.leases import Journal, LeaseDesk
from qafel.federation.monitoring import Metrics, Monitor
from qafel.federation.nats import CLOSED, Connection, Message
from qafel.federation.objects import Manifest, Sweeper, is_manifest, open_store
from qafel.federation.plan import Plan, write_welcome
from qafel.federation.reader import Reader, open_log
from qafel.federation.state import FederationState, warm_up
from qafel.federation.subjects import owner
from qafel.runs.folder import RunFolder
from qafel.server import Accepted, Stepped
from qafel.vectors import Vector
from qafel.wire import Rejected

Evaluate = Callable[[Vector], dict[str, float]]
"""Named metrics of a model on held-out samples."""
CHECKPOINT_SHARE = 0.1
"""At most this share of the time is spent on checkpoints."""
SWEEP_SECONDS = 600.0
MIN_SNAPSHOT_SECONDS = 5.0
"""The shortest time between two snapshots that clients ask for."""
MAX_REFUSALS = 8
"""Give up after this many consecutive refusals of the broker."""


class FederationServer:
    """One server; ``at(step)`` is a fault-injection hook for tests, called at each step of a commit."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        x: Vector,
        connection: Connection,
        folder: RunFolder,
        *,
        evaluate: Evaluate | None = None,
        standby: bool = False,
        journal: Journal = lambda event, **fields: None,  # noqa: ARG005
        at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
    ) -> None:
        self.plan, self.job, self.folder, self.metrics = plan, job, folder, Metrics()
        self._x, self._connection, self._standby = x, connection, standby
        self._evaluate_model, self._journal, self._at = evaluate, journal, at
        self._leadership = Leadership(connection)
        self._checkpoints = Checkpoints(connection, folder)
        self._desk = LeaseDesk(plan, self.metrics, journal)
        self._monitor = Monitor(plan.name, connection, self.metrics)
        self._state: FederationState | None = None
        self._unpublished: deque[Stepped] = deque()
        self._unsaved_pieces = False
        """Whether an upload in pieces was processed since the last checkpoint."""
        self._used: list[tuple[int, Manifest]] = []
        """Uploads in pieces since the last checkpoint; the pieces are removed with the log."""
        self._done: list[tuple[int, Manifest]] = []
        """Uploads in pieces before the last checkpoint."""
        self._sweeper = Sweeper(connection)
        self._saved_at = self._swept_at = time.monotonic()
        self._asked_at = 0.0
        """When a snapshot was last written because a client asked."""
        self._cost = 0.0
        """Seconds that the last checkpoint took."""
        self._leads = False
        self._reader: Reader | None = None
        self._saved_sequence = -1
        """The last upload of the newest checkpoint."""
        self.metrics.ready = self._not_ready

    def _not_ready(self) -> str | None:
        """Why the server is not ready, or None."""
        if not self._leads:
            return "it does not lead"
        return None if self._connection.is_connected else "the broker cannot be reached"

    async def run(self) -> FederationState:
        """Run until the training has ended; FencedError if another server takes over."""
        wait, refusals = 0.1, 0
        while True:
            try:
                await self._prepare()
                refusals = 0
                requests = await self._connection.subscribe(
                    self._connection.subjects.ask(), self._desk.answer
                )
                try:
                    await self._while_leading(self._work())
                finally:
                    with contextlib.suppress(Exception):
                        await requests.unsubscribe()
                return self.state
            except FencedError:
                self._leads = False
                self._journal("fenced")
                raise
            except DivergenceError:
                with contextlib.suppress(BrokerError):
                    await self._connection.publish(self._connection.subjects.public("done"), b"diverged")
                raise
            except BrokerError as error:
                self._leads = False
                self._journal("broker", detail=str(error))
                refusals += bool(error.code)
                if refusals > MAX_REFUSALS or error.code == CLOSED:
                    raise
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, 2.0)

    @property
    def state(self) -> FederationState:
        """The state after the uploads so far."""
        if self._state is None:
            raise StateError("the server has not started")
        return self._state

    async def _while_leading(self, work: Any) -> None:
        """Do the work and renew the leadership; when one fails, both end."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self._renew())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW)
            await self._leadership.renew()
            self._report()

    def _report(self) -> None:
        desk, term = self._desk, self._leadership.term
        desk.leases.expire(time.monotonic())
        self._monitor.report(self.state, leases=len(desk.leases), term=term, ended=desk.ended)

    async def _prepare(self) -> None:
        """Take the leadership, load the state, and make sure that the streams exist."""
        connection, plan, job = self._connection, self.plan, self.job
        await open_store(connection, plan.replicas, patience=4 * LEASE if self._standby else 0.0)
        term = await self._leadership.take(standby=self._standby, again=self._state is not None)
        self._standby = False
        self._journal("leads", term=term)
        await self._checkpoints.lead(term)
        await write_welcome(connection, job, plan)
        self._increments = Increments(connection, term, self._leadership.holder)
        first = self._state is None
        if self._state is None:
            states = [FederationState(plan, job, self._x)]
            states += await self._checkpoints.states(plan, job, self._increments, self._journal)
            self._state = max(states, key=lambda state: state.sequence)
            await asyncio.to_thread(warm_up, job)
        state = self._desk.state = self._state
        state.tracker.folder = self.folder
        await self._increments.open(plan.replicas, state.server)
        self._unpublished.clear()  # ``open`` has written them
        await open_log(connection, plan, state.sequence, state.server.frame_limit)
        if first:
            self.folder.truncate(0)
            for point in state.tracker.points:
                self.folder.append(point)
        await self._checkpoints.save(state.state())
        self._saved_sequence = state.sequence
        await self._increments.snapshot(state.server)
        if self._reader is not None:
            await self._reader.close()
        self._reader = Reader(connection, connection.subjects.uploads, state.sequence)
        self._leads, self._since, self._desk.version = True, time.monotonic(), self._increments.last
        uploads = state.tracker.totals.uploads
        self._journal("ready", version=state.server.version, sequence=state.sequence, uploads=uploads)

    async def _work(self) -> None:
        state, tracker = self.state, self.state.tracker
        await self._evaluate()
        while tracker.reason is None:
            await self._read()
            await self._publish()
            self._advance()
            pause = max(self.plan.checkpoint_seconds, self._cost / CHECKPOINT_SHARE)
            if time.monotonic() - self._saved_at >= pause:
                await self._save()
            if time.monotonic() - self._swept_at > SWEEP_SECONDS:
                await self._sweep()
        await self._publish()
        await self._evaluate()
        await self._save()
        await self._connection.publish(self._connection.subjects.public("done"), tracker.reason.encode())
        self._desk.ended = True
        await self._leadership.resign()
        self._report()
        uploads = tracker.totals.uploads
        self._journal("done", reason=tracker.reason, uploads=uploads, version=state.server.version)

    def _advance(self) -> None:
        """Tell the tracker how much time has passed, restarts included."""
        now, tracker = time.monotonic(), self.state.tracker
        tracker.totals.in_flight = len(self._desk.leases)
        tracker.advance(tracker.totals.time + now - self._since)
        self._since = now

    async def _read(self) -> None:
        """Process the uploads that have arrived; each step is published before the next upload."""
        if self._reader is None:
            return
        left = self.plan.checkpoint_seconds - (time.monotonic() - self._saved_at)
        messages = await self._reader.next(min(1.0, max(0.05, left)))
        if messages:
            self._at("after read")
        for message in messages:
            await self._take(message)
            await self._publish()
            if self.state.tracker.reason is not None:
                break

    async def _take(self, message: Message) -> None:
        state, client = self.state, owner(message.subject)
        frame: bytes | FrameError = message.data
        if is_manifest(message.data) and client is not None:
            frame = await self._read_pieces(client, message.data)
        for event in state.take(message.sequence, client, frame):
            if isinstance(event, Accepted):
                self._desk.leases.release(event.client, event.task, time.monotonic())
                self.metrics.staleness[event.staleness] += 1
                self.metrics.add("uploads_accepted_total")
            elif isinstance(event, Stepped):
                self._unpublished.append(event)
                self.metrics.add("bytes_down_total", len(event.frame))
            elif isinstance(event, Rejected):
                self.metrics.add("uploads_rejected_total", reason=event.reason)
                self._journal("rejected", reason=event.reason, detail=event.detail, client=client)
        self.metrics.add("bytes_up_total", 0 if isinstance(frame, FrameError) else len(frame))
        if state.tracker.reason is None:
            await self._evaluate()

    async def _read_pieces(self, client: int, data: bytes) -> bytes | FrameError:
        """An upload from its pieces; FrameError if they cannot be read though the broker answers."""
        root = self._connection.subjects.chunk(client, "object")
        self._unsaved_pieces = True
        for attempt in range(3):
            try:
                manifest = Manifest.from_bytes(data)
                frame = await objects.get(self._connection, root, manifest, self.state.server.frame_limit)
            except FrameError as error:
                return error
            except BrokerError as error:
                await self._connection.call(f"$JS.API.STREAM.INFO.{self._connection.subjects.objects}")
                if attempt == 2:
                    return FrameError(f"its pieces cannot be read: {error}")
            else:
                self._used.append((client, manifest))
                return frame
        return FrameError("its pieces cannot be read")

    async def _publish(self) -> None:
        """Publish the increments of the steps so far.

        The result of an upload in pieces depends on pieces that its client can still change: a checkpoint is
        saved first. Without broadcast, a snapshot that is due precedes its increment: whoever reads the
        stream finds a snapshot that is no more than a quarter of a model behind.
        """
        if self._unpublished and self._unsaved_pieces:
            await self._checkpoints.save(self.state.state())
            self._unsaved_pieces = False
        while self._unpublished:
            self._at("before publish")
            version, frame = self._unpublished[0].version, self._unpublished[0].frame
            if self.plan.downlink != "broadcast" and self._increments.due(self.state.server, len(frame)):
                await self._snapshot(size=len(frame))
            await self._increments.publish(version, frame)
            self._unpublished.popleft()
            self._desk.version = self._increments.last
            self._at("after publish")

    async def _snapshot(self, *, size: int | None = None, asked: bool = False) -> None:
        if await self._increments.snapshot(self.state.server, size=size, asked=asked):
            self.metrics.add("snapshots_total")

    async def _save(self) -> None:
        """Save a checkpoint and remove what it makes superfluous."""
        state, subjects = self.state, self._connection.subjects
        self._saved_at = time.monotonic()
        asked = self._desk.snapshot_wanted or self._increments.damaged
        asked = asked and self._saved_at - self._asked_at > MIN_SNAPSHOT_SECONDS
        ended = state.tracker.reason is not None
        if state.sequence == self._saved_sequence and not ended and not asked:
            return
        self._advance()
        self._at("before checkpoint")
        await self._checkpoints.save(state.state())
        self._at("after checkpoint")
        self._cost = time.monotonic() - self._saved_at
        self.metrics.add("checkpoints_total")
        self.metrics.add("checkpoint_seconds_total", self._cost)
        self._unsaved_pieces = False
        self._at("before purge")
        before, self._saved_sequence = self._saved_sequence, state.sequence
        await self._connection.purge(subjects.uploads, below=before + 1)  # the previous one needs the rest
        gone, self._done, self._used = self._done, self._used, []
        if ended:
            gone, self._done = [*gone, *self._done], []
        for client, manifest in gone:
            await objects.remove(self._connection, subjects.chunk(client, "object"), manifest)
        await self._snapshot(asked=asked or ended)
        if asked:
            self._desk.snapshot_wanted, self._asked_at = False, self._saved_at
        self._at("after purge")
        self._saved_at = time.monotonic()

    async def _evaluate(self) -> None:
        """Evaluate the model if it is due."""
        tracker = self.state.tracker
        if self._evaluate_model is None or not tracker.evaluation_due:
            return
        metrics = await asyncio.to_thread(self._evaluate_model, self.state.server.x.copy())
        self._advance()
        point = tracker.evaluated(metrics)
        smoothed = {name: round(value, 4) for name, value in point.smoothed.items()}
        self._journal("evaluated", uploads=point.uploads, **smoothed)

    async def _sweep(self) -> None:
        """Remove pieces that were not announced for a while."""
        used = {manifest.digest for _, manifest in (*self._used, *self._done)}
        for root in await self._sweeper.sweep(used | self._increments.digests | self._checkpoints.digests):
            self._journal("orphan", subject=root)
        self._swept_at = time.monotonic()
