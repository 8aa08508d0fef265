"""The plan of a federation: what is learned and how, and who may train when. ``JOB.toml`` is one."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from qafel.errors import ConfigError
from qafel.federation.subjects import Subjects
from qafel.tasks.settings import Learning, read_file


class Plan(Learning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a federation does."""

    name: str = "qafel"
    """Subjects its streams and subjects."""
    downlink: Literal["broadcast", "catch-up"] = "broadcast"
    """Clients hear every increment, or fetch what they missed when they start a task."""
    concurrency: int = 100
    """Clients that may train at a time."""
    lease_seconds: float = 300.0
    """A client that has not reported by then no longer counts; its update is welcome whenever it comes."""
    rest_seconds: float = 0.0
    """How long a client rests between two tasks."""
    max_pending: int = 64
    """Uploads of one client that the broker keeps for the server; more have to wait."""
    max_norm: float | None = None
    """Updates of a larger norm are rejected."""
    checkpoint_seconds: float = 1.0
    """The server's state is saved this often; until then the broker keeps the uploads."""
    replicas: int = 1
    """Of everything in the broker; 3 in a cluster of three."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Subjects(self.name)
        for name in ("concurrency", "max_pending", "replicas"):
            if not 1 <= getattr(self, name) < 1 << 31:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lease_seconds", "rest_seconds", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, not {getattr(self, name)}")
        if self.max_norm is not None and not 0 < self.max_norm < math.inf:
            raise ConfigError(f"max_norm must be positive and finite, not {self.max_norm}")
        if self.algorithm == "fedavg":
            raise ConfigError("a federation is asynchronous, and fedavg is not; use fedbuff or qafel")


def read(path: Path | None, changes: Iterable[str] = ()) -> Plan:
    """A plan from a TOML file and ``key=value`` changes."""
    return read_file(Plan, path, changes)
