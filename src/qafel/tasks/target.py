"""The target of a run: a value that a smoothed metric must reach."""

import math
import re
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
        match = re.fullmatch(r"\s*([^<>=]*[^<>=\s])\s*(<=|>=)\s*(\S+)\s*", target)
        try:
            if match:
                return Target(match[1], match[2] == ">=", float(match[3]))
            target = float(target)
        except ValueError:
            target = math.nan
    if not 0 < target <= 1:
        raise ConfigError(
            "target must be an accuracy between 0 and 1, or 'NAME <= NUMBER', or 'NAME >= NUMBER', got "
            f"{target}"
        )
    return Target("accuracy", True, float(target))
