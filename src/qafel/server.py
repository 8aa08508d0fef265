"""QAFeL-server as a state machine: frames in, events out; no sockets, clocks or files (Algorithm 1 of the
paper).

    on an update Δ with staleness τ:   sum ← sum + w(τ)·Δ,   k ← k + 1
    when k = K:                        m ← β·m + sum/K
                                       x ← x + η_g·m, or as ``server_optimizer`` says
                                       broadcast q ← Q_s(x − x̂)
                                       x̂ ← x̂ + q,   k ← 0,   t ← t + 1

``receive`` never raises because of what a client sent: a frame that is refused gives a ``Rejected`` event
with a reason, changes nothing, and is counted. ``receive`` raises DivergenceError, then and ever after, when
the quantizer alone has multiplied ‖x − x̂‖ by more than 100 or the model is beyond float32. With
``drop_divergent`` a step beyond float32 is not taken: its buffer is dropped, and a ``Dropped`` event says so.
"""

import math
import warnings
from collections import Counter
from typing import Annotated, ClassVar, NoReturn

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.buffer import Aggregator, Buffer, SeenTasks, typical_staleness
from qafel.config import Job, Weight, named_weight, remedy
from qafel.errors import (
    ConfigError,
    DivergenceError,
    FrameError,
    NormError,
    QafelWarning,
    StateError,
    VectorError,
)
from qafel.hidden import CatchUp, Entry, HiddenState, IncrementLog, catch_up, read_model
from qafel.streams import derive
from qafel.vectors import Vector
from qafel.wire import Increment, Rejected, Snapshot, Update

MAX_GROWTH = math.log(100.0)
"""The server stops when the quantizer alone has multiplied ‖x − x̂‖ by more than e to this power."""


class Accepted(msgspec.Struct, frozen=True):
    """An update was added to the buffer."""

    client: int
    task: int
    staleness: int
    weight: float


class Stepped(msgspec.Struct, frozen=True):
    """The server took a step: ``frame`` is the increment, for every client."""

    version: int
    frame: bytes
    residual: float
    """‖x − x̂‖ after the step; with ``lookahead``, the distance of x̂ from the point ahead of x."""
    error: float = 0.0
    """The server quantizer's error: ‖x − x̂‖² after the step over ‖x − x̂‖² before it."""


class Dropped(msgspec.Struct, frozen=True):
    """A step would have diverged: its ``count`` updates were dropped, and nothing else changed."""

    version: int
    count: int
    reason: str


Event = Accepted | Stepped | Rejected | Dropped


class _State(wire.Sealed, frozen=True):
    MAGIC: ClassVar[bytes] = b"QS"
    FORMAT: ClassVar[int] = 3

    job: bytes
    x: bytes
    momentum: bytes
    """The state of the optimizer."""
    hidden: Snapshot
    aggregator: bytes
    seen: list[tuple[wire.Word, wire.Count, bytes]]
    log: list[Entry]
    rejections: dict[str, wire.Count]
    accepted: wire.Count
    growth: Annotated[float, msgspec.Meta(ge=0, le=MAX_GROWTH)]
    own: tuple[bool, bool]
    staleness: list[wire.Word]


class Server:
    """The server of one job."""

    def __init__(
        self,
        job: Job,
        x: Vector,
        *,
        weight: Weight | None = None,
        aggregator: Aggregator | None = None,
        drop_divergent: bool = False,
    ) -> None:
        self.job, self._drops = job, drop_divergent
        self.client_quantizer, self.server_quantizer = job.quantizers()
        delta = self.server_quantizer.delta(job.size)
        if not (job.replaces or delta > 0):
            warnings.warn(
                f"the server quantizer {job.server_quantizer} need not be a contraction at {job.size} "
                f"coordinates (worst-case delta {delta:.3g}), and x − x̂ may grow without bound; "
                f"use {remedy(self.server_quantizer, job.size)}",
                QafelWarning,
                stacklevel=2,
            )
        self._x = vectors.copy(vectors.as_vector(x, job.size))
        self._optimizer = job.optimizer
        self._moments = [vectors.zeros(job.size) for _ in range(self._optimizer.slots)]
        """The state of the optimizer."""
        self.hidden = HiddenState(self._x)
        self.log = IncrementLog()
        self.aggregator: Aggregator = (
            Buffer(self.client_quantizer, job.size) if aggregator is None else aggregator
        )
        self._own = (weight is not None, aggregator is not None)
        self.seen = SeenTasks()
        self.accepted = 0
        self._staleness: list[int] = []
        """τ of the updates in the buffer."""
        self.rejections: Counter[str] = Counter()
        self._weight = named_weight(job.staleness_weight) if weight is None else weight
        self._growth = 0.0
        self.diverged: str | None = None
        """Why the server has stopped, or None; one that has stopped has no state to save."""
        self._job_id, self._replaces = job.id, job.replaces
        self.frame_limit = self.client_quantizer.max_bytes(job.size) + wire.MAX_OVERHEAD
        """The length that no valid update exceeds."""

    def __repr__(self) -> str:
        return f"Server(version={self.version}, accepted={self.accepted}, job={self._job_id:016x})"

    @property
    def x(self) -> Vector:
        """The model x, read-only."""
        return vectors.read_only(self._x)

    @property
    def version(self) -> int:
        """t: the number of steps taken."""
        return self.hidden.version

    def receive(self, frame: bytes, sender: int | None = None) -> list[Event]:
        """Process a client's frame; ``sender``, if given, is the client that the frame must name."""
        self._refuse_if_diverged()
        try:
            message = wire.decode(frame, self.frame_limit)
        except FrameError as error:
            return [self._reject("malformed", str(error))]
        return self.process(message, sender)

    def process(self, message: wire.Message, sender: int | None = None) -> list[Event]:
        """Process the message in a client's frame, for drivers that have decoded it."""
        self._refuse_if_diverged()
        if message.job != self._job_id:
            return [
                self._reject("wrong_job", f"frame of job {message.job:016x}; this is {self._job_id:016x}")
            ]
        if not isinstance(message, Update):
            return [self._reject("unexpected", f"clients do not send {type(message).__name__}")]
        if sender not in (None, message.client):
            detail = f"client {sender} sent an update of client {message.client}"
            return [self._reject("wrong_sender", detail)]
        return self._update(message)

    def advance(self) -> list[Event]:
        """Take a step if one is due. Drivers call it when an aggregator is no longer pending."""
        self._refuse_if_diverged()
        if self.aggregator.count < self.job.buffer_size or self.aggregator.pending:
            return []
        return [self._step()]

    def catch_up(self, request: bytes) -> list[bytes]:
        """The frames that bring a client to the newest version, in answer to its request; or FrameError.

        A client without x̂, or with one that differs from the server's, gets a snapshot.
        """
        self._refuse_if_diverged()
        message = wire.decode(request, wire.MAX_OVERHEAD)
        if not isinstance(message, wire.Request) or message.job != self._job_id:
            raise FrameError(f"the frame is no request of job {self._job_id:016x}")
        version, digest = message.version, message.digest
        digests = {entry.version: entry.digest for entry in self.log.entries}
        digests[self.version] = self.hidden.digest
        if version is not None and digests.get(version, digest) != digest:
            version = None
        needed = self._needed(version)
        if needed.snapshot:
            return [wire.encode(self.hidden.snapshot(self._job_id))]
        return [entry.frame for entry in self.log.entries if entry.version in needed.increments]

    def catch_up_bytes(self, version: int | None) -> int:
        """The length of what ``catch_up`` returns, without encoding it."""
        return self._needed(version).size

    def _needed(self, version: int | None) -> CatchUp:
        whole = self.hidden.snapshot_bytes(self._job_id)
        return catch_up(version, self.version, self.log.sizes, whole, replaces=self._replaces)

    def _update(self, update: Update) -> list[Event]:
        staleness, max_staleness = self.version - update.version, self.job.max_staleness
        if (update.client, update.task) in self.seen:
            return [self._reject("duplicate", f"task {update.task} was counted before", update)]
        if staleness < 0:
            detail = f"update starts from version {update.version}; the newest is {self.version}"
            return [self._reject("unknown_version", detail, update)]
        if max_staleness is not None and staleness > max_staleness:
            detail = f"staleness is {staleness}; max_staleness is {max_staleness}"
            return [self._reject("stale", detail, update)]
        weight = float(self._weight(staleness))
        if not 0 <= weight < math.inf:
            raise ConfigError(
                f"the staleness weight must be finite and at least 0; w({staleness}) is {weight}"
            )
        try:
            self.aggregator.add(update, weight)
        except NormError as error:
            return [self._reject("norm", str(error), update)]
        except FrameError as error:
            return [self._reject("bad_payload", str(error), update)]
        self.seen.add(update.client, update.task)
        self.accepted += 1
        self._staleness.append(staleness)
        return [Accepted(update.client, update.task, staleness, weight), *self.advance()]

    def _step(self) -> Stepped | Dropped:
        count = self.aggregator.count
        total = vectors.as_vector(self.aggregator.finish(), self.job.size)
        moments, x, ahead = self._optimizer.step(
            self.version, total, count, self._moments, self._x, self.hidden.x
        )
        staleness, self._staleness = typical_staleness(self._staleness), []
        aim, target = x, x if self._replaces else ahead
        if self.job.lookahead:
            with np.errstate(all="ignore"):
                lead = np.float32(self.job.lookahead * staleness) * (x - self._x)
                aim, target = x + lead, target + lead
        if self._drops and not all(map(vectors.is_finite, (target, *moments))):
            return Dropped(self.version, count, f"the step from version {self.version} is beyond float32")
        before = self.hidden.distance(aim)
        try:
            seed = derive(self.job.seed, "increment", self.version)
            payload = self.hidden.step(target, self.server_quantizer, seed, replaces=self._replaces)
        except (VectorError, FrameError) as error:
            self._diverge(f"the model is beyond float32 at version {self.version} ({error}); lower the rates")
        self._x, self._moments = x, moments
        residual = self.hidden.distance(aim)
        increment = Increment(self._job_id, self.version, self.hidden.digest, self._replaces, payload)
        frame = wire.encode(increment)
        self.log.append(increment, frame, self.hidden.snapshot_bytes(self._job_id))
        if self._replaces:
            return Stepped(self.version, frame, residual)
        self._watch(before, residual)
        return Stepped(self.version, frame, residual, (residual / before) ** 2 if before else 0.0)

    def _watch(self, before: float, after: float) -> None:
        """Stop when the quantizer, not the training, makes ‖x − x̂‖ grow; a contraction only shrinks it."""
        growth = math.log(after / before) if after and before else -math.inf
        self._growth = max(0.0, self._growth + growth)
        if self._growth > MAX_GROWTH or not math.isfinite(after):
            self._diverge(
                f"x − x̂ diverges: {self.server_quantizer.spec} has multiplied it by "
                f"{math.exp(self._growth):.0f} by version {self.version}; "
                f"use {remedy(self.server_quantizer, self.job.size)}"
            )

    def _diverge(self, message: str) -> NoReturn:
        self.diverged = message
        raise DivergenceError(message)

    def _refuse_if_diverged(self) -> None:
        if self.diverged is not None:
            raise DivergenceError(
                f"{self.diverged} (this server has stopped; continue from a state saved before)"
            )

    def _reject(self, reason: str, detail: str, update: Update | None = None) -> Rejected:
        self.rejections[reason] += 1
        if update is None:
            return Rejected(reason, detail)
        return Rejected(reason, detail, update.client, update.task)

    def state(self) -> bytes:
        """Everything that decides what happens next; ``from_state`` continues to the same bytes."""
        self._refuse_if_diverged()
        return _State(
            job=self.job.to_bytes(),
            x=self._x.tobytes(),
            momentum=b"".join(moment.tobytes() for moment in self._moments),
            hidden=self.hidden.snapshot(self._job_id),
            aggregator=self.aggregator.state(),
            seen=self.seen.rows(),
            log=list(self.log.entries),
            rejections=dict(sorted(self.rejections.items())),
            accepted=self.accepted,
            growth=self._growth,
            own=self._own,
            staleness=self._staleness,
        ).to_bytes()

    @classmethod
    def from_state(
        cls,
        data: bytes,
        *,
        weight: Weight | None = None,
        aggregator: Aggregator | None = None,
        drop_divergent: bool = False,
    ) -> "Server":
        """Continue from ``state()``; pass a custom weight or aggregator again."""
        try:
            saved = _State.from_bytes(data)
            job = Job.from_bytes(saved.job)
            x = read_model(saved.x, job.size)
            server = cls(job, x, weight=weight, aggregator=aggregator, drop_divergent=drop_divergent)
            slots = len(server._moments)
            server._moments = [
                vectors.copy(part) for part in np.split(read_model(saved.momentum, slots * job.size), slots)
            ]
            server.hidden = HiddenState.restore(saved.hidden, job.size)
        except FrameError as error:
            raise StateError(f"not the saved state of a server: {error}") from error
        if server._own != saved.own:
            own = [name for name, had in zip(("weight", "aggregator"), saved.own, strict=True) if had]
            what = " and ".join(f"`{name}=`" for name in own) or "neither `weight=` nor `aggregator=`"
            raise StateError(
                f"this state was saved with another weight or aggregator; pass {what} to from_state"
            )
        server.aggregator.restore(saved.aggregator)
        server.seen = SeenTasks(saved.seen)
        server.log = IncrementLog(saved.log)
        server.rejections = Counter(saved.rejections)
        server.accepted, server._growth = saved.accepted, saved.growth
        server._staleness = saved.staleness
        return server
