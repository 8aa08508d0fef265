"""``sign``: a bit for every coordinate."""

from dataclasses import dataclass

import numpy as np

from qafel.errors import FrameError
from qafel.quantizers._base import Additive, NoArguments, check_finite, register_quantizer
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class Sign(NoArguments, Additive):
    """The sign of every coordinate times the mean magnitude. Biased, for servers.

    Payload: the mean magnitude (float32), then a bit for every coordinate, 1 for a negative one.
    """

    name = example = "sign"
    unbiased = False

    def omega(self, size: int) -> float:
        """Return 1 − 1/d: ω = 1 − ‖x‖₁²/(d·‖x‖²), and ‖x‖₁ = ‖x‖ if one coordinate is not zero."""
        return 1 - 1 / size if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return 4 + -(-size // 8) if size else 0

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the mean, then the bits."""
        del seed
        check_finite(x)
        mean = np.float32(np.abs(x).mean(dtype=np.float64))
        return mean.tobytes() + np.packbits(x < 0, bitorder="little").tobytes()

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add plus or minus the mean."""
        mean = np.frombuffer(data, np.float32, 1)[0]
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), bitorder="little")
        if not 0 <= mean < np.inf or bits[out.size :].any():
            raise FrameError(f"sign: impossible mean {mean:g} or stray bits")
        out += weight * np.where(bits[: out.size], -mean, mean)
