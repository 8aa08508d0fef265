"""``eden``: a random rotation, then the best scalar quantizer of a normal number (Vargaftik et al. 2022).

A random rotation makes the coordinates of any vector look normally distributed: random signs and a Hadamard
transform, twice, in blocks, of which the last is filled up with zeros. Each coordinate is replaced by the
nearest of 2 to 16 Lloyd–Max points. The factor ‖y‖²/⟨y, c⟩ of a block, for the rotated y and its points c,
makes the result unbiased.

Payload: the seed of the signs (uint32), the power of two that normalised x (int16, mostly 0), the factors
(float32), then the codes packed by ``qafel.coding.bitplanes``.
"""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import packed_bytes
from qafel.coding.gaps import BLOCK
from qafel.errors import FrameError
from qafel.lazy import Lazy
from qafel.quantizers._base import Bits, register_quantizer
from qafel.quantizers._rotation import HEAD, blocks, draw_seed, rotation_kernels
from qafel.quantizers._scaled import MAX_EXPONENT, normalise, rescale
from qafel.streams import keys
from qafel.vectors import Vector

MAX_FACTOR = 2.0**60
CENTRES = {
    1: (0.7978845608,),
    2: (0.4527800398, 1.5104176087),
    3: (0.2450941660, 0.7560052811, 1.3439092685, 2.1519457155),
    4: (0.1283950299, 0.3880482995, 0.6567591185, 0.9423404902,
        1.2562309480, 1.6180464420, 2.0690172840, 2.7325895070),
}  # fmt: skip
"""The positive Lloyd–Max points of the normal distribution, by bits."""

bitplanes_kernels = Lazy("qafel.coding.bitplanes_kernels")
kernels = Lazy("qafel.quantizers.eden_kernels")


@register_quantizer
@dataclass(frozen=True)
class Eden(Bits):
    """A random rotation, Lloyd–Max points, and a factor that makes the result unbiased over rotations."""

    name = "eden"
    example = "eden:2"
    unbiased = True
    max_bits = 4

    def omega(self, size: int) -> float:
        """Return a bound that holds for every rotation: 1/cos² − 1 of the angle between y and c."""
        centres = CENTRES[self.bits]
        return BLOCK * (centres[-1] / centres[0]) ** 2 - 1 if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return HEAD.size + 4 * blocks(size) + packed_bytes(blocks(size) * BLOCK, self.bits) if size else 0

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the head, the factors, the codes."""
        normalised, signs = normalise(x), draw_seed(seed)
        y = vectors.zeros(blocks(x.size) * BLOCK)
        y[: x.size] = normalised.x
        rotation_kernels.rotate_blocks(y, keys(signs), False)
        factors, codes = np.zeros(y.size // BLOCK, np.float32), np.empty(y.size, np.uint8)
        kernels.nearest(y, np.array(CENTRES[self.bits], np.float32), factors, codes)
        out = np.empty(packed_bytes(y.size, self.bits), np.uint8)
        bitplanes_kernels.pack(codes, 0, codes.size, self.bits, out, 0)
        return HEAD.pack(signs, normalised.exponent) + factors.tobytes() + out.tobytes()

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the points times the factors, rotated back."""
        (signs, exponent), count = HEAD.unpack_from(data), blocks(out.size)
        factors = np.frombuffer(data[HEAD.size : HEAD.size + 4 * count], np.float32)
        if abs(exponent) > MAX_EXPONENT or not ((factors >= 0) & (factors <= MAX_FACTOR)).all():
            raise FrameError(f"{self.spec}: impossible exponent or factor")
        codes, y = np.empty(count * BLOCK, np.uint8), vectors.zeros(count * BLOCK)
        packed = np.frombuffer(data, np.uint8, offset=HEAD.size + 4 * count)
        bitplanes_kernels.unpack(packed, 0, codes.size, self.bits, codes, 0)
        kernels.points(codes, np.array(CENTRES[self.bits], np.float32), factors, y)
        rotation_kernels.rotate_blocks(y, keys(signs), True)
        value = y[: out.size]
        out += weight * (rescale(value, exponent) if exponent else value)
