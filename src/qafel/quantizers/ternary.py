"""``ternary``: −1, 0 or 1 times the largest magnitude (Wen et al. 2017). Unbiased.

It is ``qsgd:levels=1,norm=max`` with another default coding, and has the same payload.
"""

from dataclasses import dataclass
from functools import cached_property

from qafel.quantizers._base import register_quantizer
from qafel.quantizers._coded import CodingOnly
from qafel.quantizers.qsgd import QSGD
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class Ternary(CodingOnly):
    """−1, 0 or 1 times the largest magnitude."""

    name = "ternary"
    example = "ternary"
    unbiased = True

    @cached_property
    def _qsgd(self) -> QSGD:
        return QSGD(1, None, "max", self.coding)

    def omega(self, size: int) -> float:
        """Return (√d − 1)/2, attained."""
        return self._qsgd.omega(size)

    def max_bytes(self, size: int) -> int:
        """Return the length of the longest payload."""
        return self._qsgd.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the payload of ``qsgd``."""
        return self._qsgd.encode(x, seed)

    def decode(self, data: bytes, size: int) -> Vector:
        """Return Q(x), or raise FrameError."""
        return self._qsgd.decode(data, size)

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Do ``out += weight · Q(x)``."""
        self._qsgd.decode_add(data, out, weight)
