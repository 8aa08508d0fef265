"""``ternary``: −1, 0 or 1 times the largest magnitude (Wen et al. 2017). Unbiased.

It is ``qsgd:levels=1,norm=max`` with an entropy coder: most of the integers are zero.

Payload: the largest magnitude (float32), then the integers.
"""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import packed_bytes
from qafel.coding.integers import encode_integers
from qafel.quantizers._base import NoArguments, register_quantizer
from qafel.quantizers._coded import Coded
from qafel.quantizers.qsgd import QSGD
from qafel.vectors import Vector

PLAIN = QSGD(1, None, "max")


@register_quantizer
@dataclass(frozen=True)
class Ternary(NoArguments, Coded):
    """−1, 0 or 1 times the largest magnitude."""

    name = "ternary"
    example = "ternary"
    unbiased = True

    def omega(self, size: int) -> float:
        """Return (√d − 1)/2, attained."""
        return PLAIN.omega(size)

    def head_bytes(self, size: int) -> int:
        """Return the bytes of the largest magnitude."""
        return 4 if size else 0

    def integers(self, size: int) -> tuple[int, int]:
        """Return one integer for every coordinate."""
        return size, 1

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the largest magnitude, then the integers."""
        from qafel.coding import bitplanes_kernels

        payload, q = PLAIN.encode(x, seed), np.empty(np.size(x), np.int16)
        if q.size:
            bitplanes_kernels.unpack_integers(np.frombuffer(payload, np.uint8, offset=4), 1, PLAIN.bits, q)
        return payload[:4] + encode_integers(q) if q.size else b""

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Do ``out += weight · Q(x)``."""
        from qafel.coding import bitplanes_kernels

        vectors.check_target(out)
        self.check(data, out.size)
        packed = np.empty(packed_bytes(out.size, PLAIN.bits), np.uint8)
        if out.size:
            bitplanes_kernels.pack_integers(self.read_integers(data, out.size), 1, PLAIN.bits, packed)
            PLAIN.decode_add(data[:4] + packed.tobytes(), out, weight)
