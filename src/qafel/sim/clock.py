"""The clock's settings: when clients arrive, how long they take, what gets lost, and how fast links are."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
ARRIVALS = ("constant", "poisson", "trace:FILE", "refill", "closed", "rounds")
DURATIONS = ("halfnormal:scale", "exponential:mean", "lognormal:median,sigma", "fixed:time", "trace:FILE")


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How time passes. A unit of time is what a duration of 1 is."""

    arrivals: str = "constant"
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
        kind, _, argument = self.arrivals.partition(":")
        if self.arrivals not in ARRIVALS[:2] + ARRIVALS[3:] and not (kind == "trace" and argument):
            raise ConfigError(f"unknown arrivals {self.arrivals!r}; known are {', '.join(ARRIVALS)}")
        lengths(self.duration)
        for name in ("rate", "slow_factor", "up_bandwidth", "down_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, not {value}")
        if not 0 <= self.slow_fraction <= 1:
            raise ConfigError(f"slow_fraction must be from 0 to 1, not {self.slow_fraction}")
        if not 0 <= self.dropouts < 1:
            raise ConfigError(f"dropouts must be at least 0 and below 1, not {self.dropouts}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.arrivals == "refill" and self.concurrency is None:
            raise ConfigError("arrivals refill needs a concurrency: how many clients train at any time")
        if self.arrivals in ("closed", "rounds") and self.concurrency is not None:
            raise ConfigError(f"arrivals {self.arrivals} sets the concurrency itself; leave concurrency out")

    @property
    def live(self) -> bool:
        """Whether bytes decide what happens when."""
        return self.up_bandwidth is not None or self.down_bandwidth is not None


def lengths(spec: str) -> Callable[[np.random.Generator, int], Times]:
    """What draws durations."""
    kind, _, argument = spec.partition(":")
    if kind == "trace" and argument:
        durations = _column(_read(Path(argument)), "duration", Path(argument))
        return lambda rng, n: durations[rng.integers(0, len(durations), n)]
    try:
        numbers = [float(word) for word in argument.split(",")] if argument else []
    except ValueError:
        numbers = [math.nan]
    a, b = [*numbers, 1.0, 1.0][:2]
    if len(numbers) > (2 if kind == "lognormal" else 1) or not (0 < a < math.inf and 0 < b < math.inf):
        kind = ""
    draw: dict[str, Callable[[np.random.Generator, int], Times]] = {
        "halfnormal": lambda rng, n: a * np.abs(rng.standard_normal(n)),
        "exponential": lambda rng, n: a * rng.standard_exponential(n),
        "lognormal": lambda rng, n: a * np.exp(b * rng.standard_normal(n)),
        "fixed": lambda rng, n: np.full(n, a),  # noqa: ARG005
    }
    if kind not in draw:
        raise ConfigError(
            f"unknown duration {spec!r}; known are {', '.join(DURATIONS)}, with positive numbers"
        )
    return draw[kind]


def trace(path: Path, clients: int) -> tuple[Times, Numbers, Times]:
    """(start, client or −1, duration or −1) of every arrival in a CSV file with those columns."""
    rows = _read(path)
    start = _column(rows, "start", path)
    if (np.diff(start) < 0).any():
        raise ConfigError(f"the starts in {path} must not go back in time; sort the file by start")
    client = _column(rows, "client", path) if "client" in rows[0] else np.full(len(rows), -1.0)
    duration = _column(rows, "duration", path) if "duration" in rows[0] else np.full(len(rows), -1.0)
    if "client" in rows[0] and not ((client == np.floor(client)) & (client < clients)).all():
        raise ConfigError(f"the clients in {path} must be whole numbers below {clients}")
    return start, client.astype(np.int64), duration


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    if not rows:
        raise ConfigError(f"the trace {path} is empty; it is CSV with the columns start, client, duration")
    return rows


def _column(rows: list[dict[str, Any]], name: str, path: Path) -> Times:
    if name not in rows[0]:
        raise ConfigError(f"the trace {path} has no column {name}; its first line must name its columns")
    values = np.empty(len(rows))
    for k, row in enumerate(rows):
        try:
            values[k] = float(row[name])
        except (TypeError, ValueError):
            values[k] = math.nan
        if not 0 <= values[k] < math.inf:
            raise ConfigError(
                f"line {k + 2} of the trace {path} has {name} = {row[name]!r}, not a number from 0 on"
            )
    return values
