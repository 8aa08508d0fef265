"""The settings of a simulation: what is learned and how, and the virtual clock."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from qafel.errors import ConfigError, unknown
from qafel.sim.clock import ARRIVALS, duration_sampler
from qafel.tasks.settings import Learning
from qafel.tasks.values import checked, read_file


class Settings(Learning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a simulation does. A unit of virtual time is a duration of 1."""

    arrivals: str | None = None
    """``constant``, ``poisson``, ``trace:FILE``, ``refill``, ``closed``, ``rounds``; by default ``rounds``
    for fedavg and ``constant`` for every other algorithm."""
    rate: float = 100.0
    """Arrivals per unit of time."""
    concurrency: int | None = None
    """The largest number of clients that train at a time; clients beyond it are turned away."""
    duration: str = "halfnormal:1"
    """The distribution of training times."""
    slow_fraction: float = 0.0
    """The share of clients that are slow."""
    slow_factor: float = 10.0
    """How many times as long the slow clients train."""
    dropouts: float = 0.0
    """The share of tasks that are lost."""
    sampling: Literal["replacement", "idle"] = "replacement"
    """Clients are drawn from all of them, or from those that do not train; fedavg always does the latter."""
    up_bandwidth: float | None = None
    """Bytes per unit of time; None: transfers take no time."""
    down_bandwidth: float | None = None
    """Bytes per unit of time; None: transfers take no time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None and (self.train is None or self.clients is None):
            raise ConfigError("data=None needs train, which has its own samples, and the number of clients")
        if self.algorithm == "fedavg" and self.arrivals not in (None, "rounds"):
            raise ConfigError(f"fedavg is synchronous; its arrivals are rounds, got {self.arrivals}")
        if self.algorithm != "fedavg" and self.arrivals == "rounds":
            raise ConfigError("arrivals rounds is synchronous training; use the algorithm fedavg")
        kind, _, argument = self.arrival_process.partition(":")
        if self.arrival_process not in ARRIVALS[:2] + ARRIVALS[3:] and not (kind == "trace" and argument):
            raise unknown("arrivals", str(self.arrivals), ARRIVALS)
        duration_sampler(self.duration)
        for name in ("rate", "slow_factor", "up_bandwidth", "down_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {value}")
        if not 0 <= self.slow_fraction <= 1:
            raise ConfigError(f"slow_fraction must be from 0 to 1, got {self.slow_fraction}")
        if not 0 <= self.dropouts < 1:
            raise ConfigError(f"dropouts must be at least 0 and below 1, got {self.dropouts}")
        if self.arrivals == "refill" and self.concurrency is None:
            raise ConfigError("arrivals refill needs a concurrency: how many clients train at any time")
        if self.arrivals in ("closed", "rounds") and self.concurrency is not None:
            raise ConfigError(f"arrivals {self.arrivals} sets the concurrency itself; leave concurrency out")

    @property
    def arrival_process(self) -> str:
        """``arrivals``, or the algorithm's default."""
        return self.arrivals or ("rounds" if self.algorithm == "fedavg" else "constant")

    @property
    def live(self) -> bool:
        """Whether the length of frames decides what happens when."""
        return self.up_bandwidth is not None or self.down_bandwidth is not None


def make_settings(values: Mapping[str, Any], where: str = "the settings") -> Settings:
    """Settings from names and values; ConfigError says what is wrong, and where."""
    return checked(Settings, values, where)


def read_settings(path: Path | None, changes: Iterable[str] = ()) -> Settings:
    """Settings from a TOML file and ``key=value`` changes."""
    return read_file(Settings, path, changes)
