"""What a run writes down: a point of its curve, and a checkpoint."""

import msgspec

from qafel.sim.frames import State as FramesState


class Point(msgspec.Struct, frozen=True):
    """What was measured after so many uploads: a line of metrics.jsonl."""

    uploads: int
    version: int
    time: float
    accuracy: float
    smoothed: float
    loss: float
    bytes_up: int
    bytes_down: int
    staleness: float
    in_flight: int
    residual: float
    """‖x − x̂‖."""


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
