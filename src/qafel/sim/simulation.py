"""A simulation: it walks the timeline; clients train when they start, and only their frame is kept.

    START     train from the current x̂, keep the frame
    REPORT    server.receive(frame); the increment of a step moves x̂
    LOST      nothing arrives

Everything that is sent is a real frame, and ``len(frame)`` is what the tracker counts. A checkpoint holds the
server, the timeline, the follower's x̂ and the frames in flight; a run that continues from it ends in the same
bytes as one that was never interrupted.
"""

import math
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from qafel.buffer import BoundedBuffer
from qafel.client import Advanced, Client
from qafel.config import Job
from qafel.errors import ConfigError, QafelError, QafelWarning, StateError
from qafel.machine import cores
from qafel.runs import notebook
from qafel.runs.events import EVENTS
from qafel.runs.folder import METRICS, RunFolder
from qafel.runs.summary import crowded
from qafel.runs.tracker import Callback, Totals, Tracker, mean_metrics, model_digest
from qafel.server import Accepted, Server, Stepped
from qafel.sim.clock import Times
from qafel.sim.frames import Frames
from qafel.sim.frames import State as FramesState
from qafel.sim.pool import InProcess, Learner
from qafel.sim.settings import Settings
from qafel.sim.timeline import Event, Timeline, kernels
from qafel.sim.workers import Workers
from qafel.vectors import Vector
from qafel.wire import Rejected, Sealed, request_bytes

CHECKPOINT_SECONDS = 30.0
"""The default time between two checkpoints."""


class Saved(Sealed, frozen=True):
    """Everything that decides what happens next in a simulation, and what was measured so far."""

    MAGIC: ClassVar[bytes] = b"QR"
    FORMAT: ClassVar[int] = 3

    settings: str
    fingerprint: int
    server: bytes
    follower: bytes
    timeline: bytes
    frames: FramesState
    sent: list[bytes]
    known: bytes
    totals: Totals
    seconds: dict[str, float]
    metrics_bytes: int
    events_bytes: int = 0


class Simulation:
    """One run of one learner under one set of settings."""

    def __init__(
        self,
        settings: Settings,
        learner: Learner,
        *,
        workers: int | None = None,
        folder: RunFolder | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        durations: Callable[[int], Times] | None = None,
        progress: Callable[["Simulation"], None] | None = None,
        callbacks: Sequence[Callback] = (),
        events: bool = False,
    ) -> None:
        """``events``: also write events.jsonl into the folder (``qafel.runs.events``); ``progress`` is called
        after every event, by default a bar in a notebook.
        """
        self.settings, self.learner, self.folder = settings, learner, folder
        self._progress = progress or notebook.run_bar()
        default = cores() if hasattr(os, "fork") else 1
        self.workers = default if workers is None else workers
        self._checkpoint_seconds = checkpoint_seconds
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        if settings.device != "cpu":
            self.workers = 1
        job = settings.job(learner.x.size, getattr(learner, "layout", None))
        self._weighted = _weighted_buffer(settings, job)
        own = settings.object("aggregator")
        if own is not None and own.count:
            raise ConfigError(f"the aggregator has {own.count} updates of another run; pass a new one")
        self._options: Any = {"weight": settings.weight, "aggregator": self._weighted or own}
        self.server = Server(job, learner.x, **self._options)
        self.tracker = Tracker(settings, folder, callbacks)
        self.tracker.about = {"size": job.size, "clients": learner.clients}
        self.timeline = Timeline(settings, clients=learner.clients, durations=durations)
        in_flight = self.timeline.expected_in_flight
        if in_flight > learner.clients:
            warnings.warn(crowded(in_flight, learner.clients), QafelWarning, stacklevel=2)
        self.frames = Frames(folder.frames if folder else None)
        self._sent: deque[bytes] = deque()
        """Increments that have not reached the clients."""
        self._follower = Client(job, learner.x, client=0)
        self._held = None if settings.downlink == "broadcast" else np.zeros(learner.clients, np.int64)
        """The version of x̂ that each client holds, where increments are not broadcast; x⁰ is agreed on."""
        if folder and events:
            (folder.path / EVENTS).touch()
        self._events = folder if folder and folder.has_events else None
        self.seconds = dict.fromkeys(("total", "server", "evaluation", "checkpoint"), 0.0)
        self._before: dict[str, float] = {}
        """The seconds that were spent before the run was resumed."""
        self._saved_at = 0.0
        self._stop = False

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted and can be resumed."""
        return self.tracker.reason is None

    def run(self) -> None:
        """Run until a stop condition is met, or Ctrl-C."""
        began = time.perf_counter()
        before, self._saved_at = self.seconds["total"], began
        if self.workers == 1:
            self.pool: InProcess | Workers = InProcess(self.server.job, self.learner, self.frames)
        else:
            self.pool = Workers(self.server.job, self.learner, self.frames, self.workers)
        tracker = self.tracker
        try:
            self.pool.follow(self._follower.hidden.x, self._follower.version, tracker.totals.time)
            with self._interruptible():
                self._evaluate()
                for event in self.timeline if tracker.reason is None else ():
                    self._handle(event)
                    self.seconds["total"] = before + time.perf_counter() - began
                    self._progress(self)
                    if tracker.reason or self._stop:
                        break
                    if self.folder and time.perf_counter() - self._saved_at > self._checkpoint_seconds:
                        self.checkpoint()
                else:
                    tracker.end("the trace has ended")
                self._evaluate()
                if self.folder:
                    self.checkpoint()  # so that nothing is lost while the result is written
        finally:
            self.seconds["total"] = before + time.perf_counter() - began
            self.pool.close()
            self.frames.close()

    def _handle(self, event: Event) -> None:
        tracker = self.tracker
        tracker.advance(event.time)
        if tracker.reason is not None:
            return
        if event.kind == kernels.REPORT:
            self._report(event)
        elif event.kind in (kernels.START, kernels.NEVER):
            tracker.totals.in_flight += 1
            self._note("start", event, event.version)
            if event.kind == kernels.START:
                self.pool.start(event)
            delay = self._download(event)
            if self.timeline.asks:
                self.timeline.answer(delay)
        elif event.kind == kernels.TRAINED:
            self.pool.wait(event.serial)
            self.timeline.answer(_transfer(self.frames.size(event.serial), self.settings.up_bandwidth))
        elif event.kind == kernels.DELIVER:
            self._deliver(self._sent.popleft())
        elif event.kind == kernels.AWAY:
            tracker.totals.turned_away += 1
        else:
            self._note("lost", event)
            tracker.totals.in_flight -= 1
            tracker.totals.lost += 1

    def _note(self, kind: str, event: Event, *more: Any) -> None:
        if self._events is not None:
            self._events.note(kind, event.time, event.client, event.task, *more)

    def _report(self, event: Event) -> None:
        """An update reaches the server."""
        self.tracker.totals.reported = event.client, event.task
        self.pool.wait(event.serial)
        frame = self.frames.pop(event.serial)
        if self.folder is None:
            self.frames.commit()
        if self._weighted is not None:
            self._weighted.samples = self.learner.count(event.client)  # type: ignore[attr-defined]
        before = time.perf_counter()
        events = self.server.receive(frame)
        self.seconds["server"] += time.perf_counter() - before
        self.tracker.totals.in_flight -= 1
        self.tracker.received(len(frame), events)
        for outcome in events:
            if isinstance(outcome, Accepted):
                self._note("report", event, outcome.staleness)
            elif isinstance(outcome, Rejected):
                self._note("rejected", event, outcome.reason)
            if isinstance(outcome, Stepped):
                if self._events is not None:
                    self._events.note("step", event.time, outcome.version, len(outcome.frame))
                self._stepped(outcome)
            elif isinstance(outcome, Rejected) and outcome.reason != "stale":
                raise QafelError(f"the server refused an update of the simulation: {outcome}")
        self._evaluate()

    def _stepped(self, step: Stepped) -> None:
        """An increment reaches the clients, now or when it has been transferred."""
        if self.timeline.asks:
            self._sent.append(step.frame)
            self.timeline.answer(_transfer(len(step.frame), self.settings.down_bandwidth))
        else:
            self._deliver(step.frame)

    def _deliver(self, frame: bytes) -> None:
        """Apply an increment to x̂, as every client does: its digest is checked."""
        event = self._follower.apply(frame)
        if not isinstance(event, Advanced):
            raise QafelError(f"the follower's hidden state differs from the server's: {event}")
        self.pool.follow(self._follower.hidden.x, self._follower.version, self.tracker.totals.time)

    def _download(self, event: Event) -> float:
        """The time that a client needs to catch up before it starts; 0 where x̂ is broadcast."""
        if self._held is None:
            return 0.0
        held = int(self._held[event.client])
        self._held[event.client] = event.version
        size = self.server.catch_up_bytes(held)
        self.tracker.downloaded(size, request_bytes(self.server.job.id, event.client, held))
        return _transfer(size, self.settings.down_bandwidth)

    def _evaluate(self) -> None:
        if not self.tracker.evaluation_due:
            return
        before = time.perf_counter()
        parts, error = self.pool.evaluate(self.server.x, *self.tracker.totals.reported)
        self.seconds["evaluation"] += time.perf_counter() - before
        metrics = mean_metrics(parts, self.learner.held_out)
        self.tracker.evaluated(metrics, error if math.isfinite(error) else None)

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of this process, and of all workers for samples, training and coding."""
        names = ("samples", "training", "coding")
        busy = {n: s + self._before.get(n, 0.0) for n, s in zip(names, self.pool.seconds, strict=True)}
        return self.seconds | busy

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the run after the current event; a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(_number: int, _frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def checkpoint(self) -> None:
        """Save the run, so that it can be resumed from here."""
        if self.folder is None:
            raise StateError("a run without a folder cannot be saved; pass folder=")
        began = time.perf_counter()
        self.pool.settle()
        saved = Saved(
            settings=self.settings.to_toml(),
            fingerprint=self.learner.fingerprint,
            server=self.server.state(),
            follower=self._follower.state(),
            timeline=self.timeline.state(),
            frames=self.frames.state(),
            sent=list(self._sent),
            known=b"" if self._held is None else self._held.tobytes(),
            totals=self.tracker.totals,
            seconds=self.spent,
            metrics_bytes=self.folder.size(METRICS),
            events_bytes=self.folder.size(EVENTS),
        )
        self.folder.save(saved.to_bytes())
        self.frames.commit()
        self._saved_at = time.perf_counter()
        self.seconds["checkpoint"] += self._saved_at - began

    def resume(self, data: bytes) -> None:
        """Continue from a checkpoint of the same settings."""
        saved = Saved.from_bytes(data)
        if saved.settings != self.settings.to_toml():
            raise StateError("the checkpoint belongs to a run with other settings")
        if saved.fingerprint != self.learner.fingerprint:
            raise StateError(
                "the data, the model or the training has changed since the run began; start the run again"
            )
        self.server = Server.from_state(saved.server, **self._options)
        self._follower = Client.from_state(saved.follower)
        self.timeline.restore(saved.timeline)
        self.frames.restore(saved.frames)
        self._sent = deque(saved.sent)
        if self._held is not None:
            self._held = np.frombuffer(saved.known, np.int64).copy()
        self.tracker.totals = saved.totals
        self.tracker.replay()
        self._before = saved.seconds
        self.seconds = {name: saved.seconds[name] for name in self.seconds}
        if self.folder:
            self.folder.truncate(saved.metrics_bytes, saved.events_bytes)

    @property
    def x(self) -> Vector:
        """The model."""
        return self.server.x

    @property
    def digest(self) -> str:
        """The digests of the model and the hidden state."""
        return model_digest(self.server)


def _weighted_buffer(settings: Settings, job: Job) -> BoundedBuffer | None:
    """The buffer that weights updates by their samples, if the settings ask for it."""
    if settings.weighting != "samples":
        return None
    limits: Any = {"max_norm": math.inf, "window": 1, "max_samples": settings.max_samples}
    return BoundedBuffer(job.quantizers()[0], job.size, **limits)


def _transfer(size: int, bandwidth: float | None) -> float:
    return 0.0 if bandwidth is None else size / bandwidth
