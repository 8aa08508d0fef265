"""The server of a federation: it leads, reads the log and has it processed, evaluates, and ends the training.

A server that was killed starts from the last checkpoint and its journal, reads the same entries and arrives
at the same bytes. Increments that are in the broker already are compared, not written twice.
"""

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Callable

from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, FencedError, FrameError, StateError
from qafel.federation.connection import Connection, Notice, quiet
from qafel.federation.entries import Decision, Stop
from qafel.federation.messages import Ask, Done
from qafel.federation.nats import CLOSED, NO_SPACE, Message
from qafel.federation.plan import Plan, write_welcome
from qafel.federation.server.checkpoints import Checkpoints, Record, load_state
from qafel.federation.server.increments import Increments
from qafel.federation.server.leader import Leadership
from qafel.federation.server.leases import Leases
from qafel.federation.server.monitoring import Metrics, Monitor
from qafel.federation.server.processor import Processor, patiently
from qafel.federation.server.reader import LogReader, Requests, find_skips
from qafel.federation.server.state import FederationState, warm_up
from qafel.federation.server.streams import max_entries, open_keys, open_log, open_streams, remove_finished
from qafel.federation.subjects import owner
from qafel.federation.waiting import Backoff, give_up, in_thread, unless
from qafel.runs.folder import RunFolder
from qafel.vectors import Vector

Evaluate = Callable[[Vector], dict[str, float]]
"""Named metrics of a model on held-out samples."""
CHECKPOINT_SHARE = 0.1
"""At most this share of the time is spent on checkpoints."""
MAX_REFUSALS = 8
"""Give up after this many consecutive refusals of the broker."""
STANDBY_PATIENCE = 20.0
TICK, REPORTS = 0.25, 20
"""Seconds between two checks of the leases, and the number of checks between two reports to observers."""


class FederationServer:
    """One server; ``at(step)`` is a fault-injection hook for tests, called at each step of a commit."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        x: Vector,
        connection: Connection,
        folder: RunFolder,
        leadership: Leadership,
        *,
        evaluate: Evaluate | None = None,
        standby: bool = False,
        key: bytes | None = None,
        notice: Notice = quiet,
        at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
    ) -> None:
        self.plan, self.job, self.folder, self.metrics = plan, job, folder, Metrics()
        self._x, self._connection, self._standby, self._key = x, connection, standby, key
        self._evaluate_model, self._notice, self._at = evaluate, notice, at
        self._leadership = leadership
        self._checkpoints = Checkpoints(connection, folder)
        self._monitor = Monitor(connection, self.metrics)
        self._state: FederationState | None = None
        self._pending: list[Message] = []
        """Entries that were read and wait until an evaluation is done."""
        self._read_at = 0.0
        """When the log was last read to its end."""
        self._points = 0  # the evaluations that are in the folder
        self._reason: str | None = None
        """Why the server has asked the log to end the training."""
        self._leads = False
        self.stopping = asyncio.Event()
        """Set to stop: the entries at hand are processed and saved, and another server may take over."""
        self.metrics.ready = self._not_ready

    def _not_ready(self) -> str | None:
        """Why the server is not ready, or None."""
        if not self._leads:
            return "it does not lead"
        return None if self._connection.is_connected else "the broker cannot be reached"

    @property
    def state(self) -> FederationState:
        """The state after the entries so far."""
        if self._state is None:
            raise StateError("the server has not started")
        return self._state

    async def run(self) -> FederationState | None:
        """Run until the training has ended and return the state; None if ``stopping`` was set before.

        FencedError if another server takes over.
        """
        backoff, refusals = Backoff(0.1, 2.0), 0
        living = asyncio.create_task(self._live())
        try:
            while not self.stopping.is_set():
                try:
                    if not await unless(self.stopping, self._prepare()):
                        return None
                    backoff.reset()
                    refusals = 0
                    await self._while_leading()
                    return self.state if self.state.tracker.reason is not None else None
                except BrokerError as error:
                    # a write that was refused (a code) may mean that the broker has lost its newest messages
                    fenced = isinstance(error, FencedError) and not error.code
                    self._notice("fenced" if fenced else "broker", detail=str(error))
                    refusals += bool(error.code) and error.code not in NO_SPACE
                    if fenced or refusals > MAX_REFUSALS or error.code == CLOSED:
                        raise
                finally:
                    self._leads = False
                await unless(self.stopping, backoff.pause())
            return None  # what was processed is in the journal
        finally:
            living.cancel()
            await self._leadership.release()
            self._checkpoints.journal.close()

    async def _while_leading(self) -> None:
        """Work, answer and report; when one of them fails, all end."""
        requests = Requests(self._connection, self._request, self._processor.answer)
        work = asyncio.create_task(self._work())
        tasks = {
            work,
            asyncio.create_task(requests.work()),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._fenced()),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task is not work):
                task.result()
        finally:
            await give_up(tasks)
            await requests.close()
            await self._reader.close()

    async def _fenced(self) -> None:
        await self._leadership.lost.wait()
        raise FencedError("another server has taken over")

    async def _live(self) -> None:
        """Give signs of life, also while the server starts: it may have much to load and to save."""
        while True:
            self._leadership.alive()
            await asyncio.sleep(TICK)

    async def _tick(self) -> None:
        """Leases at each tick; every second a status for those who watch."""
        for count in itertools.count():
            if self._connection.reconnects != self._reconnects:
                raise BrokerError("the connection was lost; what the broker has is checked again")
            self._leases.expire(self._read_at)
            await self._processor.answer()
            if count % 4 == 0:
                await self._report()
            if count % REPORTS == REPORTS - 1:
                with contextlib.suppress(BrokerError):  # the next one may succeed
                    await self._monitor.store(self.state, self._leases)
            await asyncio.sleep(TICK)

    async def _report(self) -> None:
        await self._monitor.report(self.state, self._leases, self._leadership.term)

    def _request(self, subject: str, data: bytes) -> None:
        """Take the request of a client; one that cannot be read is ignored."""
        client = owner(subject)
        with contextlib.suppress(FrameError):
            ask = Ask.from_bytes(data)
            if client is not None:
                self.metrics.add("resyncs_total", ask.resyncs)
                self._leases.asked(client, ask, time.monotonic())

    # --- starting ---

    async def _prepare(self) -> None:
        """Take the leadership, load the state, and make sure that the streams exist."""
        connection, plan, job, first = self._connection, self.plan, self.job, self._state is None
        self._reconnects = connection.reconnects
        if self._checkpoints.journal.unwritten:
            await patiently(self._checkpoints.journal.write, self._notice)
        existed = await open_keys(connection, plan.replicas, patience=STANDBY_PATIENCE * self._standby)
        if self._standby and not existed:
            if self._leadership.seen:
                raise self._leadership.no_copy()
            raise ConfigError(
                f"the broker has no federation {plan.name!r}; start its first server, not as a standby"
            )
        if first and not self._standby:
            await remove_finished(connection, self.folder, plan.replicas)
        waits = functools.partial(self._notice, "waits while another server leads")
        term = await self._leadership.take(standby=self._standby, again=not first, waits=waits)
        self._notice("leads", term=term)
        await self._checkpoints.lead(term)
        await write_welcome(connection, job, plan)
        increments = Increments(connection, term, self._leadership.holder)
        if first:
            self._state = await load_state(
                self._checkpoints,
                increments,
                plan,
                job,
                self._x,
                self._key,
                self._notice,
                standby=self._standby,
            )
            self._leases = Leases(self.state, 0, max_entries(self.state.server.frame_limit))
            await asyncio.to_thread(warm_up, job)
        state, self._standby = self.state, False
        await open_streams(connection, plan.replicas, state.server.frame_limit)
        await increments.open(plan.replicas, state.server)
        again = await open_log(connection, state, plan.replicas)
        if again is not None:
            self._notice("the log lost its tail", processed=state.sequence, again=again + 1)
            state.rewind(again)
            self._checkpoints.journal.unwritten.append(Record(state.processed, again, "", b""))
        if first:
            self.folder.truncate(0)
        await self._start(increments)
        uploads = state.tracker.totals.uploads
        self._notice("ready", version=state.server.version, sequence=state.sequence, uploads=uploads)
        await connection.send(connection.subjects.live, b"")  # clients that wait for an answer ask again

    async def _start(self, increments: Increments) -> None:
        """Save a checkpoint, and read on after it."""
        connection, state = self._connection, self.state
        self._leases.reopen(increments.last)
        self._processor = Processor(
            connection,
            state,
            self._checkpoints,
            increments,
            self._leases,
            self._monitor,
            skips=await find_skips(connection, state.sequence),
            notice=self._notice,
            at=self._at,
        )
        await self._processor.save(again=True)
        self._reader, self._pending = LogReader(connection, state.sequence), []
        self._leads, self._since = True, time.monotonic()
        if self._reason is not None and state.tracker.reason is None:
            await self._stop(self._reason)  # the broker may not have it

    # --- working ---

    async def _work(self) -> None:
        tracker, processor = self.state.tracker, self._processor
        await self._evaluate()
        while tracker.reason is None:
            if self.stopping.is_set():
                await processor.save()
                await self._leadership.resign()
                self._notice("resigned", uploads=tracker.totals.uploads, version=self.state.server.version)
                return
            await self._read()
            await self._commit()
            await self._evaluate()
            pause = max(self.state.plan.checkpoint_seconds, processor.cost / CHECKPOINT_SHARE)
            if self._leases.purge_wanted:  # half of the time is the most that a client can make it spend
                pause = min(pause, processor.cost)
            if time.monotonic() - processor.saved_at >= pause:
                await processor.save()
        await self._evaluate()
        await self._commit()
        await processor.save()
        await self._end(tracker.reason)

    async def _read(self) -> None:
        """Process the entries that have arrived, up to the next evaluation."""
        tracker = self.state.tracker
        left = self.state.plan.checkpoint_seconds - (time.monotonic() - self._processor.saved_at)
        (messages, self._pending), read_at = (self._pending, []), None
        if not messages:
            messages = await self._reader.next(min(TICK, max(0.02, left)))
            read_at = None if self._reader.behind else time.monotonic()
        if messages:
            self._at("after read")
        for k, message in enumerate(messages):
            await self._processor.take(message)
            if tracker.reason is not None:
                return
            if k % 16 == 15:
                await asyncio.sleep(0)  # requests and signs of life do not wait for the whole batch
            if tracker.evaluation_due or self.stopping.is_set():
                self._pending = messages[k + 1 :]
                return
        self._read_at = read_at or self._read_at

    async def _commit(self) -> None:
        """Commit what was processed, append new evaluations to the folder, and advance the run's clock."""
        await self._processor.commit()
        for point in self.state.tracker.points[self._points :]:
            await patiently(functools.partial(self.folder.append, point), self._notice)
            await patiently(functools.partial(self.folder.write_live, self.state.tracker.live), self._notice)
            self._points += 1
        now, tracker = time.monotonic(), self.state.tracker
        tracker.totals.in_flight = self._leases.in_flight
        tracker.advance(tracker.totals.time + now - self._since, decides=False)
        self._since = now
        if self._reason is None and tracker.wanted is not None:
            await self._stop(tracker.wanted)

    async def _evaluate(self) -> None:
        """Evaluate the model if it is due."""
        state, tracker = self.state, self.state.tracker
        if self._evaluate_model is None or not tracker.evaluation_due:
            return
        if self._reason is not None and tracker.reason is None:
            return  # the log will end the training
        await self._commit()
        metrics = await in_thread(self._evaluate_model, state.server.x.copy())
        await self._commit()
        state.evaluated(metrics)
        if self._reason is None and tracker.wanted is not None:
            await self._stop(tracker.wanted)
        for point in tracker.points[-1:]:
            smoothed = {name: round(value, 4) for name, value in point.smoothed.items()}
            self._notice("evaluated", uploads=point.uploads, **smoothed)

    async def _stop(self, reason: str) -> None:
        """Ask the log to end the training; it ends when this is read there."""
        self._reason, subject = reason, self._connection.subjects.entry("server")
        await self._connection.publish(subject, Decision(Stop(reason[:300])).to_bytes())

    async def _end(self, reason: str) -> None:
        """Say that the training has ended, once the result is stored."""
        await self._processor.snapshot(asked=True)
        await self._connection.purge(self._connection.subjects.pieces)
        done = Done(reason, self.state.decided).to_bytes()
        if len(done) > self._connection.room:
            done = Done(reason, {}).to_bytes()
        await self._connection.publish(self._connection.subjects.public("done"), done)
        self._leases.end(reason)
        await self._processor.answer()
        await self._report()
        await self._monitor.store(self.state, self._leases)
        await self._leadership.resign()
        uploads = self.state.tracker.totals.uploads
        self._notice("done", reason=reason, uploads=uploads, version=self.state.server.version)
