"""The buffer of K updates, and which uploads were counted already.

``Aggregator`` is what the server needs of a buffer. The default sums in the clear; one that adds noise or
unmasks a secure sum lives above the server and is handed to it.
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
        """Updates collected since the last ``finish``."""

    @property
    def pending(self) -> bool:
        """Whether ``finish`` cannot be answered yet, though the updates are there."""

    def add(self, update: Update, weight: float) -> None:
        """Take in one update; FrameError, and nothing changed, if its payload is bad."""

    def finish(self) -> Vector:
        """Σ w·Δ of what was collected; empties the buffer."""

    def state(self) -> bytes:
        """Everything needed to continue."""

    def restore(self, state: bytes) -> None:
        """Continue from ``state``."""


class Buffer:
    """The sum in the clear: each update is decoded straight into a running float32 sum."""

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
        """The sum; a new one starts at zero."""
        total, self.sum, self.count = self.sum, vectors.zeros(self.sum.size), 0
        return total

    def state(self) -> bytes:
        """The count, then the sum."""
        return self.count.to_bytes(8, "little") + self.sum.tobytes()

    def restore(self, state: bytes) -> None:
        """The inverse of ``state``."""
        if len(state) != 8 + 4 * self.sum.size:
            raise StateError(f"the saved buffer has {len(state)} bytes, not {8 + 4 * self.sum.size}")
        self.count = int.from_bytes(state[:8], "little")
        np.copyto(self.sum, np.frombuffer(state, np.float32, offset=8))


class SeenTasks:
    """Which tasks of which client were counted, in memory that does not grow with their number.

    Clients number their tasks upwards. For each client there is a floor, below which everything counts as
    seen, and the seen ones above it as a bit set. The floor rises over runs of seen tasks, and is dragged
    along ``WINDOW`` tasks behind the newest: an upload delayed by more than that is refused as if it had been
    counted.
    """

    WINDOW = 4096

    def __init__(self, rows: Iterable[tuple[int, int, bytes]] = ()) -> None:
        self._floors = {client: (floor, int.from_bytes(bits, "little")) for client, floor, bits in rows}

    def __contains__(self, client_task: tuple[int, int]) -> bool:
        client, task = client_task
        floor, bits = self._floors.get(client, (0, 0))
        return task < floor or bool(bits >> (task - floor) & 1 if task - floor < self.WINDOW else 0)

    def add(self, client: int, task: int) -> None:
        """Count a task that was not counted before."""
        floor, bits = self._floors.get(client, (0, 0))
        behind = task - floor - self.WINDOW + 1
        if behind > 0:
            floor, bits = floor + behind, bits >> behind if behind < self.WINDOW else 0
        bits |= 1 << (task - floor)
        run = (~bits & (bits + 1)).bit_length() - 1
        self._floors[client] = floor + run, bits >> run

    def next(self, client: int) -> int:
        """The first number above every task of a client that was counted."""
        floor, bits = self._floors.get(client, (0, 0))
        return floor + bits.bit_length()

    def rows(self) -> list[tuple[int, int, bytes]]:
        """(client, floor, bits) of every client, for saving."""
        return [
            (client, floor, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
            for client, (floor, bits) in sorted(self._floors.items())
        ]
