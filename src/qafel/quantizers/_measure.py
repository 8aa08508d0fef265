"""Measure error, bias and size of a quantizer on a given vector; ``omega`` is the worst case only."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.errors import ConfigError
from qafel.quantizers._base import Quantizer, quantizer
from qafel.streams import derive
from qafel.vectors import Vector


@dataclass(frozen=True)
class Measured:
    """Error, bias and size of a quantizer on one vector, averaged over seeds."""

    spec: str
    size: int
    seeds: int
    nmse: float
    """Mean of ‖Q(x) − x‖²/‖x‖²: ω = 1 − δ on this vector."""
    nmse_error: float
    """Standard error of ``nmse``."""
    bias: float
    """Unbiased estimate of ‖E[Q(x)] − x‖²/‖x‖²; close to 0, of either sign, for unbiased quantizers."""
    payload_bytes: float

    @property
    def delta(self) -> float:
        """δ = 1 − ``nmse`` on this vector."""
        return 1.0 - self.nmse

    @property
    def bits(self) -> float:
        """Payload bits per coordinate."""
        return 8.0 * self.payload_bytes / self.size if self.size else 0.0


def measure(spec: str | Quantizer, x: Vector, seeds: int = 64, seed: int = 0) -> Measured:
    """Quantize ``x`` with ``seeds`` independent seeds; return mean error, bias and size."""
    if seeds < 2:
        raise ConfigError(f"seeds must be at least 2, got {seeds}")
    q, x = quantizer(spec), vectors.as_vector(x)
    exact = x.astype(np.float64)
    power = float(exact @ exact) or 1.0
    errors, lengths, mean = np.empty(seeds), np.empty(seeds), np.zeros(x.size)
    for k in range(seeds):
        data = q.encode(x, derive(seed, "measure", k))
        error = q.decode(data, x.size) - exact
        errors[k], lengths[k] = error @ error / power, len(data)
        mean += error / seeds
    nmse = float(errors.mean())
    return Measured(
        spec=q.spec,
        size=x.size,
        seeds=seeds,
        nmse=nmse,
        nmse_error=float(errors.std(ddof=1) / np.sqrt(seeds)),
        bias=(seeds * float(mean @ mean) / power - nmse) / (seeds - 1),
        payload_bytes=float(lengths.mean()),
    )
