"""The checkpoint of a simulation."""

from typing import ClassVar

from qafel import wire
from qafel.runs.tracker import Totals
from qafel.sim.frames import State as FramesState


class Saved(wire.Sealed, frozen=True):
    """Everything that decides what happens next in a simulation, and what was measured so far."""

    MAGIC: ClassVar[bytes] = b"QR"
    FORMAT: ClassVar[int] = 3

    settings: str
    fingerprint: int
    server: bytes
    follower: bytes
    timeline: bytes
    frames: FramesState
    sent: list[bytes]
    known: bytes
    totals: Totals
    seconds: dict[str, float]
    metrics_bytes: int
