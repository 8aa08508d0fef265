"""``sign``: the sign of every coordinate times the mean magnitude. Biased, for servers.

Payload: the mean magnitude (float32), then a bit for every coordinate, 1 for a negative one.
"""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.errors import FrameError
from qafel.quantizers._base import Additive, NoArguments, finite_vector, register_quantizer
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class Sign(NoArguments, Additive):
    """The sign of every coordinate times the mean magnitude."""

    name = "sign"
    example = "sign"
    unbiased = False

    def omega(self, size: int) -> float:
        """Return 1 − 1/d: ω = 1 − ‖x‖₁²/(d·‖x‖²), and ‖x‖₁ = ‖x‖ if one coordinate is not zero."""
        return 1 - 1 / size if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return 4 + -(-size // 8) if size else 0

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the mean, then the bits."""
        del seed
        x = finite_vector(x)
        if not x.size:
            return b""
        mean = np.float32(np.abs(x).mean(dtype=np.float64))
        return mean.tobytes() + np.packbits(x < 0, bitorder="little").tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add plus or minus the mean."""
        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        mean = np.frombuffer(data, np.float32, 1)[0]
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), bitorder="little")
        if not 0 <= mean < np.inf or bits[out.size :].any():
            raise FrameError(f"sign: impossible mean {mean:g} or stray bits")
        out += np.float32(weight) * np.where(bits[: out.size], -mean, mean)
