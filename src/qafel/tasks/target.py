"""The target of a run: a value that a smoothed metric must reach."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from qafel.errors import ConfigError


class Target(NamedTuple):
    """A value that the smoothed ``metric`` must reach."""

    metric: str
    above: bool
    """Whether it is reached from below: metric ≥ value."""
    value: float

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics reach it; ConfigError if there is no such metric."""
        if self.metric not in metrics:
            raise ConfigError(
                f"the target is about {self.metric!r}, which is not measured; the metrics are "
                f"{', '.join(metrics)}"
            )
        value = metrics[self.metric]
        return value >= self.value if self.above else value <= self.value


def parse_target(target: float | str | None) -> Target | None:
    """``0.9`` (an accuracy), ``"mae <= 0.1"`` or ``"f1 >= 0.8"``; ConfigError if it is something else."""
    if target is None:
        return None
    if isinstance(target, str):
        for sign in ("<=", ">="):
            name, _, number = (part.strip() for part in target.partition(sign))
            if sign in target and name and math.isfinite(_number(number)):
                return Target(name, sign == ">=", _number(number))
    value = _number(target)
    if not 0 < value <= 1:
        raise ConfigError(
            "target must be an accuracy between 0 and 1, or 'NAME <= NUMBER', or 'NAME >= NUMBER', got "
            f"{str(target)[:60]!r}"
        )
    return Target("accuracy", True, value)


def _number(text: float | str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
