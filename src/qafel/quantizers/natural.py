"""``natural``: one of the two neighbouring powers of two, drawn with mean x (Horváth et al. 2022). Unbiased.

Payload: the exponent of the largest power of two and the exponent that normalised x (int16 each), then an
integer for every coordinate: 0, or ±k for the power of two k − 1 octaves below the largest.
"""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.integers import encode_integers
from qafel.errors import FrameError
from qafel.quantizers import _scaled
from qafel.quantizers._base import NoArguments, register_quantizer
from qafel.quantizers._coded import Coded
from qafel.streams import keys
from qafel.vectors import Vector

MAX_OCTAVES = 120
"""Coordinates that are smaller than the largest by more octaves become zero."""
MAX_TOP = 170


@register_quantizer
@dataclass(frozen=True)
class Natural(NoArguments, Coded):
    """One of the two neighbouring powers of two."""

    name = "natural"
    example = "natural"
    unbiased = True

    def omega(self, size: int) -> float:
        """Return 1/8, the maximum of (2 − m)·(m − 1)/m², attained at the mantissa m = 4/3."""
        return 0.125 if size else 0.0

    def head_bytes(self, size: int) -> int:
        """Return the bytes of two exponents."""
        del size
        return 4

    def integers(self, size: int) -> tuple[int, int]:
        """Return one integer for every coordinate."""
        return size, MAX_OCTAVES

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the exponents, then the integers."""
        from qafel.quantizers import natural_kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        normalised = _scaled.normalise(x)
        q = np.zeros(x.size, np.int16)
        top = int(np.float32(normalised.largest).view(np.uint32) >> 23) + 1
        bits = vectors.read_only(normalised.x).view(np.uint32)
        natural_kernels.natural_codes(bits, top, MAX_OCTAVES, *keys(seed), q)
        return np.array([top, normalised.exponent], np.int16).tobytes() + encode_integers(q)

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add the power of two of every integer."""
        from qafel.quantizers import _scaled_kernels

        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        top, exponent = (int(n) for n in np.frombuffer(data, np.int16, 2))
        if not 1 <= top <= MAX_TOP or abs(exponent) > _scaled.MAX_EXPONENT:
            raise FrameError(f"{self.spec}: impossible exponents {top} and {exponent}")
        q = self.read_integers(data, out.size)
        levels = np.ldexp(1.0, top - 127 + 1 - np.arange(MAX_OCTAVES + 1))
        levels[0] = 0.0
        values = np.clip(np.ldexp(levels, -exponent), 0, _scaled.LARGEST).astype(np.float32)
        _scaled_kernels.levels_add(q, values, np.float32(weight), out)
