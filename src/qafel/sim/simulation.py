"""A run: the timeline is walked event by event; clients train when they start, and only their frame is kept.

    START     train from the x̂ of this moment, keep the frame
    REPORT    server.receive(frame); a step's increment moves x̂ on
    LOST      nothing arrives

All that a client sends and gets is a real frame, and ``len(frame)`` is what is counted. A checkpoint holds
the server, the timeline, the followers' x̂ and the frames in flight; a run that continues from it ends in the
same bytes as one that was never interrupted.
"""

import math
import os
import signal
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from qafel import wire
from qafel.client import Advanced, Client
from qafel.coding.threads import cores
from qafel.errors import ConfigError, DivergenceError, QafelError, StateError
from qafel.hidden import digest
from qafel.runs.folder import RunFolder
from qafel.runs.result import Point
from qafel.server import Accepted, Server, Stepped
from qafel.sim.frames import Frames
from qafel.sim.pool import Here, Learner
from qafel.sim.saved import Saved
from qafel.sim.settings import Settings
from qafel.sim.timeline import Event, Timeline
from qafel.sim.workers import Workers
from qafel.vectors import Layout, Vector
from qafel.wire import Rejected

CHECKPOINT = b"QR"
FORMAT = 2
CHECKPOINT_SECONDS = 30.0
"""How often a run is saved."""


class Simulation:
    """One run of one learner under one set of settings."""

    def __init__(
        self,
        settings: Settings,
        learner: Learner,
        *,
        workers: int | None = None,
        folder: RunFolder | None = None,
        layout: Layout | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        progress: Callable[["Simulation"], None] = lambda _: None,
    ) -> None:
        self.settings, self.learner, self.folder, self._progress = settings, learner, folder, progress
        default = cores() if hasattr(os, "fork") else 1
        self.workers = default if workers is None else workers
        self._checkpoint_seconds = checkpoint_seconds
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, not {workers}")
        if settings.device != "cpu":
            self.workers = 1
        job = settings.job(learner.x.size, layout)
        self.server = Server(job, learner.x)
        self.timeline = Timeline(
            settings.clock(),
            clients=learner.clients,
            buffer_size=job.buffer_size,
            max_staleness=job.max_staleness,
            seed=settings.seed,
        )
        self.frames = Frames(folder.frames if folder else None)
        self.points: list[Point] = []
        self.staleness: Counter[int] = Counter()
        self.uploads = self.bytes_up = self.bytes_down = 0
        self.lost = self.turned_away = self.in_flight = self.peak = 0
        self.time = self.area = 0.0
        self.residual = 0.0
        self.reason: str | None = None
        """Why the run ended."""
        self._sent: deque[bytes] = deque()
        """Increments that have not reached the clients."""
        self._follower = Client(job, learner.x, client=0)
        unicast = settings.downlink == "catch-up"
        self._known = np.full(learner.clients, -1) if unicast else None
        self.seconds = dict.fromkeys(("total", "server", "evaluation", "checkpoint"), 0.0)
        self._before: dict[str, float] = {}
        """What was spent before the run was resumed."""
        self._saved_at = 0.0
        self._stop = False

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted, to be resumed."""
        return self.reason is None

    def run(self) -> None:
        """Until the target, the number of uploads, the byte budget or the time limit is reached, or
        Ctrl-C.
        """
        began = time.perf_counter()
        before, self._saved_at = self.seconds["total"], began
        if self.workers == 1:
            self.pool: Here | Workers = Here(self.server.job, self.learner, self.frames)
        else:
            self.pool = Workers(self.server.job, self.learner, self.frames, self.workers)
        try:
            self.pool.follow(self._follower.hidden.x, self._follower.version, self.time)
            with self._interruptible():
                if not self.points:
                    self._evaluate()
                for event in self.timeline if self.reason is None else ():
                    self._handle(event)
                    self.seconds["total"] = before + time.perf_counter() - began
                    self._progress(self)
                    if self.reason or self._stop:
                        break
                    if self.folder and time.perf_counter() - self._saved_at > self._checkpoint_seconds:
                        self.checkpoint()
                else:
                    self.reason = self.reason or "the trace has ended"
                if self.reason and self.points[-1].uploads < self.uploads:
                    self._evaluate()
                if self.folder:
                    self.checkpoint()  # to go on from, or so that nothing is lost while the rest is written
        finally:
            self.seconds["total"] = before + time.perf_counter() - began
            self.pool.close()
            self.frames.close()

    def _handle(self, event: Event) -> None:
        k = self.timeline._k
        limit = self.settings.time_limit
        now = event.time if limit is None else min(event.time, limit)
        if now > self.time:
            self.area += self.in_flight * (now - self.time)
            self.peak = max(self.peak, self.in_flight)
        self.time = now
        if limit is not None and event.time >= limit:
            self.reason = "time limit"
            return
        if event.kind == k.REPORT:
            self._report(event)
        elif event.kind == k.START:
            self.in_flight += 1
            self.pool.start(event)
            download = self._download(event)
            if self.timeline.asks:
                self.timeline.answer(download)
        elif event.kind == k.TRAINED:
            self.pool.wait(event.task)
            self.timeline.answer(_transfer(self.frames.size(event.task), self.settings.up_bandwidth))
        elif event.kind == k.DELIVER:
            self._deliver(self._sent.popleft())
        elif event.kind == k.NEVER:
            self.in_flight += 1
            download = self._download(event)
            if self.timeline.asks:
                self.timeline.answer(download)
        elif event.kind == k.AWAY:
            self.turned_away += 1
        else:
            self.in_flight -= 1
            self.lost += 1

    def _report(self, event: Event) -> None:
        """An update reaches the server."""
        self.pool.wait(event.task)
        frame = self.frames.pop(event.task)
        if self.folder is None:
            self.frames.commit()
        before = time.perf_counter()
        events = self.server.receive(frame)
        self.seconds["server"] += time.perf_counter() - before
        self.uploads += 1
        self.in_flight -= 1
        self.bytes_up += len(frame)
        for happened in events:
            if isinstance(happened, Accepted):
                self.staleness[happened.staleness] += 1
            elif isinstance(happened, Stepped):
                self._stepped(happened)
            elif not isinstance(happened, Rejected) or happened.reason != "stale":
                raise QafelError(f"the server did not take an update of the simulation: {happened}")
        if self.uploads % self.settings.evaluate_every == 0:
            self._evaluate()
        budget = self.settings.byte_budget
        if self.reason is None and self.uploads >= self.settings.uploads:
            self.reason = "uploads"
        elif self.reason is None and budget is not None and self.bytes_up + self.bytes_down >= budget:
            self.reason = "byte budget"

    def _stepped(self, step: Stepped) -> None:
        """The server took a step: its increment reaches the clients, now or when it has been transferred."""
        self.residual = step.residual
        if self._known is None:
            self.bytes_down += len(step.frame)
        if self.timeline.asks:
            self._sent.append(step.frame)
            self.timeline.answer(_transfer(len(step.frame), self.settings.down_bandwidth))
        else:
            self._deliver(step.frame)

    def _deliver(self, frame: bytes) -> None:
        """x̂ moves on, as it does at every client: with its digest checked."""
        event = self._follower.apply(frame)
        if not isinstance(event, Advanced):
            raise QafelError(f"x̂ does not follow the server: {event}")
        self.pool.follow(self._follower.hidden.x, self._follower.version, self.time)

    def _download(self, event: Event) -> float:
        """The time it takes a client to catch up before it starts; no time where x̂ is broadcast."""
        if self._known is None:
            return 0.0
        held = int(self._known[event.client])
        self._known[event.client] = event.version
        if held == event.version:
            return 0.0
        whole = self.server.hidden.snapshot_bytes(self.server.job.id)
        missing = None if held < 0 else self.server.log.bytes_since(held)
        size = whole if missing is None else missing
        self.bytes_down += size
        return _transfer(size, self.settings.down_bandwidth)

    def _evaluate(self) -> None:
        before = time.perf_counter()
        verdicts = self.pool.judge(self.server.x)
        self.seconds["evaluation"] += time.perf_counter() - before
        count = self.learner.held_out
        accuracy = sum(right for right, _ in verdicts) / count
        recent = (
            [p.accuracy for p in self.points[-self.settings.smoothing + 1 :]]
            if self.settings.smoothing > 1
            else []
        )
        loss = sum(loss for _, loss in verdicts) / count
        if not math.isfinite(loss):
            raise DivergenceError(
                f"the loss on the held-out samples is {loss} after {self.uploads} uploads; "
                "lower the rates, or look at the model and the data"
            )
        point = Point(
            uploads=self.uploads,
            version=self.server.version,
            time=self.time,
            accuracy=accuracy,
            smoothed=statistics.median([*recent, accuracy]),
            loss=loss,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            staleness=self.mean_staleness,
            in_flight=self.in_flight,
            residual=self.residual,
        )
        self.points.append(point)
        if self.folder:
            self.folder.append(point)
        full = len(self.points) > self.settings.smoothing
        if self.settings.target is not None and full and point.smoothed >= self.settings.target:
            self.reason = "target"

    @property
    def spent(self) -> dict[str, float]:
        """Seconds, by purpose: by the wall, and for samples, training and coding in CPU time of all
        workers.
        """
        names = ("samples", "training", "coding")
        busy = {n: s + self._before.get(n, 0.0) for n, s in zip(names, self.pool.seconds, strict=True)}
        return self.seconds | busy

    @property
    def mean_staleness(self) -> float:
        """Of the accepted updates."""
        total = sum(self.staleness.values())
        return sum(tau * n for tau, n in self.staleness.items()) / total if total else 0.0

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the run after the event at hand; a second one at once."""
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
            raise StateError("a run without a folder cannot be saved")
        began = time.perf_counter()
        self.pool.settle()
        names = (
            "uploads",
            "bytes_up",
            "bytes_down",
            "lost",
            "turned_away",
            "in_flight",
            "peak",
            "time",
            "area",
            "residual",
        )
        counts = {name: getattr(self, name) for name in names}
        saved = Saved(
            settings=self.settings.to_toml(),
            reason=self.reason,
            fingerprint=self.learner.fingerprint,
            server=self.server.state(),
            follower=self._follower.state(),
            timeline=self.timeline.state(),
            frames=self.frames.state(),
            sent=list(self._sent),
            known=b"" if self._known is None else self._known.tobytes(),
            counts=counts,
            staleness=dict(self.staleness),
            points=self.points,
            seconds=self.spent,
            metrics_bytes=self.folder.metrics_bytes,
        )
        self.folder.save(wire.seal(CHECKPOINT, FORMAT, msgspec.msgpack.encode(saved)))
        self.frames.commit()
        self._saved_at = time.perf_counter()
        self.seconds["checkpoint"] += self._saved_at - began

    def resume(self, data: bytes) -> None:
        """Continue from a checkpoint of the same settings."""
        body = wire.unseal(CHECKPOINT, FORMAT, data)
        saved = wire.unpack(body, msgspec.msgpack.Decoder(Saved))
        if saved.settings != self.settings.to_toml():
            raise StateError("the checkpoint belongs to a run with other settings")
        if saved.fingerprint != self.learner.fingerprint:
            raise StateError("the data or the model is not what it was when the run began; start it anew")
        self.reason = saved.reason
        self.server = Server.from_state(saved.server)
        self._follower = Client.from_state(saved.follower)
        self.timeline.restore(saved.timeline)
        self.frames.restore(saved.frames)
        self._sent = deque(saved.sent)
        if self._known is not None:
            self._known = np.frombuffer(saved.known, np.int64).copy()
        for name, value in saved.counts.items():
            setattr(self, name, value)
        self.staleness = Counter(saved.staleness)
        self.points = saved.points
        self._before = saved.seconds
        self.seconds = {name: saved.seconds[name] for name in self.seconds}
        if self.folder:
            self.folder.truncate(saved.metrics_bytes)

    @property
    def x(self) -> Vector:
        """The model."""
        return self.server.x

    @property
    def digest(self) -> str:
        """Subjects the model and the hidden state, to the bit."""
        return f"{digest(self.server.x, self.server.version):016x}{self.server.hidden.digest:016x}"


def _transfer(size: int, bandwidth: float | None) -> float:
    return 0.0 if bandwidth is None else size / bandwidth
