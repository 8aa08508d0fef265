"""``rotated``: a random rotation, a dead zone, an entropy coder: unbiased, for clients, below one bit.

A rotation (``rotation``) makes every block of coordinates look normal; rounding towards zero, q =
sign(y)·⌊|y|/s + ⅓⌋, keeps the few that stand out, and the range coder makes little of the rest. The factor
‖y‖²/⟨y, c⟩ of a block makes the result unbiased over rotations, as in EDEN. At half a bit this leaves six
tenths of the error of ``dither``, whose noise at large steps is that of keeping a coordinate by chance; from
one bit on ``dither`` is better.

Blocks with more to say get more bits: in proportion to their rms, which is what minimises Σ power/bits.

Payload: the head of the rotation, the factors (the upper halves of float32), then the integers.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.coding.integers import encode_integers
from qafel.quantizers import rotation
from qafel.quantizers.base import register
from qafel.quantizers.coded import Coded
from qafel.quantizers.rotation import BLOCK, HEAD
from qafel.quantizers.spec import Arguments
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
class Rotated(Coded):
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

    def head_bytes(self, size: int) -> int:
        """Rotation, factors."""
        return HEAD + 2 * rotation.blocks(size)

    def integers(self, size: int) -> tuple[int, int]:
        """One for every coordinate of whole blocks."""
        return rotation.blocks(size) * BLOCK, MOST

    def encode(self, x: Vector, seed: int) -> bytes:
        """Seed, factors, integers."""
        from qafel.quantizers import eden_kernels as kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        y, head = rotation.forward(x, seed)
        powers, factors = np.empty(y.size // BLOCK), np.empty(y.size // BLOCK, np.float32)
        q = np.empty(y.size, np.int16)
        kernels.powers(y, powers)
        kernels.dead_codes(y, powers, self._steps(powers), ROUNDING, PLACE, factors, q)
        halves = ((factors.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
        return head + halves.tobytes() + encode_integers(q, "range")

    def _steps(self, powers: npt.NDArray[np.float64]) -> Any:
        """A step for every block: bits in proportion to its rms."""
        rms = np.sqrt(powers)
        total = rms.sum()
        bits = float(self.bits) * rms * (len(rms) / total) if total else np.full(len(rms), float(self.bits))
        return np.interp(bits, BITS[::-1], STEPS[::-1])

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Points times factors, rotated back."""
        from qafel.quantizers import eden_kernels as kernels

        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        halves = np.frombuffer(data[HEAD : self.head_bytes(out.size)], np.uint16)
        factors = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
        rotation.check(data, factors, self.spec)
        q = self.read_integers(data, out.size)
        y = vectors.zeros(q.size)
        kernels.dead_points(q, ROUNDING, PLACE, factors, y)
        rotation.add_back(y, data, weight, out)
