"""The hidden state x̂, held by the server and by every client, equal to the bit.

Rules:
- x̂ starts as the agreed model x⁰ at version 0. An increment leads from version t to t + 1. Both sides apply
  the same bytes with the same code; the digest in the increment proves that they arrived at the same x̂.
- An increment that replaces x̂ (direct quantization, or full precision) leads to its version from anywhere.
- The server keeps a log of increments as long as replaying it costs no more bytes than a snapshot: C_max
  increments.
- ``catch_up`` decides what a client that is behind needs. All drivers ask it, but a federation's client whose
  increments replace x̂: it reads the newest one from the broker, which is what the answer would be.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.errors import FrameError
from qafel.quantizers import Quantizer
from qafel.vectors import Vector
from qafel.wire import Increment, Snapshot


class HiddenState:
    """x̂ with its version and digest."""

    def __init__(self, x: Vector, version: int = 0) -> None:
        x = vectors.copy(vectors.as_vector(x))
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        self._set(x, version)

    def _set(self, x: Vector, version: int) -> None:
        self._x, self.version, self.digest = x, version, digest(x, version)

    @property
    def x(self) -> Vector:
        """x̂, read-only; only ``advance`` changes it."""
        return vectors.read_only(self._x)

    def advance(self, payload: bytes, quantizer: Quantizer, *, version: int, replaces: bool) -> None:
        """x̂ ← x̂ + q, or x̂ ← q, now at ``version``; FrameError, and no change, if the payload is bad."""
        x = vectors.zeros(self._x.size) if replaces else self._x
        with np.errstate(all="ignore"):
            quantizer.decode_add(payload, x)
        self._set(x, version)

    def step(self, target: Vector, quantizer: Quantizer, seed: int, *, replaces: bool) -> bytes:
        """Quantize ``target`` to the next version; ``advance`` leads to the same x̂ with the payload."""
        x = vectors.zeros(self._x.size) if replaces else self._x
        with np.errstate(all="ignore"):
            payload = quantizer.encode_add(target, seed, x)
        self._set(x, self.version + 1)
        return payload

    def distance(self, x: Vector) -> float:
        """‖x − x̂‖."""
        from qafel import vector_kernels

        return math.sqrt(vector_kernels.squared_distance(vectors.read_only(x), self.x))

    @classmethod
    def restore(cls, snapshot: Snapshot, size: int) -> "HiddenState":
        """The state in a snapshot; FrameError if its size or its digest is wrong."""
        state = cls(read_model(snapshot.payload, size), snapshot.version)
        if state.digest != snapshot.digest:
            raise FrameError(f"snapshot of version {snapshot.version} does not match its own digest")
        return state

    def snapshot(self, job: int) -> Snapshot:
        """x̂ in full precision, as a message."""
        return Snapshot(job, self.version, self.digest, self._x.tobytes())

    def snapshot_bytes(self, job: int) -> int:
        """The length of the snapshot's frame, without encoding it."""
        empty = Snapshot(job, self.version, self.digest, b"")
        size = 4 * self._x.size
        return len(wire.encode(empty)) + size + (0 if size < 1 << 8 else 1 if size < 1 << 16 else 3)


def digest(x: Vector, version: int) -> int:
    """The 64-bit digest of x̂ at a version."""
    return wire.fingerprint(x.view(np.uint8).data, version)


def read_model(payload: bytes, size: int) -> Vector:
    """A model from its float32 bytes, or FrameError."""
    from qafel.quantizers import Identity

    return Identity().decode(payload, size)


class CatchUp(NamedTuple):
    """What a client downloads: the snapshot or nothing, then increments; ``size`` bytes in all."""

    snapshot: bool
    increments: range
    size: int


def catch_up(
    held: int | None, newest: int, sizes: Mapping[int, int], snapshot_bytes: int, *, replaces: bool
) -> CatchUp:
    """Decide how a client at version ``held`` gets to version ``newest``; None: it has no hidden state.

    ``sizes`` has the bytes of each increment that can still be replayed. The missing increments are replayed
    if all of them are there and cost no more than the snapshot of ``newest``; where an increment
    ``replaces`` x̂, the newest one is enough.
    """
    if held == newest:
        return CatchUp(False, range(0), 0)
    if replaces:
        missing = range(newest, newest + 1)
    else:
        missing = range(newest + 1 if held is None else held + 1, newest + 1)
    size = sum(sizes.get(version, snapshot_bytes + 1) for version in missing)
    if missing and size <= snapshot_bytes:
        return CatchUp(False, missing, size)
    return CatchUp(True, range(0), snapshot_bytes)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An increment in the log."""

    version: wire.Count
    digest: wire.Word
    replaces: bool
    frame: bytes


class IncrementLog:
    """The newest increments, as many as cost no more bytes than a snapshot."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = deque(entries)

    @property
    def sizes(self) -> dict[int, int]:
        """The length of each increment's frame, by version."""
        return {entry.version: len(entry.frame) for entry in self.entries}

    def append(self, increment: Increment, frame: bytes, snapshot_bytes: int) -> None:
        """Add the newest increment; drop the oldest while replaying the log costs more than a snapshot."""
        if increment.replaces:
            self.entries.clear()
        self.entries.append(Entry(increment.version, increment.digest, increment.replaces, frame))
        while sum(self.sizes.values()) > snapshot_bytes:
            self.entries.popleft()
