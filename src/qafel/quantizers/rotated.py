"""``rotated``: a random rotation, a dead zone, an entropy coder: unbiased, for clients, below one bit.

The rotation of ``eden`` makes every block of 1,024 coordinates look normal; rounding towards zero, q =
sign(y)·⌊|y|/s + ⅓⌋, keeps the few that stand out, and the range coder makes little of the rest. The factor
‖y‖²/⟨y, c⟩ of a block makes the result unbiased over rotations, as in EDEN. At half a bit this leaves six
tenths of the error of ``dither``, whose noise at large steps is that of keeping a coordinate by chance; from
one bit on ``dither`` is better.

Blocks with more to say get more bits: in proportion to their rms, which is what minimises Σ power/bits.

Payload: the seed of the rotation (uint32), a power of two that brought x to a normal size (int16, mostly 0),
the factors (the upper halves of float32), then the integers. The last block is filled up with zeros.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.coding.integers import check_integers, decode_integers, encode_integers, max_integer_bytes
from qafel.errors import FrameError
from qafel.quantizers import scaled
from qafel.quantizers.base import Quantizer, register
from qafel.quantizers.eden import BLOCK, HEAD
from qafel.quantizers.spec import Arguments
from qafel.streams import derive, keys
from qafel.vectors import Vector

ROUNDING, PLACE = 1 / 3, 0.4
"""Where a cell begins below its number, and where in it its point lies."""
STEPS, BITS = np.array(
    [
        (0.25, 3.9959),
        (0.35, 3.4924),
        (0.5, 2.9536),
        (0.7, 2.4413),
        (1.0, 1.8984),
        (1.4, 1.3960),
        (2.0, 0.8757),
        (2.5, 0.5508),
        (3.0, 0.3125),
        (3.5, 0.1590),
        (4.0, 0.0725),
        (4.5, 0.0296),
    ]
).T
"""Steps in units of the rms, and the bits a normal number takes there."""
MOST = int(BLOCK**0.5 / STEPS[0]) + 2


@register
@dataclass(frozen=True)
class Rotated(Quantizer):
    """Rotation, dead zone, range coder, and the factor that makes it unbiased."""

    name = "rotated"
    example = "rotated:bits=0.5"

    bits: Decimal

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``rotated:bits=B``."""
        arguments.expect(None, ("bits",))
        if "bits" not in arguments.places:
            arguments.fail_with("needs bits", cls.example)
        return cls(arguments.decimal("bits", Decimal("0.1"), Decimal(4)))

    @property
    def spec(self) -> str:
        """``rotated:bits=B``."""
        return f"rotated:bits={self.bits:f}"

    @property
    def unbiased(self) -> bool:
        """Over rotations."""
        return True

    def omega(self, size: int) -> float:
        """What no rotation exceeds, 1/cos² − 1 of the angle between y and its points: at least one coordinate
        is beyond the dead zone.
        """
        return BLOCK / float(STEPS[0] * (1 - ROUNDING)) ** 2 - 1 if size else 0.0

    def max_bytes(self, size: int) -> int:
        """No coding is longer than fixed width."""
        blocks = -(-size // BLOCK)
        return HEAD + 2 * blocks + max_integer_bytes(blocks * BLOCK, MOST) if size else 0

    def encode(self, x: Vector, seed: int) -> bytes:
        """Seed, factors, integers."""
        from qafel.quantizers import eden_kernels as kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        found = scaled.normalise(x)
        drawn = derive(seed, "rotation") & 0xFFFFFFFF
        blocks = -(-x.size // BLOCK)
        y = vectors.zeros(blocks * BLOCK)
        y[: x.size] = found.x
        kernels.rotate(y, *keys(drawn))
        powers, factors = np.empty(blocks), np.empty(blocks, np.float32)
        q = np.empty(y.size, np.int16)
        kernels.powers(y, powers)
        kernels.dead_codes(y, powers, self._steps(powers), ROUNDING, PLACE, factors, q)
        halves = ((factors.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
        head = np.uint32(drawn).tobytes() + np.int16(found.exponent).tobytes()
        return head + halves.tobytes() + encode_integers(q, "range")

    def _steps(self, powers: npt.NDArray[np.float64]) -> Any:
        """A step for every block: bits in proportion to its rms."""
        rms = np.sqrt(powers)
        total = rms.sum()
        bits = float(self.bits) * rms * (len(rms) / total) if total else np.full(len(rms), float(self.bits))
        return np.interp(bits, BITS[::-1], STEPS[::-1])

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        self._check(data, size)
        out = vectors.zeros(size)
        self.decode_add(data, out)
        return out

    def _check(self, data: bytes, size: int) -> None:
        """FrameError where so many bytes cannot be so many coordinates."""
        if not size and not data:
            return
        blocks = -(-size // BLOCK)
        if not (size and HEAD + 2 * blocks < len(data) <= self.max_bytes(size)):
            raise FrameError(f"{self.spec} cannot have {len(data)} bytes for {size} coordinates")
        check_integers(memoryview(data)[HEAD + 2 * blocks :], blocks * BLOCK, MOST)

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Points times factors, rotated back."""
        from qafel.quantizers import eden_kernels as kernels

        vectors.check_target(out)
        self._check(data, out.size)
        if not out.size:
            return
        blocks = -(-out.size // BLOCK)
        drawn, exponent = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:6], "little", signed=True)
        halves = np.frombuffer(data[HEAD : HEAD + 2 * blocks], np.uint16)
        factors = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if abs(exponent) > 160 or not ((factors >= 0) & (factors <= 2.0**60)).all():
            raise FrameError(f"{self.spec}: an impossible factor")
        q = decode_integers(memoryview(data)[HEAD + 2 * blocks :], blocks * BLOCK, MOST)
        y = vectors.zeros(q.size)
        kernels.dead_points(q, ROUNDING, PLACE, factors, y)
        kernels.rotate_back(y, *keys(drawn))
        value = y[: out.size]
        out += np.float32(weight) * (scaled.rescale(value, exponent) if exponent else value)
