"""``natural``: powers of two."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.integers import encode_integers
from qafel.errors import FrameError
from qafel.lazy import Lazy
from qafel.quantizers import _scaled
from qafel.quantizers._base import NoArguments, register_quantizer
from qafel.quantizers._coded import Coded
from qafel.streams import keys
from qafel.vectors import Vector

MAX_OCTAVES = 120
"""Coordinates that are smaller than the largest by more octaves become zero."""
MAX_TOP = 170

kernels = Lazy("qafel.quantizers.natural_kernels")


@register_quantizer
@dataclass(frozen=True)
class Natural(NoArguments, Coded):
    """One of the two neighbouring powers of two, drawn with mean x (Horváth et al. 2022). Unbiased.

    Payload: the exponent of the largest power of two and the exponent that normalised x (int16 each), then an
    integer for every coordinate: 0, or ±k for the power of two k − 1 octaves below the largest.
    """

    name = example = "natural"
    unbiased = True
    head_bytes, largest = 4, MAX_OCTAVES

    def omega(self, size: int) -> float:
        """Return 1/8, the maximum of (2 − m)·(m − 1)/m², attained at the mantissa m = 4/3."""
        return 0.125 if size else 0.0

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the exponents, then the integers."""
        normalised, q = _scaled.normalise(x), np.zeros(x.size, np.int16)
        top = int(np.float32(normalised.largest).view(np.uint32) >> 23) + 1
        bits = vectors.read_only(normalised.x).view(np.uint32)
        kernels.natural_codes(bits, top, MAX_OCTAVES, *keys(seed), q)
        return np.array([top, normalised.exponent], np.int16).tobytes() + encode_integers(q)

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the power of two of every integer."""
        top, exponent = (int(n) for n in np.frombuffer(data, np.int16, 2))
        if not 1 <= top <= MAX_TOP or abs(exponent) > _scaled.MAX_EXPONENT:
            raise FrameError(f"{self.spec}: impossible exponents {top} and {exponent}")
        q = self.read_integers(data, out.size)
        levels = np.ldexp(1.0, top - 127 + 1 - np.arange(MAX_OCTAVES + 1))
        levels[0] = 0.0
        values = np.clip(np.ldexp(levels, -exponent), 0, _scaled.LARGEST).astype(np.float32)
        kernels.levels_add(q, values, weight, out)
