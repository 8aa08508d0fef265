"""Vectors scaled by a power of two, so that intermediate results of kernels are normal float32 numbers."""

import math
from typing import NamedTuple

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP
from qafel.coding.threads import over_ranges
from qafel.lazy import Lazy
from qafel.vectors import Vector

NORMAL = 40
"""The largest magnitude of a normalised vector is between 2⁻⁴⁰ and 2⁴⁰."""
MAX_EXPONENT = 160
LARGEST = float(np.finfo(np.float32).max)

kernels = Lazy("qafel.quantizers._scaled_kernels")


class Normalised(NamedTuple):
    """A vector times 2^exponent, its rms and its largest magnitude."""

    x: Vector
    exponent: int
    rms: float
    largest: float


def normalise(x: Vector) -> Normalised:
    """Scale the largest magnitude to 2⁻⁴⁰ … 2⁴⁰; raise VectorError if a coordinate is not finite."""
    flat, stretch = vectors.read_only(x), kernels.STRETCH * GROUP
    totals = np.zeros(-(-x.size // stretch))
    largest = float(over_ranges(lambda a, b: kernels.moments(flat, a, b, totals), x.size, stretch))
    total = sum(totals.tolist())
    if not math.isfinite(total):
        largest = float(np.abs(x).max())
        if not math.isfinite(largest):
            raise vectors.not_finite(x)
    if largest == 0 or 2.0**-NORMAL <= largest <= 2.0**NORMAL:
        return Normalised(x, 0, math.sqrt(total / max(x.size, 1)), largest)
    exponent = -math.frexp(largest)[1]
    return normalise(np.ldexp(x, exponent))._replace(exponent=exponent)


def rescale(value: Vector, exponent: int) -> Vector:
    """Undo the scaling of ``normalise``; clip to float32."""
    with np.errstate(all="ignore"):
        return clip(np.ldexp(value, -exponent))


def clip(value: Vector) -> Vector:
    """Return ``value`` clipped to the finite float32 numbers."""
    return np.clip(value, -LARGEST, LARGEST).astype(np.float32, copy=False)
