"""The server of a federation: reads the upload log, folds it, writes increments, saves itself.

    read      uploads after the last one folded, in order
    publish   the increments they led to; version t + 1 only after version t, only by the leader of this term
    save      the state, and with it the number of the last upload in it; then the log below may go

Killed anywhere, it starts again from the last checkpoint, reads the same uploads and comes to the same bytes;
increments that are in the broker already are compared, not written twice.
"""

import asyncio
import contextlib
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, DivergenceError, FencedError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.checkpoints import Checkpoints
from qafel.federation.desk import Desk
from qafel.federation.increments import Increments
from qafel.federation.leader import LEASE, RENEW, Leadership
from qafel.federation.monitoring import Metrics
from qafel.federation.nats import CLOSED, Connection, Message
from qafel.federation.objects import Manifest, is_manifest
from qafel.federation.plan import Plan
from qafel.federation.reader import Reader
from qafel.federation.state import FederationState
from qafel.federation.subjects import owner
from qafel.federation.sweep import Sweeper
from qafel.federation.terms import Terms
from qafel.runs.folder import RunFolder
from qafel.runs.result import Point
from qafel.server import Accepted, Stepped
from qafel.vectors import Vector
from qafel.wire import Rejected

Judge = Callable[[Vector], tuple[float, float]]
"""(accuracy, loss) of a model on held-out samples."""
Journal = Callable[..., None]
CHECKPOINT_SHARE = 0.1
"""At most this part of the time goes into checkpoints."""
SWEEP_SECONDS = 600.0
OBLIGE_SECONDS = 5.0
"""Between two snapshots that clients ask for."""
REFUSALS = 8
"""A broker that is there and says no so often in a row means it."""


class FederationServer:
    """One server; ``at`` is told every step of the commit sequence, for those who want to kill it there."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        x: Vector,
        link: Connection,
        folder: RunFolder,
        *,
        judge: Judge | None = None,
        standby: bool = False,
        journal: Journal = lambda event, **fields: None,  # noqa: ARG005
        at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
    ) -> None:
        self.plan, self.job, self.folder, self.metrics = plan, job, folder, Metrics()
        self._x, self._link, self._judge, self._standby = x, link, judge, standby
        self._journal, self._at = journal, at
        self._leadership = Leadership(link)
        self._checkpoints = Checkpoints(link, folder)
        self._desk = Desk(plan, link, self.metrics, journal)
        self.fold: FederationState | None = None
        self._unpublished: deque[tuple[int, bytes]] = deque()
        self._pieces = False
        """Whether something was decided by pieces since the last checkpoint."""
        self._used: list[tuple[int, Manifest]] = []
        """Long uploads that are folded; their pieces go with the log."""
        self._done: list[tuple[int, Manifest]] = []
        """Those of the checkpoint before."""
        self._sweeper = Sweeper(link)
        self._saved = self._swept = time.monotonic()
        self._obliged = 0.0
        """When a snapshot was last written because somebody asked."""
        self._cost = 0.0
        """Seconds the last checkpoint took."""
        self._leads = False
        self._reader: Reader | None = None
        self._kept = -1
        """The last upload of the newest checkpoint."""
        self.metrics.ready = lambda: (
            None
            if self._leads and link.nc.is_connected
            else "it does not lead"
            if not self._leads
            else "no broker"
        )

    async def run(self) -> FederationState:
        """Until the training has ended; FencedError when another server has taken over."""
        wait, refused = 0.1, 0
        while True:
            try:
                await self._prepare()
                refused = 0
                asked = await self._link.listen(self._link.names.ask(), self._desk.asked)
                try:
                    await self._alive(self._work())
                finally:
                    with contextlib.suppress(Exception):
                        await asked.unsubscribe()
                return self._state
            except FencedError:
                self._leads = False
                self._journal("fenced")
                raise
            except DivergenceError:
                with contextlib.suppress(BrokerError):
                    await self._link.publish(self._link.names.public("done"), b"diverged")
                raise
            except BrokerError as error:
                self._leads = False
                self._journal("broker", detail=str(error))
                refused += bool(error.code)
                if refused > REFUSALS or error.code == CLOSED:
                    raise
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, 2.0)

    @property
    def _state(self) -> FederationState:
        if self.fold is None:
            raise StateError("the server has not started")
        return self.fold

    async def _alive(self, work: Any) -> None:
        """Do the work, and show signs of life; whichever fails ends both."""
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
            self._desk.report(self._leadership.term)

    async def _prepare(self) -> None:
        """Lead, find out where we are, make sure that everything is there."""
        names, plan = self._link.names, self.plan
        common = {"allow_direct": True, "num_replicas": plan.replicas}
        kept = [names.public(), names.private(), names.chunk()]
        await self._objects({"subjects": kept, "max_msgs_per_subject": 2, **common})
        term = await self._leadership.take(standby=self._standby, again=self.fold is not None)
        self._standby = False
        self._journal("leads", term=term)
        await self._checkpoints.lead(term)
        await self._welcome()
        first = self.fold is None
        fold = self.fold = self._desk.fold = self.fold or await self._load()
        self._outlet = Increments(self._link, term, self._leadership.holder)
        await self._outlet.open(plan.replicas, fold.server)
        self._unpublished.clear()  # the outlet has written them
        uploads = await self._link.ensure(
            names.uploads,
            {
                "subjects": [names.upload()],
                "max_msgs_per_subject": plan.max_pending,
                "discard": "new",
                "discard_new_per_subject": True,
                "duplicate_window": 120_000_000_000,
                "max_msg_size": min(self._link.max_payload, fold.server.frame_limit + 4096),
                "first_seq": fold.sequence + 1,
                **common,
            },
        )
        state = uploads["state"]
        if state["last_seq"] < fold.sequence:  # the broker lost its log: numbers go on where ours are
            await self._link.purge(names.uploads, below=fold.sequence + 1)
        elif state["first_seq"] > fold.sequence + 1:
            raise StateError(
                f"the broker has no uploads before {state['first_seq']}, and no checkpoint holds more than "
                f"{fold.sequence} of them; start under a new name"
            )
        if first:
            self._restore_points(fold)
        await self._checkpoints.save(fold.state())
        self._kept = fold.sequence
        await self._outlet.snapshot(fold.server)
        if self._reader is not None:
            await self._reader.close()
        self._reader = Reader(self._link, names.uploads, fold.sequence)
        self._leads, self._since, self._desk.version = True, time.monotonic(), self._outlet.last
        self._journal("ready", version=fold.server.version, sequence=fold.sequence, uploads=fold.uploads)

    async def _objects(self, config: dict[str, Any]) -> None:
        """The stream of everything that has a key; a standby leaves a wiped broker to the one who leads."""
        until = time.monotonic() + 4 * LEASE
        while self._standby and time.monotonic() < until:
            if await self._link.stream(self._link.names.objects) is not None:
                break
            await asyncio.sleep(0.25)
        await self._link.ensure(self._link.names.objects, config)

    async def _welcome(self) -> None:
        """Tell newcomers the job; complain if there is another one under this name."""
        names = self._link.names
        told = Terms(self.job.to_bytes(), self.plan.to_toml())
        there = await self._link.last(names.objects, names.public("welcome"))
        try:
            same = there is not None and Terms.from_bytes(there.data) == told
        except FrameError:
            there, same = None, False  # damaged on its way into the broker
        if there is None:
            await self._link.publish(names.public("welcome"), told.to_bytes())
        elif not same:
            raise ConfigError(
                f"the broker runs another job under the name {names.name!r}; choose another name"
            )

    async def _load(self) -> FederationState:
        """The best checkpoint that the increments do not contradict; from the start where there is none."""
        outlet = Increments(self._link, self._leadership.term)
        written = await self._link.stream(self._link.names.increments)
        found: list[FederationState] = []
        for data in await self._checkpoints.load(limit=1 << 34):
            try:
                fold = FederationState.from_state(self.plan, self.job, data)
            except (StateError, FrameError) as error:
                self._journal("checkpoint refused", detail=str(error))
                continue
            if written is not None and not await outlet.agrees(fold.server):
                self._journal("checkpoint refused", detail="the increments say otherwise")
                continue
            found.append(fold)
        return max(
            found, key=lambda fold: fold.sequence, default=FederationState(self.plan, self.job, self._x)
        )

    def _restore_points(self, fold: FederationState) -> None:
        self.folder.truncate(0)
        for point in fold.points:
            self.folder.append(point)

    async def _work(self) -> None:
        fold = self._state
        if self._judge and not fold.points:
            await self._evaluate()
        while fold.reason is None:
            await self._read()
            await self._publish()
            if self.plan.time_limit is not None and self._seconds() >= self.plan.time_limit:
                fold.reason = fold.reason or "time limit"
            if time.monotonic() - self._saved >= max(
                self.plan.checkpoint_seconds, self._cost / CHECKPOINT_SHARE
            ):
                await self._save()
            if time.monotonic() - self._swept > SWEEP_SECONDS:
                await self._sweep()
        await self._publish()
        if self._judge and fold.points[-1].uploads < fold.uploads:
            await self._evaluate()
        await self._save()
        await self._link.publish(self._link.names.public("done"), fold.reason.encode())
        self._desk.ended = True
        await self._leadership.resign()
        self._desk.report(self._leadership.term)
        self._journal("done", reason=fold.reason, uploads=fold.uploads, version=fold.server.version)

    def _seconds(self) -> float:
        """Spent so far, restarts included."""
        now = time.monotonic()
        self._state.seconds += now - self._since
        self._since = now
        return self._state.seconds

    async def _read(self) -> None:
        if self._reader is None:
            return
        left = self.plan.checkpoint_seconds - (time.monotonic() - self._saved)
        messages = await self._reader.next(min(1.0, max(0.05, left)))
        if messages:
            self._at("after read")
        for message in messages:
            await self._take(message)
            if self._state.reason is not None:
                break

    async def _take(self, message: Message) -> None:
        fold, client = self._state, owner(message.subject)
        frame: bytes | FrameError = message.data
        if is_manifest(message.data) and client is not None:
            frame = await self._long(client, message.data)
        due = False
        for event in fold.take(message.sequence, client, frame):
            if isinstance(event, Accepted):
                self._desk.leases.release(event.client, event.task, time.monotonic())
                self.metrics.staleness[event.staleness] += 1
                self.metrics.add("uploads_accepted_total")
                due = fold.uploads % self.plan.evaluate_every == 0
            elif isinstance(event, Stepped):
                self._unpublished.append((event.version, event.frame))
                self.metrics.add("bytes_down_total", len(event.frame))
            elif isinstance(event, Rejected):
                self.metrics.add("uploads_rejected_total", reason=event.reason)
                self._journal("rejected", reason=event.reason, detail=event.detail, client=client)
        self.metrics.add("bytes_up_total", 0 if isinstance(frame, FrameError) else len(frame))
        if due and self._judge:
            await self._evaluate()

    async def _long(self, client: int, data: bytes) -> bytes | FrameError:
        """A long upload from its pieces; why not, where they cannot be read though the broker is there."""
        root, limit = self._link.names.chunk(client, "object"), self._state.server.frame_limit
        self._pieces = True
        for attempt in range(3):
            try:
                manifest = Manifest.from_bytes(data)
                frame = await objects.get(self._link, root, manifest, limit)
            except FrameError as error:
                return error
            except BrokerError as error:
                await self._link.call(f"$JS.API.STREAM.INFO.{self._link.names.objects}")
                if attempt == 2:
                    return FrameError(f"its pieces cannot be read: {error}")
            else:
                self._used.append((client, manifest))
                return frame
        return FrameError("its pieces cannot be read")

    async def _publish(self) -> None:
        """Increments, in order; each is forgotten when it is in the broker.

        What came of a long upload depends on pieces that its client can still change: it is saved first.
        """
        if self._unpublished and self._pieces:
            await self._checkpoints.save(self._state.state())
            self._pieces = False
        while self._unpublished:
            self._at("before publish")
            await self._outlet.publish(*self._unpublished[0])
            self._unpublished.popleft()
            self._desk.version = self._outlet.last
            self._at("after publish")

    async def _save(self) -> None:
        """A checkpoint; what it makes superfluous goes."""
        fold, names = self._state, self._link.names
        self._saved = time.monotonic()
        asked = self._desk.snapshot_wanted or self._outlet.damaged
        asked = asked and self._saved - self._obliged > OBLIGE_SECONDS
        if fold.sequence == self._kept and fold.reason is None and not asked:
            return
        self._seconds()
        self._at("before checkpoint")
        await self._checkpoints.save(fold.state())
        self._at("after checkpoint")
        self._cost = time.monotonic() - self._saved
        self.metrics.add("checkpoints_total")
        self.metrics.add("checkpoint_seconds_total", self._cost)
        self._pieces = False
        self._at("before purge")
        before, self._kept = self._kept, fold.sequence
        await self._link.purge(names.uploads, below=before + 1)  # what the checkpoint before would need stays
        gone, self._done, self._used = self._done, self._used, []
        if fold.reason is not None:
            gone, self._done = [*gone, *self._done], []
        for client, manifest in gone:
            await objects.remove(self._link, names.chunk(client, "object"), manifest)
        if await self._outlet.snapshot(fold.server, asked=asked):
            self.metrics.add("snapshots_total")
        if asked:
            self._desk.snapshot_wanted, self._obliged = False, self._saved
        self._at("after purge")
        self._saved = time.monotonic()

    async def _evaluate(self) -> None:
        fold = self._state
        if self._judge is None:
            return
        accuracy, loss = await asyncio.to_thread(self._judge, fold.server.x.copy())
        if not math.isfinite(loss):
            raise DivergenceError(
                f"the loss on the held-out samples is {loss} after {fold.uploads} uploads; lower the rates"
            )
        recent = [point.accuracy for point in fold.points][len(fold.points) + 1 - self.plan.smoothing :]
        point = Point(
            uploads=fold.uploads,
            version=fold.server.version,
            time=self._seconds(),
            accuracy=accuracy,
            smoothed=statistics.median([*recent, accuracy]),
            loss=loss,
            bytes_up=fold.bytes_up,
            bytes_down=fold.bytes_down,
            staleness=fold.mean_staleness,
            in_flight=len(self._desk.leases),
            residual=fold.residual,
        )
        fold.points.append(point)
        self.folder.append(point)
        self._journal("evaluated", uploads=point.uploads, accuracy=round(point.smoothed, 4))
        full = len(fold.points) > self.plan.smoothing
        if self.plan.target is not None and full and point.smoothed >= self.plan.target:
            fold.reason = fold.reason or "target"

    async def _sweep(self) -> None:
        """Remove pieces that nobody has announced for a while."""
        used = {manifest.digest for _, manifest in (*self._used, *self._done)}
        for root in await self._sweeper.sweep(used | self._outlet.objects | self._checkpoints.objects):
            self._journal("orphan", subject=root)
        self._swept = time.monotonic()
