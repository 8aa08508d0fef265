"""``identity``: full precision, as FedBuff sends it. Payload: little-endian float32 numbers."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.quantizers._base import Additive, NoArguments, finite_payload, finite_vector, register_quantizer
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class Identity(NoArguments, Additive):
    """Q(x) = x."""

    name = "identity"
    example = "identity"
    lossless = True
    unbiased = True

    def omega(self, size: int) -> float:
        """Return 0: nothing is lost."""
        del size
        return 0.0

    def max_bytes(self, size: int) -> int:
        """Return four bytes a coordinate."""
        return 4 * size

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the bytes of the vector."""
        del seed
        return finite_vector(x).tobytes()

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the vector with every bit, that of a negative zero included."""
        return vectors.copy(self._read(data, size))

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add the payload without a copy."""
        vectors.check_target(out)
        x = self._read(data, out.size)
        out += x if weight == 1.0 else np.float32(weight) * x

    def _read(self, data: bytes, size: int) -> Vector:
        self.check(data, size)
        return finite_payload(np.frombuffer(data, np.float32))
