"""The checkpoint of a run."""

import msgspec

from qafel.runs.result import Point
from qafel.sim.frames import State as FramesState


class Saved(msgspec.Struct, array_like=True):
    """Everything that decides what comes next in a run, and what it measured so far."""

    settings: str
    reason: str | None
    fingerprint: int
    server: bytes
    follower: bytes
    timeline: bytes
    frames: FramesState
    sent: list[bytes]
    known: bytes
    counts: dict[str, int | float]
    staleness: dict[int, int]
    points: list[Point]
    seconds: dict[str, float]
    metrics_bytes: int
