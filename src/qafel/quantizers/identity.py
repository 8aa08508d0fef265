"""``identity``: full precision."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.quantizers._base import Additive, NoArguments, check_finite, finite_payload, register_quantizer
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class Identity(NoArguments, Additive):
    """Q(x) = x: full precision, as FedBuff sends it. Payload: little-endian float32 numbers."""

    name = example = "identity"
    lossless = unbiased = True

    def omega(self, size: int) -> float:
        """Return 0: nothing is lost."""
        del size
        return 0.0

    def max_bytes(self, size: int) -> int:
        """Return four bytes a coordinate."""
        return 4 * size

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the bytes of the vector."""
        del seed
        check_finite(x)
        return x.tobytes()

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the vector with every bit, that of a negative zero included."""
        self.check(data, size)
        return vectors.copy(finite_payload(np.frombuffer(data, np.float32)))

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the payload without a copy."""
        x = finite_payload(np.frombuffer(data, np.float32))
        out += x if weight == 1 else weight * x
