"""QAFeL-client and QAFeL-client-background as a state machine (Algorithms 2 and 3 of the paper).

    background, on an increment q:   x̂ ← x̂ + q,   check the digest
    on a task:                       y_0 ← x̂;   P times y ← y − η_ℓ·g(y)
                                     send Q_c(y_P − y_0) and the version of x̂

``apply`` takes the server's frames, ``train`` makes an update. A client whose digest ever differs from the
server's, or that was told the job only, is out of sync: it refuses to train until it has caught up;
``catch_up`` is the frame to ask with.
"""

import operator
import warnings
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from qafel import streams, vectors, wire
from qafel.config import Job, unbiased_one
from qafel.errors import ConfigError, FrameError, OutOfSyncError, QafelWarning, StateError, VectorError
from qafel.hidden import HiddenState
from qafel.vectors import Vector
from qafel.wire import CatchUp, Increment, Rejected, Snapshot, Update, Welcome

STATE_MAGIC = b"QC"
STATE_FORMAT = 1
MAX_WELCOME = 1 << 20


class Task(msgspec.Struct, frozen=True):
    """One run of local training: where it starts and what its randomness is."""

    client: int
    number: int
    version: int
    seed: int
    x: Vector
    """y_0: a copy of x̂, yours to change."""

    def generator(self, *names: int | str) -> np.random.Generator:
        """A random generator of the task's own, for batches and the like: same names, same numbers."""
        return streams.generator(self.seed, "train", *names)


class Advanced(msgspec.Struct, frozen=True):
    """x̂ is now at ``version``."""

    version: int


class Ignored(msgspec.Struct, frozen=True):
    """A frame that brought nothing new: x̂ was at its version or past it."""

    version: int


class Drifted(msgspec.Struct, frozen=True):
    """x̂ differs from the server's at ``version`` and was thrown away: send ``catch_up()``."""

    version: int


class Missed(msgspec.Struct, frozen=True):
    """Increments before ``version`` are missing: send ``catch_up()``."""

    version: int


Event = Advanced | Drifted | Ignored | Missed | Rejected

Trainer = Callable[[Vector, Task], Vector]
Gradient = Callable[[Vector, Task, int], Vector]


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    job: bytes
    client: wire.Word
    next_task: wire.Count
    asked: bool
    hidden: Snapshot | None


class Client:
    """A client of one job. Without ``x``, the agreed model x⁰, it is out of sync until its first snapshot."""

    def __init__(self, job: Job, x: Vector | None = None, *, client: int) -> None:
        try:
            self.client = operator.index(client)
        except TypeError as error:
            raise ConfigError(f"a client has a whole number of its own, and {client!r} is none") from error
        if not 0 <= self.client < 1 << 64:
            raise ConfigError(f"a client's number must fit into 64 bits, and {client} does not")
        self.job = job
        self.quantizer, self.server_quantizer = job.quantizers()
        if not self.quantizer.unbiased:
            warnings.warn(
                f"the client quantizer {job.client_quantizer} is biased and the convergence theory needs an "
                f"unbiased one; {unbiased_one(self.quantizer)} is unbiased",
                QafelWarning,
                stacklevel=2,
            )
        self._hidden = None if x is None else HiddenState(vectors.as_vector(x, job.size))
        self.next_task = 0
        self._asked = False
        self._job_id = job.id
        self._frame_limit = max(self.server_quantizer.max_bytes(job.size), 4 * job.size) + wire.MAX_OVERHEAD

    @classmethod
    def join(cls, welcome: bytes, *, client: int) -> "Client":
        """A newcomer, from the server's welcome; send ``catch_up()`` next."""
        message = wire.decode(welcome, MAX_WELCOME)
        if not isinstance(message, Welcome):
            raise FrameError(f"expected a Welcome, got {type(message).__name__}")
        job = Job.from_bytes(message.terms)
        if job.id != message.job:
            raise FrameError("the welcome names a job and describes another")
        return cls(job, client=client)

    @property
    def in_sync(self) -> bool:
        """Whether there is an x̂ to be trusted: one that contradicted the server's digest was thrown away."""
        return self._hidden is not None

    @property
    def hidden(self) -> HiddenState:
        """x̂ with its version and digest."""
        if self._hidden is None:
            raise OutOfSyncError(
                "there is no hidden state to be trusted; send catch_up() and apply the answer first"
            )
        return self._hidden

    @property
    def version(self) -> int:
        """The version of x̂; 0 when there is none."""
        return self._hidden.version if self._hidden else 0

    def apply(self, frame: bytes) -> Event:
        """Follow the server by one frame; a Rejected event says why it was not taken."""
        try:
            message = wire.decode(frame, self._frame_limit)
            if message.job != self._job_id:
                return Rejected("wrong_job", f"job {message.job:016x}, and this is job {self._job_id:016x}")
            if isinstance(message, Increment):
                return self._increment(message)
            if isinstance(message, Snapshot):
                return self._snapshot(message)
        except FrameError as error:
            return Rejected("malformed", str(error))
        return Rejected("unexpected", f"servers do not send {type(message).__name__}")

    def catch_up(self) -> bytes:
        """The frame that asks the server for what is missing."""
        self._asked = True
        digest = self._hidden.digest if self._hidden else 0
        return wire.encode(CatchUp(self._job_id, self.client, self.version, digest, not self.in_sync))

    def begin(self) -> Task:
        """Start a task from the x̂ of this moment; increments may be applied while it runs."""
        x = vectors.copy(self.hidden.x)
        if self.next_task >= 1 << 40:
            raise ConfigError(
                f"client {self.client} has used up its 2⁴⁰ task numbers; join under a new number"
            )
        number, self.next_task = self.next_task, self.next_task + 1
        return assign(self.job, self.client, number, self.version, x)

    def finish(self, task: Task, delta: Vector) -> bytes:
        """The update frame of a task whose training gave ``delta`` = y_P − y_0."""
        payload = self.quantizer.encode(
            vectors.as_vector(delta, self.job.size), streams.derive(task.seed, "update")
        )
        return wire.encode(Update(self._job_id, task.client, task.number, task.version, payload))

    def train(self, trainer: Trainer) -> bytes:
        """Run ``trainer(x̂, task) -> delta`` and give the update frame.

        The trainer returns the delta itself: with a learning rate of 1e-6, y_P − y_0 in float32 would lose
        most of it.
        """
        task = self.begin()
        delta = trainer(task.x, task)
        if delta is None:
            raise VectorError("the trainer returned nothing; it must return its delta, y_P − y_0")
        return self.finish(task, delta)

    def __repr__(self) -> str:
        return (
            f"Client({self.client}, version={self.version}, in_sync={self.in_sync}, job={self._job_id:016x})"
        )

    def _increment(self, increment: Increment) -> Event:
        if increment.replaces != self.job.replaces:
            return Rejected(
                "malformed", "an increment that replaces x̂ where it should be added, or the other way round"
            )
        if self._hidden is not None and increment.version <= self.version:
            if increment.version < self.version:
                return Ignored(increment.version)
            return self._confirmed(increment.digest) or self._drift(increment.version)
        if not increment.replaces and (self._hidden is None or increment.version != self.version + 1):
            return Missed(increment.version)
        hidden = self._hidden or HiddenState(vectors.zeros(self.job.size))
        hidden.advance(
            increment.payload, self.server_quantizer, version=increment.version, replaces=increment.replaces
        )
        if hidden.digest != increment.digest:
            return self._drift(increment.version)
        self._hidden, self._asked = hidden, False
        return Advanced(self.version)

    def _snapshot(self, snapshot: Snapshot) -> Event:
        """Take what the server says, even if it moves x̂ back, when it answers us or contradicts us."""
        if (
            self._hidden is not None
            and snapshot.version == self.version
            and (same := self._confirmed(snapshot.digest))
        ):
            return same
        if self._hidden is not None and snapshot.version < self.version and not self._asked:
            return Ignored(snapshot.version)
        self._hidden = HiddenState.restore(snapshot, self.job.size)
        self._asked = False
        return Advanced(self.version)

    def _confirmed(self, digest: int) -> Ignored | None:
        """A digest of our version that equals ours answers any question: we are where the server is."""
        if digest != self.hidden.digest:
            return None
        self._asked = False
        return Ignored(self.version)

    def _drift(self, version: int) -> Drifted:
        self._hidden = None
        return Drifted(version)

    def state(self) -> bytes:
        """Everything that decides what comes next, exactly."""
        hidden = self._hidden.snapshot(self._job_id) if self._hidden else None
        body = _State(self.job.to_bytes(), self.client, self.next_task, self._asked, hidden)
        return wire.seal(STATE_MAGIC, STATE_FORMAT, msgspec.msgpack.encode(body))

    @classmethod
    def from_state(cls, data: bytes) -> "Client":
        """Continue from ``state()`` to the same bytes."""
        try:
            saved = wire.unpack(wire.unseal(STATE_MAGIC, STATE_FORMAT, data), msgspec.msgpack.Decoder(_State))
            client = cls(Job.from_bytes(saved.job), client=saved.client)
            client._hidden = HiddenState.restore(saved.hidden, client.job.size) if saved.hidden else None
        except FrameError as error:
            raise StateError(f"this is not the saved state of a client: {error}") from error
        client.next_task, client._asked = saved.next_task, saved.asked
        return client


def assign(job: Job, client: int, number: int, version: int, x: Vector) -> Task:
    """The task ``number`` of a client, from x̂ of a version; for drivers that follow x̂ once for many
    clients.
    """
    return Task(client, number, version, streams.derive(job.seed, "task", client, number), x)


def local_sgd(gradient: Gradient, rates: Sequence[float]) -> Trainer:
    """A trainer of P = len(rates) local steps y ← y − η_ℓ^(p)·g(y), with ``gradient(y, task, p)``."""
    steps = [np.float32(rate) for rate in np.ravel(rates)]
    if not steps or not all(0 < rate < np.inf for rate in steps):
        raise ConfigError(f"local_sgd needs at least one local rate, all positive, not {rates!r}")

    def train(x: Vector, task: Task) -> Vector:
        delta = np.zeros_like(x)
        for p, rate in enumerate(steps):
            delta -= rate * vectors.as_vector(gradient(x + delta, task, p), x.size)
        return delta

    return train
