"""The settings of a run: what is learned and how, and the clock."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from qafel.errors import ConfigError
from qafel.sim.clock import Clock
from qafel.tasks.settings import Learning, checked, read_file


class Settings(Learning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a run does."""

    # when: fields of Clock
    arrivals: str | None = None
    rate: float = 100.0
    concurrency: int | None = None
    duration: str = "halfnormal:1"
    slow_fraction: float = 0.0
    slow_factor: float = 10.0
    dropouts: float = 0.0
    sampling: Literal["replacement", "idle"] = "replacement"
    up_bandwidth: float | None = None
    down_bandwidth: float | None = None
    downlink: Literal["broadcast", "catch-up"] = "broadcast"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm == "fedavg" and self.arrivals not in (None, "rounds"):
            raise ConfigError(f"fedavg is synchronous: its arrivals are rounds, not {self.arrivals}")
        if self.algorithm != "fedavg" and self.arrivals == "rounds":
            raise ConfigError("arrivals rounds is synchronous training; use the algorithm fedavg")
        self.clock()

    def clock(self) -> Clock:
        """How time passes."""
        fields = {name: getattr(self, name) for name in Clock.__struct_fields__ if name != "arrivals"}
        default = "rounds" if self.algorithm == "fedavg" else "constant"
        return Clock(arrivals=self.arrivals or default, **fields)


def settings(values: Mapping[str, Any], where: str = "the settings") -> Settings:
    """Settings from names and values, or one sentence that says what is wrong, and where."""
    return checked(Settings, values, where)


def read(path: Path | None, changes: Iterable[str] = ()) -> Settings:
    """Settings from a TOML file and ``key=value`` changes."""
    return read_file(Settings, path, changes)
