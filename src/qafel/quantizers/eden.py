"""``eden``: a random rotation, then the best scalar quantizer of a normal number (Vargaftik et al. 2022).

A random rotation makes the coordinates of any vector look normal; a Lloyd–Max quantizer of 1 to 4 bits takes
the place of each, and one factor, ‖y‖²/⟨y, c⟩ for the rotated y and its codes c, makes the result unbiased.
Every block of the rotation (``rotation``) has its own factor.

Payload: the head of the rotation, the factors (float32), then plane-packed codes.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.planes import packed_bytes
from qafel.quantizers import rotation
from qafel.quantizers.base import Dense, register
from qafel.quantizers.rotation import BLOCK, HEAD
from qafel.quantizers.spec import Arguments
from qafel.vectors import Vector

CENTRES = {
    1: (0.7978845608,),
    2: (0.4527800398, 1.5104176087),
    3: (0.2450941660, 0.7560052811, 1.3439092685, 2.1519457155),
    4: (
        0.1283950299,
        0.3880482995,
        0.6567591185,
        0.9423404902,
        1.2562309480,
        1.6180464420,
        2.0690172840,
        2.7325895070,
    ),
}
"""Lloyd–Max points of the normal distribution, those above zero."""


@register
@dataclass(frozen=True)
class Eden(Dense):
    """Rotation, Lloyd–Max points, and the factor that makes it unbiased."""

    name = "eden"
    example = "eden:2"

    bits: int

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``eden:BITS``."""
        arguments.expect("bits", ())
        bits = arguments.integer("bits", 1, 4)
        if bits is None:
            arguments.fail_with("needs bits", cls.example)
        return cls(bits)

    @property
    def spec(self) -> str:
        """``eden:BITS``."""
        return f"eden:{self.bits}"

    @property
    def unbiased(self) -> bool:
        """Over rotations."""
        return True

    def omega(self, size: int) -> float:
        """What no rotation exceeds: 1/cos² − 1 of the angle between y and c."""
        centres = CENTRES[self.bits]
        return BLOCK * (centres[-1] / centres[0]) ** 2 - 1 if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Exactly this many, always."""
        blocks = rotation.blocks(size)
        return HEAD + 4 * blocks + packed_bytes(blocks * BLOCK, self.bits) if size else 0

    def encode(self, x: Vector, seed: int) -> bytes:
        """Seed, factors, codes."""
        from qafel.coding import kernels as coding
        from qafel.quantizers import eden_kernels as kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        y, head = rotation.forward(x, seed)
        factors, codes = np.zeros(y.size // BLOCK, np.float32), np.empty(y.size, np.uint8)
        kernels.nearest(y, np.array(CENTRES[self.bits], np.float32), factors, codes)
        out = np.empty(packed_bytes(y.size, self.bits), np.uint8)
        coding.pack(codes, 0, codes.size, self.bits, out, 0)
        return head + factors.tobytes() + out.tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Points times factors, rotated back."""
        from qafel.coding import kernels as coding
        from qafel.quantizers import eden_kernels as kernels

        vectors.check_target(out)
        self.check_length(data, out.size)
        if not out.size:
            return
        blocks = rotation.blocks(out.size)
        factors = np.frombuffer(data[HEAD : HEAD + 4 * blocks], np.float32)
        rotation.check(data, factors, self.spec)
        codes, y = np.empty(blocks * BLOCK, np.uint8), vectors.zeros(blocks * BLOCK)
        packed = np.frombuffer(data, np.uint8, offset=HEAD + 4 * blocks)
        coding.unpack(packed, 0, codes.size, self.bits, codes, 0)
        kernels.points(codes, np.array(CENTRES[self.bits], np.float32), factors, y)
        rotation.add_back(y, data, weight, out)
