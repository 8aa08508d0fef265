"""The buffer of K updates, and the record of the tasks that were counted.

``Aggregator`` is the interface that the server uses. ``Buffer``, the default, sums the decoded updates. A
driver can pass another aggregator to the server, for example one that adds noise or unmasks a secure sum.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from qafel import vectors
from qafel.errors import StateError
from qafel.quantizers import Quantizer
from qafel.vectors import Vector
from qafel.wire import Update


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
