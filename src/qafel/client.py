"""QAFeL-client and QAFeL-client-background as a state machine (Algorithms 2 and 3 of the paper).

    background, on an increment q:   x̂ ← x̂ + q,   check the digest
    on a task:                       y_0 ← x̂;   P times y ← y − η_ℓ·g(y)
                                     send Q_c(y_P − y_0) and the version of x̂

``apply`` takes the server's frames, ``train`` makes an update. A client without a hidden state is out of sync
and does not train: one that was made without x⁰, or whose digest differed from the server's. The driver
brings it back with ``Server.catch_up(client.request())``, over whatever transport it has.
"""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from qafel import streams, vectors, wire
from qafel.config import Job, unbiased_one
from qafel.errors import ConfigError, FrameError, OutOfSyncError, QafelWarning, StateError, VectorError
from qafel.hidden import HiddenState
from qafel.vectors import Vector
from qafel.wire import Increment, Rejected, Snapshot, Update


class Task(msgspec.Struct, frozen=True):
    """One run of local training: where it starts, and the seed of its randomness."""

    client: int
    task: int
    """Counts the client's tasks: (client, task) makes an upload idempotent."""
    version: int
    seed: int
    x: Vector
    """y_0: a copy of x̂; the trainer may change it."""

    def generator(self, *names: int | str) -> np.random.Generator:
        """A random generator of this task, for batches and the like: same names, same numbers."""
        return streams.generator(self.seed, "train", *names)


class Advanced(msgspec.Struct, frozen=True):
    """x̂ is now at ``version``."""

    version: int


class Ignored(msgspec.Struct, frozen=True):
    """The frame changed nothing: x̂ was at its version or past it."""

    version: int


class Drifted(msgspec.Struct, frozen=True):
    """x̂ differs from the server's at ``version`` and was dropped: the client must catch up."""

    version: int


class Missed(msgspec.Struct, frozen=True):
    """Increments before ``version`` are missing: the client must catch up."""

    version: int


Event = Advanced | Drifted | Ignored | Missed | Rejected

Trainer = Callable[[Vector, Task], Vector]
Gradient = Callable[[Vector, Task, int], Vector]


class _State(wire.Sealed, frozen=True):
    MAGIC: ClassVar[bytes] = b"QC"
    FORMAT: ClassVar[int] = 2

    job: bytes
    client: wire.Word
    next_task: wire.Count
    hidden: Snapshot | None


class Client:
    """A client of one job; without ``x``, the agreed model x⁰, it is out of sync until its first snapshot."""

    def __init__(self, job: Job, x: Vector | None = None, *, client: int) -> None:
        try:
            self.client = operator.index(client)
        except TypeError as error:
            raise ConfigError(f"client id must be a non-negative integer, got {client!r}") from error
        if not 0 <= self.client < 1 << 64:
            raise ConfigError(f"client id must be at least 0 and below 2⁶⁴, got {client}")
        self.job = job
        self.quantizer, self.server_quantizer = job.quantizers()
        if not self.quantizer.unbiased:
            warnings.warn(
                f"the client quantizer {job.client_quantizer} is biased, and the convergence theory needs an "
                f"unbiased one; use {unbiased_one(self.quantizer)}",
                QafelWarning,
                stacklevel=2,
            )
        self._hidden = None if x is None else HiddenState(vectors.as_vector(x, job.size))
        self.next_task = 0
        self._job_id = job.id
        self.frame_limit = max(self.server_quantizer.max_bytes(job.size), 4 * job.size) + wire.MAX_OVERHEAD
        """The length that no valid frame of the server exceeds."""

    @property
    def in_sync(self) -> bool:
        """Whether there is a hidden state; one that contradicts the server's digest is dropped."""
        return self._hidden is not None

    @property
    def hidden(self) -> HiddenState:
        """x̂ with its version and digest."""
        if self._hidden is None:
            raise OutOfSyncError("the client has no hidden state; apply the frames of Server.catch_up first")
        return self._hidden

    @property
    def version(self) -> int:
        """The version of x̂; 0 when there is none."""
        return self._hidden.version if self._hidden else 0

    @property
    def held(self) -> int | None:
        """The version of x̂, None when there is none."""
        return self._hidden.version if self._hidden else None

    @property
    def digest(self) -> int:
        """The digest of x̂; 0 when there is none."""
        return self._hidden.digest if self._hidden else 0

    def apply(self, frame: bytes) -> Event:
        """Process one frame of the server; a Rejected event says why it was refused."""
        try:
            message = wire.decode(frame, self.frame_limit)
            if message.job != self._job_id:
                return Rejected("wrong_job", f"frame of job {message.job:016x}; this is {self._job_id:016x}")
            if isinstance(message, Increment):
                return self._increment(message)
            if isinstance(message, Snapshot):
                return self._snapshot(message)
        except FrameError as error:
            return Rejected("malformed", str(error))
        return Rejected("unexpected", f"servers do not send {type(message).__name__}")

    def request(self) -> bytes:
        """The frame that asks for what this client misses; ``Server.catch_up`` answers it."""
        return wire.encode(wire.Request(self._job_id, self.client, self.held, self.digest))

    def reset(self) -> None:
        """Drop x̂, so that any snapshot is accepted: for a server that was restored to an older version."""
        self._hidden = None

    def begin(self) -> Task:
        """Start a task from the current x̂; increments may be applied while it runs."""
        x = vectors.copy(self.hidden.x)
        if self.next_task >= 1 << 40:
            raise ConfigError(f"client {self.client} has used all 2⁴⁰ task numbers; use a new client id")
        task, self.next_task = self.next_task, self.next_task + 1
        return assign(self.job, self.client, task, self.version, x)

    def finish(self, task: Task, delta: Vector) -> bytes:
        """The update frame of a task whose training gave ``delta`` = y_P − y_0."""
        payload = self.quantizer.encode(
            vectors.as_vector(delta, self.job.size), streams.derive(task.seed, "update")
        )
        return wire.encode(Update(self._job_id, task.client, task.task, task.version, payload))

    def train(self, trainer: Trainer) -> bytes:
        """Run ``trainer(x̂, task) -> delta`` and return the update frame.

        The trainer returns the delta itself: with a learning rate of 1e-6, y_P − y_0 in float32 would lose
        most of it.
        """
        return self.train_task(self.begin(), trainer)

    def train_task(self, task: Task, trainer: Trainer) -> bytes:
        """Run ``trainer`` for a task that has begun and return the update frame."""
        delta = trainer(task.x, task)
        if delta is None:
            raise VectorError("the trainer returned None; it must return its delta, y_P − y_0")
        return self.finish(task, delta)

    def __repr__(self) -> str:
        return (
            f"Client({self.client}, version={self.version}, in_sync={self.in_sync}, job={self._job_id:016x})"
        )

    def _increment(self, increment: Increment) -> Event:
        if increment.replaces != self.job.replaces:
            return Rejected(
                "malformed",
                f"the increment has replaces={increment.replaces}, but the job has {self.job.replaces}",
            )
        if self._hidden is not None and increment.version <= self.version:
            if increment.version < self.version:
                return Ignored(increment.version)
            same = increment.digest == self.hidden.digest
            return Ignored(increment.version) if same else self._drift(increment.version)
        if not increment.replaces and (self._hidden is None or increment.version != self.version + 1):
            return Missed(increment.version)
        hidden = self._hidden or HiddenState(vectors.zeros(self.job.size))
        hidden.advance(
            increment.payload, self.server_quantizer, version=increment.version, replaces=increment.replaces
        )
        if hidden.digest != increment.digest:
            return self._drift(increment.version)
        self._hidden = hidden
        return Advanced(self.version)

    def _snapshot(self, snapshot: Snapshot) -> Event:
        if self._hidden is not None and snapshot.version < self.version:
            return Ignored(snapshot.version)
        if self._hidden is not None and snapshot.digest == self.hidden.digest:
            return Ignored(snapshot.version)
        self._hidden = HiddenState.restore(snapshot, self.job.size)
        return Advanced(self.version)

    def _drift(self, version: int) -> Drifted:
        self._hidden = None
        return Drifted(version)

    def state(self) -> bytes:
        """Everything that decides what happens next; ``from_state`` continues to the same bytes."""
        hidden = self._hidden.snapshot(self._job_id) if self._hidden else None
        return _State(self.job.to_bytes(), self.client, self.next_task, hidden).to_bytes()

    @classmethod
    def from_state(cls, data: bytes) -> "Client":
        """Continue from ``state()``."""
        try:
            saved = _State.from_bytes(data)
            client = cls(Job.from_bytes(saved.job), client=saved.client)
            client._hidden = HiddenState.restore(saved.hidden, client.job.size) if saved.hidden else None
        except FrameError as error:
            raise StateError(f"not the saved state of a client: {error}") from error
        client.next_task = saved.next_task
        return client


def assign(job: Job, client: int, task: int, version: int, x: Vector) -> Task:
    """A task of a client that starts from x̂ of a version: for drivers that follow x̂ once for many clients."""
    return Task(client, task, version, streams.derive(job.seed, "task", client, task), x)


def local_sgd(gradient: Gradient, rates: Sequence[float]) -> Trainer:
    """A trainer of P = len(rates) local steps y ← y − η_ℓ^(p)·g(y), with ``gradient(y, task, p)``."""
    steps = [np.float32(rate) for rate in np.ravel(rates)]
    if not steps or not all(0 < rate < np.inf for rate in steps):
        raise ConfigError(f"rates must be one or more positive numbers, got {rates!r}")

    def train(x: Vector, task: Task) -> Vector:
        delta = np.zeros_like(x)
        for p, rate in enumerate(steps):
            delta -= rate * vectors.as_vector(gradient(x + delta, task, p), x.size)
        return delta

    return train
