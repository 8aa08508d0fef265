"""The hidden state x̂, which the server and every client hold and which never differ by a bit.

Rules:
- x̂ starts as the agreed model x⁰ at version 0. An increment leads from version t to t + 1; both sides apply
  the same bytes with the same code, and the digest in the increment proves that they arrived at the same x̂.
- An increment that replaces x̂ (direct quantization, or full precision) leads to its version from anywhere.
- The server keeps a log of increments, for clients that missed some, as long as replaying it costs fewer
  bytes than a snapshot: C_max increments. A client that missed more gets the snapshot.
"""

from collections import deque
from collections.abc import Iterable

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
        self._x = vectors.copy(vectors.as_vector(x))
        if not vectors.is_finite(self._x):
            raise vectors.not_finite(self._x)
        self.version = version
        self.digest = self._digest()

    @property
    def x(self) -> Vector:
        """x̂ to look at; only ``advance`` changes it."""
        return vectors.read_only(self._x)

    def advance(self, payload: bytes, quantizer: Quantizer, *, version: int, replaces: bool) -> None:
        """x̂ ← x̂ + q, or x̂ ← q, now at ``version``; FrameError, and nothing changed, if the payload is bad."""
        x = vectors.zeros(self._x.size) if replaces else self._x
        with np.errstate(all="ignore"):
            quantizer.decode_add(payload, x)
        self._x, self.version = x, version
        self.digest = self._digest()

    @classmethod
    def restore(cls, snapshot: Snapshot, size: int) -> "HiddenState":
        """What a snapshot says, or FrameError if it contradicts itself or has another size."""
        state = cls(read_model(snapshot.payload, size), snapshot.version)
        if state.digest != snapshot.digest:
            raise FrameError("the digest of x̂ does not match its numbers")
        return state

    def snapshot(self, job: int) -> Snapshot:
        """x̂ in full, as a message."""
        return Snapshot(job, self.version, self.digest, self._x.tobytes())

    def snapshot_bytes(self, job: int) -> int:
        """The length of the snapshot's frame, without making it."""
        empty = Snapshot(job, self.version, self.digest, b"")
        size = 4 * self._x.size
        return len(wire.encode(empty)) + size + (0 if size < 1 << 8 else 1 if size < 1 << 16 else 3)

    def _digest(self) -> int:
        return digest(self._x, self.version)


def digest(x: Vector, version: int) -> int:
    """The 64-bit digest of x̂ at a version."""
    return wire.fingerprint(x.view(np.uint8).data, version)


def read_model(payload: bytes, size: int) -> Vector:
    """A model from its float32 bytes, or FrameError."""
    from qafel.quantizers import Identity

    return Identity().decode(payload, size)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An increment in the log."""

    version: wire.Count
    digest: wire.Word
    replaces: bool
    frame: bytes


class IncrementLog:
    """The newest increments: as many as cost no more bytes than a snapshot."""

    def __init__(self, entries: Iterable[Entry] = (), snapshot_bytes: int = 0) -> None:
        self.entries = deque(entries)
        self.snapshot_bytes = snapshot_bytes

    @property
    def cost(self) -> int:
        """Bytes of all of it."""
        return sum(len(entry.frame) for entry in self.entries)

    def append(self, increment: Increment, frame: bytes, snapshot_bytes: int) -> None:
        """Take in the newest increment; let go of what costs more to replay than the snapshot does."""
        self.snapshot_bytes = snapshot_bytes
        if increment.replaces:
            self.entries.clear()
        self.entries.append(Entry(increment.version, increment.digest, increment.replaces, frame))
        while self.cost > self.snapshot_bytes:
            self.entries.popleft()

    @property
    def c_max(self) -> int:
        """C_max: how many increments of the mean size cost one snapshot."""
        return self.snapshot_bytes * len(self.entries) // self.cost if self.entries else 0

    def missing(self, version: int, client_digest: int) -> list[bytes] | None:
        """The frames that lead a client from ``version`` to the newest; None where only a snapshot helps.

        Version −1 stands for a client that has nothing.
        """
        first = self.entries[0] if self.entries else None
        if first is not None and first.replaces and version < first.version:
            return [entry.frame for entry in self.entries]
        if first is None or not first.version - 1 <= version <= self.entries[-1].version:
            return None
        known = {entry.version: entry.digest for entry in self.entries}
        if known.get(version, client_digest) != client_digest:
            return None
        return [entry.frame for entry in self.entries if entry.version > version]

    def bytes_since(self, version: int) -> int | None:
        """What ``missing`` costs a client at ``version``; None where it needs a snapshot."""
        first = self.entries[0] if self.entries else None
        if first is None or (version < first.version - 1 and not first.replaces):
            return None
        return sum(len(entry.frame) for entry in self.entries if entry.version > version)
