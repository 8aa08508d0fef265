"""``contract:Q``: an unbiased quantizer made a contraction."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel.quantizers._base import Quantizer, inner_quantizer, register_quantizer
from qafel.quantizers._spec import Arguments
from qafel.vectors import Layout, Vector


@register_quantizer
@dataclass(frozen=True)
class Contract(Quantizer):
    """An unbiased Q times 1/(1 + ω), a contraction with δ = 1/(1 + ω). Biased, for servers.

    The payload is that of Q.
    """

    name = "contract"
    example = "contract:qsgd:4"

    inner: Quantizer

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take the spec of an unbiased quantizer."""
        if not arguments.rest:
            arguments.fail_with("needs a quantizer", cls.example)
        inner = inner_quantizer(arguments, arguments.rest, lambda nearest: f"contract:{nearest}")
        if not inner.unbiased:
            arguments.fail_with(f"needs an unbiased quantizer, and {inner.spec} is biased", inner.spec)
        return cls(inner)

    @property
    def spec(self) -> str:
        """``contract:SPEC``."""
        return f"contract:{self.inner.spec}"

    @property
    def unbiased(self) -> bool:
        """Whether the factor is 1, because the inner quantizer is lossless."""
        return self.inner.lossless

    def bind(self, layout: Layout) -> "Contract":
        """Return this quantizer with the inner one bound to ``layout``."""
        return Contract(self.inner.bind(layout))

    def factor(self, size: int) -> np.float32:
        """Return 1/(1 + ω)."""
        return np.float32(1.0 / (1.0 + self.inner.omega(size)))

    def omega(self, size: int) -> float:
        """Return 1 − 1/(1 + ω)."""
        omega = self.inner.omega(size)
        return omega / (1.0 + omega)

    def max_bytes(self, size: int) -> int:
        """Return the length of the longest inner payload."""
        return self.inner.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the inner payload. The decoder computes the factor from the size."""
        return self.inner.encode(x, seed)

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the inner vector times the factor."""
        x: Vector = self.factor(size) * self.inner.decode(data, size)
        return x
