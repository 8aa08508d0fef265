"""``identity``: full precision, what FedBuff sends."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import vectors
from qafel.errors import FrameError
from qafel.quantizers.base import Dense, register
from qafel.quantizers.spec import Arguments
from qafel.vectors import Vector


@register
@dataclass(frozen=True)
class Identity(Dense):
    """Q(x) = x, as little-endian float32."""

    name = "identity"
    example = "identity"
    lossless = True

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``identity`` takes none."""
        arguments.expect(None, ())
        return cls()

    @property
    def spec(self) -> str:
        """``identity``."""
        return self.name

    @property
    def unbiased(self) -> bool:
        """Nothing is lost."""
        return True

    def omega(self, size: int) -> float:
        """Nothing is lost."""
        del size
        return 0.0

    def max_bytes(self, size: int) -> int:
        """Four bytes a coordinate."""
        return 4 * size

    def encode(self, x: Vector, seed: int) -> bytes:
        """The vector's own bytes."""
        del seed
        x = vectors.as_vector(x)
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        return x.tobytes()

    def decode(self, data: bytes, size: int) -> Vector:
        """The vector again, to the last bit of a negative zero."""
        return vectors.copy(self._read(data, size))

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Adds the payload where it lies."""
        vectors.check_target(out)
        x = self._read(data, out.size)
        out += x if weight == 1.0 else np.float32(weight) * x

    def _read(self, data: bytes, size: int) -> Vector:
        self.check_length(data, size)
        x = np.frombuffer(data, np.float32)
        if not vectors.is_finite(x):
            raise FrameError("the payload has a NaN or an infinity")
        return x
