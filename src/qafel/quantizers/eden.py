"""``eden``: a random rotation, then the best scalar quantizer of a normal number (Vargaftik et al. 2022).

A random rotation makes the coordinates of any vector look normally distributed. Each is replaced by the
nearest of 2 to 16 Lloyd–Max points. The factor ‖y‖²/⟨y, c⟩, for the rotated y and its points c, makes the
result unbiased; every block of the rotation (``_rotation``) has its own factor.

Payload: the head of the rotation, the factors (float32), then the codes packed by
``qafel.coding.bitplanes``.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import packed_bytes
from qafel.quantizers import _rotation
from qafel.quantizers._base import Additive, register_quantizer
from qafel.quantizers._rotation import BLOCK, HEAD
from qafel.quantizers._spec import Arguments
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
"""The positive Lloyd–Max points of the normal distribution, by bits."""


@register_quantizer
@dataclass(frozen=True)
class Eden(Additive):
    """A random rotation, Lloyd–Max points, and a factor that makes the result unbiased over rotations."""

    name = "eden"
    example = "eden:2"
    unbiased = True

    bits: int

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``BITS``."""
        arguments.expect("bits", ())
        bits = arguments.integer("bits", 1, 4)
        if bits is None:
            arguments.fail_with("needs a number of bits", cls.example)
        return cls(bits)

    @property
    def spec(self) -> str:
        """``eden:BITS``."""
        return f"eden:{self.bits}"

    def omega(self, size: int) -> float:
        """Return a bound that holds for every rotation: 1/cos² − 1 of the angle between y and c."""
        centres = CENTRES[self.bits]
        return BLOCK * (centres[-1] / centres[0]) ** 2 - 1 if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        blocks = _rotation.blocks(size)
        return HEAD + 4 * blocks + packed_bytes(blocks * BLOCK, self.bits) if size else 0

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the head, the factors, the codes."""
        from qafel.coding import bitplanes_kernels
        from qafel.quantizers import eden_kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        y, head = _rotation.forward(x, seed)
        factors, codes = np.zeros(y.size // BLOCK, np.float32), np.empty(y.size, np.uint8)
        eden_kernels.nearest(y, np.array(CENTRES[self.bits], np.float32), factors, codes)
        out = np.empty(packed_bytes(y.size, self.bits), np.uint8)
        bitplanes_kernels.pack(codes, 0, codes.size, self.bits, out, 0)
        return head + factors.tobytes() + out.tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add the points times the factors, rotated back."""
        from qafel.coding import bitplanes_kernels
        from qafel.quantizers import eden_kernels

        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        blocks = _rotation.blocks(out.size)
        factors = np.frombuffer(data[HEAD : HEAD + 4 * blocks], np.float32)
        _rotation.check(data, factors, self.spec)
        codes, y = np.empty(blocks * BLOCK, np.uint8), vectors.zeros(blocks * BLOCK)
        packed = np.frombuffer(data, np.uint8, offset=HEAD + 4 * blocks)
        bitplanes_kernels.unpack(packed, 0, codes.size, self.bits, codes, 0)
        eden_kernels.points(codes, np.array(CENTRES[self.bits], np.float32), factors, y)
        _rotation.add_back(y, data, weight, out)
