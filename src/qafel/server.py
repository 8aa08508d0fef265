"""QAFeL-server as a state machine: frames in, events out; no sockets, clocks or files (Algorithm 1 of the
paper).

    on an update Δ with staleness τ:   sum ← sum + w(τ)·Δ,   k ← k + 1
    when k = K:                        m ← β·m + sum/K
                                       x ← x + η_g·m
                                       broadcast q ← Q_s(x − x̂)
                                       x̂ ← x̂ + q,   k ← 0,   t ← t + 1

``receive`` never raises for what a client sent: a frame that is not taken is a ``Rejected`` event with a
reason, changes nothing, and is counted. It raises DivergenceError, and from then on does nothing else, when
the quantizer alone has blown up x − x̂ a hundredfold or the model has left float32.
"""

import math
import warnings
from collections import Counter
from typing import Annotated, NoReturn

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.buffer import Aggregator, Buffer, SeenTasks
from qafel.config import Job, Weight, named_weight, remedy
from qafel.errors import ConfigError, DivergenceError, FrameError, QafelWarning, StateError, VectorError
from qafel.hidden import Entry, HiddenState, IncrementLog, read_model
from qafel.streams import derive
from qafel.vectors import Vector
from qafel.wire import CatchUp, Increment, Rejected, Snapshot, Update, Welcome

STATE_MAGIC = b"QS"
STATE_FORMAT = 1
GROWTH_LIMIT = math.log(100.0)
"""How far the quantizer alone may blow up ‖x − x̂‖ before the server stops."""


class Accepted(msgspec.Struct, frozen=True):
    """An update is in the buffer."""

    client: int
    task: int
    staleness: int
    weight: float


class Stepped(msgspec.Struct, frozen=True):
    """The server took a step: ``frame`` is the increment, for every client."""

    version: int
    frame: bytes
    residual: float
    """‖x − x̂‖ after the step."""


class Answer(msgspec.Struct, frozen=True):
    """What brings a client up to date: increments, or a snapshot where that is fewer bytes."""

    client: int
    frames: list[bytes]


Event = Accepted | Stepped | Answer | Rejected


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    job: bytes
    x: bytes
    momentum: bytes
    hidden: Snapshot
    aggregator: bytes
    seen: list[tuple[wire.Word, wire.Count, bytes]]
    log: list[Entry]
    rejections: dict[str, wire.Count]
    accepted: wire.Count
    growth: Annotated[float, msgspec.Meta(ge=0, le=GROWTH_LIMIT)]
    own: tuple[bool, bool]


class Server:
    """The server of one job."""

    def __init__(
        self, job: Job, x: Vector, *, weight: Weight | None = None, aggregator: Aggregator | None = None
    ) -> None:
        self.job = job
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
        self._momentum = vectors.zeros(job.size)
        self.hidden = HiddenState(self._x)
        self.log = IncrementLog()
        self.aggregator: Aggregator = (
            Buffer(self.client_quantizer, job.size) if aggregator is None else aggregator
        )
        self._own = (weight is not None, aggregator is not None)
        self.seen = SeenTasks()
        self.accepted = 0
        self.rejections: Counter[str] = Counter()
        self._weight = named_weight(job.staleness_weight) if weight is None else weight
        self._growth = 0.0
        self._diverged: str | None = None
        self._job_id, self._replaces = job.id, job.replaces
        self.frame_limit = self.client_quantizer.max_bytes(job.size) + wire.MAX_OVERHEAD
        """No update is longer."""

    def __repr__(self) -> str:
        return f"Server(version={self.version}, accepted={self.accepted}, job={self._job_id:016x})"

    @property
    def x(self) -> Vector:
        """The model, to look at."""
        return vectors.read_only(self._x)

    @property
    def version(self) -> int:
        """t: how many steps were taken."""
        return self.hidden.version

    def receive(self, frame: bytes, sender: int | None = None) -> list[Event]:
        """Take in a client's frame, which must be of ``sender`` where that is known; what came of it."""
        self._refuse_if_diverged()
        try:
            message = wire.decode(frame, self.frame_limit)
        except FrameError as error:
            return [self._reject("malformed", str(error))]
        if message.job != self._job_id:
            return [self._reject("wrong_job", f"job {message.job:016x}, and this is job {self._job_id:016x}")]
        if isinstance(message, Update | CatchUp) and sender not in (None, message.client):
            detail = f"client {sender} sent what client {message.client} should"
            return [self._reject("wrong_sender", detail)]
        if isinstance(message, Update):
            return self._update(message)
        if isinstance(message, CatchUp) and sender is None:
            return [Answer(message.client, self.catch_up(message))]
        return [self._reject("unexpected", f"clients do not send {type(message).__name__}")]

    def advance(self) -> list[Event]:
        """Take the step that is due; for drivers: when an aggregator that was pending no longer is."""
        self._refuse_if_diverged()
        if self.aggregator.count < self.job.buffer_size or self.aggregator.pending:
            return []
        return [self._step()]

    def catch_up(self, request: CatchUp) -> list[bytes]:
        """The frames that bring a client up to date."""
        self._refuse_if_diverged()
        if not request.fresh and (request.version, request.digest) == (self.version, self.hidden.digest):
            return []
        frames = self.log.missing(-1 if request.fresh else request.version, request.digest)
        return [wire.encode(self.hidden.snapshot(self._job_id))] if frames is None else frames

    def welcome(self) -> bytes:
        """The frame that tells a newcomer the job."""
        return wire.encode(Welcome(self._job_id, self.job.to_bytes()))

    def _update(self, update: Update) -> list[Event]:
        staleness, most = self.version - update.version, self.job.max_staleness
        if (update.client, update.task) in self.seen:
            return [self._reject("duplicate", "this task was counted", update)]
        if staleness < 0:
            detail = f"started from version {update.version}, and this is {self.version}"
            return [self._reject("unknown_version", detail, update)]
        if most is not None and staleness > most:
            return [self._reject("stale", f"staleness {staleness}, and {most} is the most", update)]
        weight = float(self._weight(staleness))
        if not 0 <= weight < math.inf:
            raise ConfigError(
                f"the staleness weight must be finite and not negative, and w({staleness}) is {weight}"
            )
        try:
            self.aggregator.add(update, weight)
        except FrameError as error:
            return [self._reject("bad_payload", str(error), update)]
        self.seen.add(update.client, update.task)
        self.accepted += 1
        return [Accepted(update.client, update.task, staleness, weight), *self.advance()]

    def _step(self) -> Stepped:
        from qafel import vector_kernels

        count = self.aggregator.count
        total = vectors.as_vector(self.aggregator.finish(), self.job.size)
        x, ahead = vectors.empty(self.job.size), vectors.empty(self.job.size)
        beta, rate = np.float32(self.job.momentum), np.float32(self.job.server_rate)
        vector_kernels.server_step(
            total, np.float32(count), beta, self._momentum, rate, self._x, self.hidden.x, x, ahead
        )
        target = x if self._replaces else ahead
        try:
            payload = self.server_quantizer.encode(target, derive(self.job.seed, "increment", self.version))
            self.hidden.advance(
                payload, self.server_quantizer, version=self.version + 1, replaces=self._replaces
            )
        except (VectorError, FrameError) as error:
            self._diverge(f"the model left float32 at version {self.version} ({error}); lower the rates")
        self._x = x
        residual = _distance(self._x, self.hidden.x)
        if not self._replaces:
            self._watch(_norm(target), residual)
        increment = Increment(self._job_id, self.version, self.hidden.digest, self._replaces, payload)
        frame = wire.encode(increment)
        self.log.append(increment, frame, self.hidden.snapshot_bytes(self._job_id))
        return Stepped(self.version, frame, residual)

    def _watch(self, before: float, after: float) -> None:
        """Stop when the quantizer, not the training, has blown up ‖x − x̂‖; a contraction only shrinks it."""
        growth = math.log(after / before) if after and before else -math.inf
        self._growth = max(0.0, self._growth + growth)
        if self._growth > GROWTH_LIMIT or not math.isfinite(after):
            self._diverge(
                f"x − x̂ diverges: {self.server_quantizer.spec} has multiplied it by "
                f"{math.exp(self._growth):.0f} by version {self.version}; "
                f"use {remedy(self.server_quantizer, self.job.size)}"
            )

    def _diverge(self, message: str) -> NoReturn:
        self._diverged = message
        raise DivergenceError(message)

    def _refuse_if_diverged(self) -> None:
        if self._diverged is not None:
            raise DivergenceError(
                f"{self._diverged} (this server has stopped; continue from a state saved before)"
            )

    def _reject(self, reason: str, detail: str, update: Update | None = None) -> Rejected:
        self.rejections[reason] += 1
        if update is None:
            return Rejected(reason, detail)
        return Rejected(reason, detail, update.client, update.task)

    def state(self) -> bytes:
        """Everything that decides what comes next, exactly."""
        self._refuse_if_diverged()
        body = _State(
            job=self.job.to_bytes(),
            x=self._x.tobytes(),
            momentum=self._momentum.tobytes(),
            hidden=self.hidden.snapshot(self._job_id),
            aggregator=self.aggregator.state(),
            seen=self.seen.rows(),
            log=list(self.log.entries),
            rejections=dict(sorted(self.rejections.items())),
            accepted=self.accepted,
            growth=self._growth,
            own=self._own,
        )
        return wire.seal(STATE_MAGIC, STATE_FORMAT, msgspec.msgpack.encode(body))

    @classmethod
    def from_state(
        cls, data: bytes, *, weight: Weight | None = None, aggregator: Aggregator | None = None
    ) -> "Server":
        """Continue from ``state()`` to the same bytes; hand in a weight or aggregator of your own again."""
        try:
            saved = wire.unpack(wire.unseal(STATE_MAGIC, STATE_FORMAT, data), msgspec.msgpack.Decoder(_State))
            job = Job.from_bytes(saved.job)
            server = cls(job, read_model(saved.x, job.size), weight=weight, aggregator=aggregator)
            server._momentum = read_model(saved.momentum, job.size)
            server.hidden = HiddenState.restore(saved.hidden, job.size)
        except FrameError as error:
            raise StateError(f"this is not the saved state of a server: {error}") from error
        if server._own != saved.own:
            own = [name for name, had in zip(("weight", "aggregator"), saved.own, strict=True) if had]
            what = " and ".join(own) or "nothing"
            raise StateError(f"this saved state goes with {what} of your own; hand in just that")
        server.aggregator.restore(saved.aggregator)
        server.seen = SeenTasks(saved.seen)
        server.log = IncrementLog(saved.log, server.hidden.snapshot_bytes(job.id))
        server.rejections = Counter(saved.rejections)
        server.accepted, server._growth = saved.accepted, saved.growth
        return server


def _norm(x: Vector) -> float:
    from qafel import vector_kernels

    return math.sqrt(vector_kernels.squared_norm(vectors.read_only(x), 0, x.size))


def _distance(x: Vector, y: Vector) -> float:
    from qafel import vector_kernels

    return math.sqrt(vector_kernels.squared_distance(vectors.read_only(x), vectors.read_only(y)))
