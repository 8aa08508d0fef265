"""The server's state as a function of the log: the same entries in the same order give the same bytes.

This module uses neither a clock nor the network. A server that continues from ``state()`` and reads on takes
the same steps to the same increments, to the bit.

An upload is *decided* once: it is counted, or rejected for a reason that its client is told. An entry that
cannot be read, or that carries no token of a lease, is rejected and decides nothing; an honest client sends
its update again.
"""

import contextlib
import secrets
import statistics
import warnings
from collections import Counter
from collections.abc import Collection
from typing import Any, ClassVar

import msgspec
import numpy as np

from qafel import wire
from qafel.buffer import MAX_RATIO, BoundedBuffer
from qafel.client import Client
from qafel.config import Job
from qafel.errors import ConfigError, DivergenceError, FrameError, QafelError, QafelWarning, StateError
from qafel.federation.entries import KEY_BYTES, Change, Decision, Report, Skip, Stop, Upload, is_token
from qafel.federation.messages import Decided
from qafel.federation.plan import Plan, change
from qafel.runs.tracker import Totals, Tracker
from qafel.server import Accepted, Event, Server
from qafel.vectors import Vector
from qafel.wire import Rejected, Update

WINDOW = 10
"""Norms of the last 10·K updates decide what is too large."""
MAX_REPORTS = 1000
"""At most this many clients' newest reports are averaged."""


class _Saved(wire.Sealed, frozen=True):
    MAGIC: ClassVar[bytes] = b"QP"
    FORMAT: ClassVar[int] = 5

    key: bytes
    sequence: int
    tail: int
    processed: int
    server: bytes
    totals: Totals
    decided: dict[int, Decided]
    changes: dict[str, Any]
    reports: dict[int, Report]


class FederationState:
    """The server of a federation after the entries so far, and the tracker of its run."""

    def __init__(self, plan: Plan, job: Job, x: Vector, key: bytes | None = None) -> None:
        self._start(plan, job, key or secrets.token_bytes(KEY_BYTES))
        self.server = Server(job, x, aggregator=self._buffer, drop_divergent=True)

    def _start(self, plan: Plan, job: Job, key: bytes) -> None:
        self.plan, self.job, self.key = plan, job, key
        self.sequence = 0
        """The sequence number of the last entry that is included."""
        self.tail = 0
        """The fingerprint of that entry: it shows whether the broker still has it."""
        self.processed = 0
        """The number of entries so far; unlike ``sequence`` it never goes back."""
        self.decided: dict[int, Decided] = {}
        self._changes: dict[str, Any] = {}
        self._reports: dict[int, Report] = {}
        self.tracker = Tracker(plan)
        self.tracker.about = {"size": job.size, "downlink": plan.downlink}
        self._buffer = BoundedBuffer(
            job.quantizers()[0],
            job.size,
            max_norm=plan.max_norm,
            window=WINDOW * job.buffer_size,
            max_samples=plan.max_samples if plan.weighting == "samples" else None,
        )

    def refusal(self, client: int, upload: Upload) -> Rejected | None:
        """Why an upload is refused before its frame is read, or None."""
        if not is_token(self.key, client, upload):
            return Rejected("no_lease", f"task {upload.task} carries no token of a lease", client)
        if upload.task <= self.last(client).task:
            return Rejected("duplicate", f"task {upload.task} was decided before", client, upload.task)
        return None

    def last(self, client: int) -> Decided:
        """What became of a client's newest task."""
        return self.decided.get(client, Decided())

    def take(
        self,
        sequence: int,
        data: bytes,
        client: int | None,
        frame: bytes | FrameError | None = None,
        upload: Upload | None = None,
    ) -> list[Event]:
        """Process an upload; ``frame`` is its frame where that was in pieces, or why it cannot be read.

        ``upload`` is the upload in ``data``, where it was decoded before.
        """
        self.skip(sequence, data)
        try:
            upload = upload or Upload.from_bytes(data)
        except FrameError as error:
            return self._refuse(Rejected("malformed", str(error), client))
        if client is None:
            return self._refuse(Rejected("wrong_sender", "the subject names no client"))
        if (refused := self.refusal(client, upload)) is not None:
            return self._refuse(refused)
        if isinstance(frame, FrameError):
            return self._refuse(Rejected("missing_pieces", str(frame), client))
        return self._decide(client, upload, upload.frame if frame is None else frame)

    def _decide(self, client: int, upload: Upload, frame: bytes) -> list[Event]:
        """Count or reject an upload that has a lease."""
        self._buffer.samples = upload.samples
        events = self._receive(client, upload, frame)
        first = events[0] if events else None
        reason = "" if isinstance(first, Accepted) else "the training diverged"
        if isinstance(first, Rejected):
            reason = f"{first.reason}: {first.detail}"
        self.decided[client] = Decided(upload.task, reason, wire.fingerprint(frame))
        if upload.downloaded:
            models = 2 * self.server.hidden.snapshot_bytes(self.job.id)
            self.tracker.downloaded(min(upload.downloaded, models))
        self.tracker.received(len(frame), events, counts=not reason)
        if not reason:
            self._report(client, upload)
        return events

    def _receive(self, client: int, upload: Upload, frame: bytes) -> list[Event]:
        try:
            update = wire.decode(frame, self.server.frame_limit)
        except FrameError as error:
            return self._refuse(Rejected("malformed", str(error)))
        if isinstance(update, Update) and update.client == client:
            detail = None
            if update.task != upload.task:
                detail = f"the lease is for task {upload.task}"
            elif update.version < upload.version:
                detail = f"the update starts from version {update.version}, its lease from {upload.version}"
            if detail is not None:
                return self._refuse(Rejected("no_lease", detail, client, update.task))
        try:
            return self.server.process(update, client)
        except DivergenceError as error:
            self.tracker.end(f"diverged: {error}")
            return []

    def _refuse(self, rejected: Rejected) -> list[Event]:
        self.server.rejections[rejected.reason] += 1
        return [rejected]

    def _report(self, client: int, upload: Upload) -> None:
        """Keep a client's evaluation; evaluate when it is due."""
        if self.plan.evaluate_on != "clients":
            return
        _remember(self._reports, client, upload.report)
        if self.tracker.evaluation_due and self._reports:
            means = _combined(self._reports.values(), self.plan.held_out_samples)
            self._reports = {}
            self.evaluated(means)

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Record an evaluation.

        Evaluations of clients are in the log, so they may end the training; those of the server are not, and
        the server writes to the log what the tracker wants.
        """
        by_clients = self.plan.evaluate_on == "clients"
        try:
            self.tracker.evaluated(metrics, decides=by_clients)
        except DivergenceError as error:
            (self.tracker.end if by_clients else self.tracker.want)(f"diverged: {error}")
        except ConfigError:
            if not by_clients:
                raise  # otherwise no client has reported the target's metric

    def decide(self, sequence: int, data: bytes) -> str:
        """Process a decision; return what it did."""
        self.skip(sequence, data)
        try:
            decision = Decision.from_bytes(data).decision
        except FrameError as error:
            return f"a decision that cannot be read: {error}"
        if isinstance(decision, Stop):
            self.tracker.end(decision.reason)
            return f"stop: {decision.reason}"
        if isinstance(decision, Skip):
            return f"skip entry {decision.sequence}"
        try:
            changed = change(self.plan, decision)
        except ConfigError as error:
            return f"a change that is refused: {error}"
        self._changes |= decision.values
        self._use(changed)
        return "set " + ", ".join(f"{name} = {value}" for name, value in decision.values.items())

    def skip(self, sequence: int, data: bytes) -> None:
        """Pass over an entry: it is included, and changes nothing else."""
        self.sequence, self.tail, self.processed = sequence, wire.fingerprint(data), self.processed + 1

    def rewind(self, sequence: int) -> None:
        """Continue after another entry: the broker has lost the last ones.

        Entries that were processed before are met again; their tasks are decided, so they change nothing.
        """
        self.sequence, self.tail, self.processed = sequence, 0, self.processed + 1

    def _use(self, plan: Plan) -> None:
        self.plan = plan
        self.tracker.settings = plan
        self._buffer.max_norm = plan.max_norm

    def state(self) -> bytes:
        """Everything that decides what happens next; ``from_state`` continues to the same bytes."""
        return _Saved(
            self.key,
            self.sequence,
            self.tail,
            self.processed,
            self.server.state(),
            self.tracker.totals,
            self.decided,
            self._changes,
            self._reports,
        ).to_bytes()

    @classmethod
    def from_state(cls, plan: Plan, job: Job, data: bytes) -> "FederationState":
        """Continue from ``state()``; StateError if it is damaged or belongs to another job."""
        try:
            saved = _Saved.from_bytes(data)
        except FrameError as error:
            raise StateError(f"not the checkpoint of a federation: {error}") from error
        state = cls.__new__(cls)
        state._start(plan, job, saved.key)
        state.server = Server.from_state(saved.server, aggregator=state._buffer, drop_divergent=True)
        if state.server.job.id != job.id:
            raise StateError(f"the checkpoint belongs to job {state.server.job.id:016x}, not {job.id:016x}")
        state.sequence, state.tail, state.processed = saved.sequence, saved.tail, saved.processed
        state.decided, state._changes = saved.decided, saved.changes
        state._reports = saved.reports
        if saved.changes:
            state._use(change(plan, Change(saved.changes)))
        state.tracker.totals = saved.totals
        return state


def _remember(reports: dict[int, Report], client: int, report: Report | None) -> None:
    """Keep the newest report of a client; ignore a report with a number that is not finite."""
    if report is None or not all(np.isfinite(value) for value in report.sums.values()):
        return
    reports.pop(client, None)
    reports[client] = report
    if len(reports) > MAX_REPORTS:
        del reports[next(iter(reports))]


def _combined(reports: Collection[Report], max_samples: int) -> dict[str, float]:
    """The mean of every metric that most reports have; a report counts for at most ``max_samples`` samples.

    A value that is far from the others is cut to 30 times their median, and an accuracy to [0, 1].
    """
    names = Counter(name for report in reports for name in report.sums)
    means = {}
    for name, count in names.items():
        if 2 * count <= len(reports):
            continue
        having = [report for report in reports if name in report.sums]
        values = np.array([report.sums[name] / report.samples for report in having])
        sizes = np.abs(values[values != 0])
        limit = MAX_RATIO * statistics.median_low(sizes.tolist()) if sizes.size else 0.0
        values = values.clip(0.0, 1.0) if name == "accuracy" else values.clip(-limit, limit)
        weights = [min(report.samples, max_samples) for report in having]
        means[name] = float(np.average(values, weights=weights))
    return means


def warm_up(job: Job) -> None:
    """Take one step of such a job: it loads the kernels, so that the first upload waits for nothing."""
    one, x = msgspec.structs.replace(job, buffer_size=1), np.arange(job.size, dtype=np.float32) % 7 - 3
    with warnings.catch_warnings(), contextlib.suppress(QafelError):
        warnings.simplefilter("ignore", QafelWarning)
        client = Client(one, x, client=0)
        buffer = BoundedBuffer(one.quantizers()[0], one.size, max_norm=np.inf, window=1)
        Server(one, x, aggregator=buffer).receive(client.finish(client.begin(), x))
