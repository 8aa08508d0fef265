"""The buffer of K updates, and the record of the tasks that were counted.

``Aggregator`` is the interface that the server uses. ``Buffer``, the default, sums the decoded updates;
``BoundedBuffer`` refuses updates that are too large. A driver can pass another aggregator to the server, for
example one that adds noise or unmasks a secure sum.
"""

import bisect
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

import numpy as np

from qafel import vectors, wire
from qafel.errors import FrameError, NormError, StateError
from qafel.quantizers import Quantizer
from qafel.vectors import Vector
from qafel.wire import Update

MAX_RATIO = 30.0
"""``BoundedBuffer`` refuses an update whose norm exceeds this many times the median norm;
``typical_staleness`` clips each staleness to this many times the median staleness."""
MIN_NORMS, MAX_NORMS = 3, 1000
"""The median norm is used if at least MIN_NORMS clients have a norm above zero; it is taken over at most the
newest MAX_NORMS clients."""


def typical_staleness(values: Sequence[int]) -> float:
    """Return the mean of the values, each clipped to MAX_RATIO · max(1, median); 0 if there are none."""
    if not values:
        return 0.0
    limit = MAX_RATIO * max(1, statistics.median_low(values))
    return sum(min(value, limit) for value in values) / len(values)


class Aggregator(Protocol):
    """Collects weighted updates until the server asks for their sum."""

    @property
    def count(self) -> int:
        """The number of updates since the last ``finish``."""

    @property
    def pending(self) -> bool:
        """Whether the sum is not available yet, even if there are enough updates."""

    def add(self, update: Update, weight: float) -> None:
        """Add one update; FrameError, and no change, if its payload is bad."""

    def finish(self) -> Vector:
        """Return Σ w·Δ of the collected updates, and empty the buffer."""

    def state(self) -> bytes:
        """Everything that ``restore`` needs, as bytes."""

    def restore(self, state: bytes) -> None:
        """The inverse of ``state``; StateError if the bytes do not fit."""


class Buffer:
    """The default aggregator: each update is decoded into a running float32 sum."""

    def __init__(self, quantizer: Quantizer, size: int) -> None:
        self.quantizer = quantizer
        self.sum = vectors.zeros(size)
        self.count = 0
        self.pending = False

    def add(self, update: Update, weight: float) -> None:
        """sum ← sum + w·Δ."""
        with np.errstate(all="ignore"):
            self.quantizer.decode_add(update.payload, self.sum, weight)
        self.count += 1

    def finish(self) -> Vector:
        """Return the sum, and start a new one at zero."""
        total, self.sum, self.count = self.sum, vectors.zeros(self.sum.size), 0
        return total

    def state(self) -> bytes:
        """The count, then the sum."""
        return self.count.to_bytes(8, "little") + self.sum.tobytes()

    def restore(self, state: bytes) -> None:
        """The inverse of ``state``."""
        if len(state) != 8 + 4 * self.sum.size:
            raise StateError(f"the saved buffer must have {8 + 4 * self.sum.size} bytes, got {len(state)}")
        self.count = int.from_bytes(state[:8], "little")
        np.copyto(self.sum, np.frombuffer(state, np.float32, offset=8))


class _Bounded(wire.Sealed, frozen=True):
    MAGIC: ClassVar[bytes] = b"QB"

    buffer: bytes
    samples: float
    norms: list[tuple[int, float]]


class BoundedBuffer(Buffer):
    """A buffer that refuses an update whose norm is above a limit, and may weight updates by their samples.

    The limit is the smaller of ``max_norm`` and 30 times a median: that of the largest norms of the last
    ``window`` clients, one for each, refused updates included. A minority of clients can therefore neither
    raise the limit nor lock the others out, and the limit does not shrink when the training converges and
    most updates become small.
    """

    def __init__(
        self, quantizer: Quantizer, size: int, *, max_norm: float, window: int, max_samples: int | None = None
    ) -> None:
        super().__init__(quantizer, size)
        self.max_norm, self._window, self._max_samples = max_norm, min(window, MAX_NORMS), max_samples
        self.samples = 1
        """The number of samples behind the next update; at most ``max_samples`` count, if it is given."""
        self._total = 0.0
        self._norms: dict[int, float] = {}
        self._sorted: list[float] = []
        """The norms above zero, in order."""
        self._delta = vectors.zeros(size)
        """Room for one update; zero between two of them."""

    @property
    def limit(self) -> float:
        """The largest norm that is accepted now."""
        norms = self._sorted
        if len(norms) < MIN_NORMS:
            return self.max_norm
        return min(self.max_norm, MAX_RATIO * norms[len(norms) // 2])

    def _remember(self, client: int, norm: float) -> None:
        """Keep the largest norm of a client, and forget the oldest client if there are too many."""
        old = [self._norms.pop(client)] if client in self._norms else []
        norm = max([norm, *old])
        self._norms[client] = norm
        if len(self._norms) > self._window:
            old.append(self._norms.pop(next(iter(self._norms))))
        for value in old:
            if value > 0:
                del self._sorted[bisect.bisect_left(self._sorted, value)]
        if norm > 0:
            bisect.insort(self._sorted, norm)

    def add(self, update: Update, weight: float) -> None:
        """sum ← sum + w·n·Δ with n samples (1 without ``max_samples``); NormError if ‖Δ‖ is too large."""
        from qafel import vector_kernels

        delta = self._delta
        try:
            with np.errstate(all="ignore"):
                self.quantizer.decode_add(update.payload, delta)
            norm = math.sqrt(vector_kernels.squared_norm(vectors.read_only(delta), 0, delta.size))
            limit = self.limit
            if math.isfinite(norm):
                self._remember(update.client, norm)
            if not norm <= limit:
                raise NormError(f"the update has norm {norm:.3g}; the limit is {limit:.3g}")
        except FrameError:
            delta.fill(0)
            raise
        share = float(min(max(1, self.samples), self._max_samples)) if self._max_samples else 1.0
        vector_kernels.add_and_clear(self.sum, np.float32(weight * share), delta)
        self._total += share
        self.count += 1

    def finish(self) -> Vector:
        """Return the sum, with weights that add up to the number of updates."""
        count, total = self.count, self._total
        self._total = 0.0
        result = super().finish()
        if self._max_samples and total:
            result *= np.float32(count / total)
        return result

    def state(self) -> bytes:
        """The buffer, the samples in it, and the norms."""
        return _Bounded(super().state(), self._total, list(self._norms.items())).to_bytes()

    def restore(self, state: bytes) -> None:
        """The inverse of ``state``."""
        try:
            saved = _Bounded.from_bytes(state)
        except FrameError as error:
            raise StateError(f"not a saved buffer: {error}") from error
        super().restore(saved.buffer)
        self._total, self._norms = saved.samples, dict(saved.norms)
        self._sorted = sorted(norm for norm in self._norms.values() if norm > 0)


class SeenTasks:
    """The tasks of each client that were counted, in constant memory per client.

    Clients number their tasks upwards. Each client has a floor and a bit set: every task below the floor
    counts as seen, and the bit set holds the seen tasks from the floor on. The floor rises past consecutive
    seen tasks, and is never more than ``WINDOW`` tasks behind the newest one. An upload that is delayed by
    more than that is therefore refused as a duplicate.
    """

    WINDOW = 4096

    def __init__(self, rows: Iterable[tuple[int, int, bytes]] = ()) -> None:
        self._floors = {client: (floor, int.from_bytes(bits, "little")) for client, floor, bits in rows}

    def __contains__(self, client_task: tuple[int, int]) -> bool:
        client, task = client_task
        floor, bits = self._floors.get(client, (0, 0))
        return task < floor or bool(bits >> (task - floor) & 1 if task - floor < self.WINDOW else 0)

    def add(self, client: int, task: int) -> None:
        """Record a task that was not recorded before."""
        floor, bits = self._floors.get(client, (0, 0))
        behind = task - floor - self.WINDOW + 1
        if behind > 0:
            floor, bits = floor + behind, bits >> behind if behind < self.WINDOW else 0
        bits |= 1 << (task - floor)
        run = (~bits & (bits + 1)).bit_length() - 1
        self._floors[client] = floor + run, bits >> run

    def next(self, client: int) -> int:
        """The number after the newest task of a client that was recorded."""
        floor, bits = self._floors.get(client, (0, 0))
        return floor + bits.bit_length()

    def rows(self) -> list[tuple[int, int, bytes]]:
        """(client, floor, bits) of every client, in the form that the constructor takes."""
        return [
            (client, floor, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
            for client, (floor, bits) in sorted(self._floors.items())
        ]
