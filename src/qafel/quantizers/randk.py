"""``randk``: random coordinates."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qafel import vectors
from qafel.coding.rice import Indices
from qafel.errors import VectorError
from qafel.lazy import Lazy
from qafel.quantizers._base import check_finite, register_quantizer
from qafel.quantizers._sparse import Sparse
from qafel.streams import MASK, keys
from qafel.vectors import Vector

SEED_BYTES = 8

kernels = Lazy("qafel.streams.kernels")


@register_quantizer
@dataclass(frozen=True)
class RandK(Sparse):
    """k random coordinates; biased, or times d/k if ``scaled``, which is unbiased with ω = d/k − 1.

    Payload: the seed of the positions (uint64), then the values (float32).
    """

    name = "randk"
    example = "randk:0.1,scaled"
    flags: ClassVar = ("scaled",)

    scaled: bool = False

    @property
    def spec(self) -> str:
        """The name, the fraction or count, then ``scaled``."""
        return super().spec + (",scaled" if self.scaled else "")

    @property
    def unbiased(self) -> bool:
        """Whether it is scaled: unscaled, E[Q(x)] = x·k/d."""
        return self.scaled

    def omega(self, size: int) -> float:
        """Return d/k − 1 if scaled, else 1 − k/d. Every vector attains it."""
        if self.scaled:
            return size / self.kept(size) - 1.0 if size else 0.0
        return super().omega(size)

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return SEED_BYTES + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the seed of the positions, then the values."""
        x = vectors.as_vector(x)
        check_finite(x)
        head = (int(seed) & MASK).to_bytes(SEED_BYTES, "little")
        values = x[self.positions(head, x.size)]
        if self.scaled and values.size:
            with np.errstate(over="ignore"):
                values = values * np.float32(x.size / values.size)
            if not vectors.is_finite(values):
                raise VectorError(
                    f"{self.spec} multiplies by {x.size / values.size:g}, which is beyond float32 for this "
                    "vector; use a larger k or smaller numbers"
                )
        return head + values.tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """Draw the positions from the seed."""
        if len(data) != SEED_BYTES:
            raise self.wrong_length(len(data) + 4 * self.kept(size), size)
        indices = np.empty(self.kept(size), np.int64)
        kernels.subset(indices, size, *keys(int.from_bytes(data, "little")))
        return indices
