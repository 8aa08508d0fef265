"""The server's state as a fold over the upload log: the same messages in the same order, the same bytes.

Nothing here looks at a clock or at the network. Whoever continues from ``state()`` and reads on after
``sequence`` takes the same steps to the same increments, to the bit.
"""

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from qafel import wire
from qafel.buffer import Buffer
from qafel.config import Job
from qafel.errors import FrameError, StateError
from qafel.federation.plan import Plan
from qafel.quantizers import Quantizer
from qafel.runs.result import Point
from qafel.server import Accepted, Event, Server, Stepped
from qafel.vectors import Vector
from qafel.wire import Rejected, Update

MAGIC = b"QP"
FORMAT = 1
COUNTS = ("bytes_up", "bytes_down", "downloaded", "seconds", "residual")


class NormBuffer(Buffer):
    """A buffer that takes no update of a larger norm than ``most``."""

    def __init__(self, quantizer: Quantizer, size: int, most: float) -> None:
        super().__init__(quantizer, size)
        self.most = most

    def add(self, update: Update, weight: float) -> None:
        """sum ← sum + w·Δ, unless ‖Δ‖ is too large."""
        with np.errstate(all="ignore"):
            delta = self.quantizer.decode(update.payload, self.sum.size)
            norm = math.sqrt(float(np.square(delta, dtype=np.float64).sum()))
        if not norm <= self.most:
            raise FrameError(f"an update of norm {norm:.3g}, and {self.most:g} is the most")
        super().add(update, weight)


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    sequence: int
    server: bytes
    counts: dict[str, int | float]
    staleness: dict[int, int]
    points: list[Point]
    reason: str | None


class FederationState:
    """What the uploads so far add up to."""

    def __init__(self, plan: Plan, job: Job, x: Vector) -> None:
        self.plan, self.job = plan, job
        self.server = Server(job, x, **_own(plan, job))
        self.sequence = 0
        """The last upload that is in here."""
        self.bytes_up = self.bytes_down = self.downloaded = 0
        """``downloaded``: what clients say they have; nothing depends on it."""
        self.seconds = self.residual = 0.0
        self.staleness: Counter[int] = Counter()
        self.points: list[Point] = []
        self.reason: str | None = None
        """Why the training has ended."""

    @property
    def received(self) -> int:
        """Bytes that went down: each increment once, or what clients fetched where nothing is broadcast."""
        return self.bytes_down if self.plan.downlink == "broadcast" else self.downloaded

    @property
    def uploads(self) -> int:
        """Updates that were accepted."""
        return self.server.accepted

    @property
    def mean_staleness(self) -> float:
        """Of the accepted updates."""
        return sum(tau * n for tau, n in self.staleness.items()) / max(1, self.staleness.total())

    def take(self, sequence: int, sender: int | None, frame: bytes | FrameError) -> list[Event]:
        """Take in the upload ``sequence``; what came of it."""
        self.sequence = sequence
        if isinstance(frame, FrameError):
            self.server.rejections["missing_pieces"] += 1
            return [Rejected("missing_pieces", str(frame), sender)]
        self.bytes_up += len(frame)
        if sender is None:
            self.server.rejections["wrong_sender"] += 1
            return [Rejected("wrong_sender", "an upload on a subject that is no client's")]
        events = self.server.receive(frame, sender)
        for event in events:
            if isinstance(event, Accepted):
                self.staleness[event.staleness] += 1
            elif isinstance(event, Stepped):
                self.bytes_down += len(event.frame)
                self.residual = event.residual
        budget = self.plan.byte_budget
        if self.reason is None and self.uploads >= self.plan.uploads:
            self.reason = "uploads"
        elif self.reason is None and budget is not None and self.bytes_up + self.bytes_down >= budget:
            self.reason = "byte budget"
        return events

    def state(self) -> bytes:
        """Everything that decides what comes next, exactly."""
        counts = {name: getattr(self, name) for name in COUNTS}
        body = _Saved(
            self.sequence, self.server.state(), counts, dict(self.staleness), self.points, self.reason
        )
        return wire.seal(MAGIC, FORMAT, msgspec.msgpack.encode(body))

    @classmethod
    def from_state(cls, plan: Plan, job: Job, data: bytes) -> "FederationState":
        """Continue from ``state()`` to the same bytes."""
        try:
            saved = wire.unpack(wire.unseal(MAGIC, FORMAT, data), msgspec.msgpack.Decoder(_Saved))
        except FrameError as error:
            raise StateError(f"this is not the checkpoint of a federation: {error}") from error
        fold = cls.__new__(cls)
        fold.plan, fold.job = plan, job
        fold.server = Server.from_state(saved.server, **_own(plan, job))
        if fold.server.job.id != job.id:
            raise StateError("the checkpoint belongs to another job")
        fold.sequence, fold.points, fold.reason = saved.sequence, saved.points, saved.reason
        for name, value in saved.counts.items():
            setattr(fold, name, value)
        fold.staleness = Counter(saved.staleness)
        return fold


def _own(plan: Plan, job: Job) -> dict[str, Any]:
    if plan.max_norm is None:
        return {}
    return {"aggregator": NormBuffer(job.quantizers()[0], job.size, plan.max_norm)}
