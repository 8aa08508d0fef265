"""The server's state as a fold over the upload log: the same messages in the same order give the same bytes.

This module uses neither a clock nor the network. A server that continues from ``state()`` and reads on after
``sequence`` takes the same steps to the same increments, to the bit.
"""

import contextlib
import math
import warnings
from typing import Any, ClassVar

import msgspec
import numpy as np

from qafel import wire
from qafel.buffer import Buffer
from qafel.client import Client
from qafel.config import Job
from qafel.errors import FrameError, QafelError, QafelWarning, StateError
from qafel.federation.plan import Plan
from qafel.quantizers import Quantizer
from qafel.runs.tracker import Totals, Tracker
from qafel.server import Accepted, Event, Server
from qafel.vectors import Vector
from qafel.wire import Rejected, Update


class NormBuffer(Buffer):
    """A buffer that refuses updates whose norm exceeds ``max_norm``."""

    def __init__(self, quantizer: Quantizer, size: int, max_norm: float) -> None:
        super().__init__(quantizer, size)
        self.max_norm = max_norm

    def add(self, update: Update, weight: float) -> None:
        """sum ← sum + w·Δ; FrameError if ‖Δ‖ exceeds ``max_norm``."""
        with np.errstate(all="ignore"):
            delta = self.quantizer.decode(update.payload, self.sum.size)
            norm = math.sqrt(float(np.square(delta, dtype=np.float64).sum()))
            if not norm <= self.max_norm:
                raise FrameError(f"the update has norm {norm:.3g}; max_norm is {self.max_norm:g}")
            self.sum += np.float32(weight) * delta
        self.count += 1


class _Saved(wire.Sealed, frozen=True):
    MAGIC: ClassVar[bytes] = b"QP"
    FORMAT: ClassVar[int] = 2

    sequence: int
    server: bytes
    totals: Totals


class FederationState:
    """The server of a federation after the uploads so far, and the tracker of its run."""

    def __init__(self, plan: Plan, job: Job, x: Vector) -> None:
        self.plan, self.job = plan, job
        self.server = Server(job, x, **_options(plan, job))
        self.tracker = Tracker(plan)
        self.sequence = 0
        """The sequence number of the last upload that is included."""

    def take(self, sequence: int, sender: int | None, frame: bytes | FrameError) -> list[Event]:
        """Process upload ``sequence`` of a client; a FrameError stands for a frame that cannot be read."""
        self.sequence = sequence
        if isinstance(frame, FrameError):
            return [self._reject("missing_pieces", str(frame), sender)]
        if sender is None:
            events: list[Event] = [self._reject("wrong_sender", "the subject names no client", None)]
        else:
            events = self.server.receive(frame, sender)
        accepted = any(isinstance(event, Accepted) for event in events)
        self.tracker.received(len(frame), events, counts=accepted)
        return events

    def _reject(self, reason: str, detail: str, client: int | None) -> Rejected:
        self.server.rejections[reason] += 1
        return Rejected(reason, detail, client)

    def state(self) -> bytes:
        """Everything that decides what happens next; ``from_state`` continues to the same bytes."""
        return _Saved(self.sequence, self.server.state(), self.tracker.totals).to_bytes()

    @classmethod
    def from_state(cls, plan: Plan, job: Job, data: bytes) -> "FederationState":
        """Continue from ``state()``; StateError if it is damaged or belongs to another job."""
        try:
            saved = _Saved.from_bytes(data)
        except FrameError as error:
            raise StateError(f"not the checkpoint of a federation: {error}") from error
        state = cls.__new__(cls)
        state.plan, state.job = plan, job
        state.server = Server.from_state(saved.server, **_options(plan, job))
        if state.server.job.id != job.id:
            raise StateError(f"the checkpoint belongs to job {state.server.job.id:016x}, not {job.id:016x}")
        state.sequence = saved.sequence
        state.tracker = Tracker(plan)
        state.tracker.totals = saved.totals
        return state


def _options(plan: Plan, job: Job) -> dict[str, Any]:
    if plan.max_norm is None:
        return {}
    return {"aggregator": NormBuffer(job.quantizers()[0], job.size, plan.max_norm)}


def warm_up(job: Job) -> None:
    """Take one step of such a job: it loads the kernels, so that the first upload waits for nothing."""
    one, x = msgspec.structs.replace(job, buffer_size=1), np.arange(job.size, dtype=np.float32) % 7 - 3
    with warnings.catch_warnings(), contextlib.suppress(QafelError):
        warnings.simplefilter("ignore", QafelWarning)
        client = Client(one, x, client=0)
        Server(one, x).receive(client.finish(client.begin(), x))
