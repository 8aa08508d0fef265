"""Distributions and traces of the virtual clock: when clients arrive, and how long they train."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
ARRIVALS = ("constant", "poisson", "trace:FILE", "refill", "closed", "rounds")
DURATIONS = ("halfnormal:scale", "exponential:mean", "lognormal:median,sigma", "fixed:time", "trace:FILE")


def duration_sampler(spec: str) -> Callable[[np.random.Generator, int], Times]:
    """The function (generator, count) -> durations that ``spec`` names."""
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
        raise ConfigError(f"the column start in {path} must not decrease; sort the file by start")
    client = _column(rows, "client", path) if "client" in rows[0] else np.full(len(rows), -1.0)
    duration = _column(rows, "duration", path) if "duration" in rows[0] else np.full(len(rows), -1.0)
    if "client" in rows[0] and not ((client == np.floor(client)) & (client < clients)).all():
        raise ConfigError(f"the clients in {path} must be integers below {clients}")
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
                f"line {k + 2} of the trace {path} has {name} = {row[name]!r}; it must be at least 0"
            )
    return values
