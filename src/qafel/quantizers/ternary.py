"""``ternary``: −1, 0 or 1 times the largest magnitude."""

from dataclasses import dataclass

import numpy as np

from qafel.coding.bitplanes import packed_bytes
from qafel.coding.integers import encode_integers
from qafel.lazy import Lazy
from qafel.quantizers._base import NoArguments, register_quantizer
from qafel.quantizers._coded import Coded
from qafel.quantizers.qsgd import QSGD
from qafel.vectors import Vector

PLAIN = QSGD(1, None, "max")

bitplanes_kernels = Lazy("qafel.coding.bitplanes_kernels")


@register_quantizer
@dataclass(frozen=True)
class Ternary(NoArguments, Coded):
    """−1, 0 or 1 times the largest magnitude (Wen et al. 2017). Unbiased.

    It is ``qsgd:levels=1,norm=max`` with an entropy coder: most of the integers are zero.

    Payload: the largest magnitude (float32), then the integers.
    """

    name = example = "ternary"
    unbiased = True
    head_bytes, largest = 4, 1

    def omega(self, size: int) -> float:
        """Return (√d − 1)/2, attained."""
        return PLAIN.omega(size)

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the largest magnitude, then the integers."""
        data, q = PLAIN.payload(x, seed), np.empty(x.size, np.int16)
        bitplanes_kernels.unpack_integers(np.frombuffer(data, np.uint8, offset=4), 1, PLAIN.bits, q)
        return data[:4] + encode_integers(q)

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the integers as the payload of ``qsgd`` that they are."""
        packed = np.empty(packed_bytes(out.size, PLAIN.bits), np.uint8)
        bitplanes_kernels.pack_integers(self.read_integers(data, out.size), 1, PLAIN.bits, packed)
        PLAIN.add(data[:4] + packed.tobytes(), weight, out)
