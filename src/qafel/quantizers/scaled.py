"""What the quantizers with a step share: steps a person can think in, normalised vectors, coded integers.

A step is given in units of the rms of the vector (``step=6``), or as what it should lead to: ``bits`` per
coordinate, or ``nmse``, the squared error as a share of the squared norm. For those the encoder finds the
step, on a grid of 512 to the octave, from the vector alone.
"""

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qafel import vectors
from qafel.coding.integers import MOST
from qafel.coding.planes import GROUP
from qafel.coding.work import over_ranges
from qafel.errors import FrameError
from qafel.quantizers.spec import Arguments
from qafel.vectors import Vector

FINEST = 1.0 / 16000
"""Steps are at least this part of the largest magnitude: numbers stay below 2¹⁴."""
OCTAVE, LOWEST, HIGHEST = 512, -5120, 3072
"""The grid of steps in units of the rms: 2⁻¹⁰ to 2⁶."""
SAMPLE = 1 << 16
"""Coordinates that are looked at to choose a step."""
NORMAL = 40
LARGEST = float(np.finfo(np.float32).max)
HEAD = 6


class Goal(NamedTuple):
    """What the step should be, or lead to."""

    kind: str
    value: Decimal

    def __str__(self) -> str:
        return f"{self.kind}={self.value:f}"


def goal(arguments: Arguments, example: str, limits: dict[str, tuple[str, str]]) -> Goal:
    """The one goal among the arguments."""
    given = [kind for kind in limits if kind in arguments.places]
    if len(given) != 1:
        problem = f"needs one of {', '.join(limits)}" + (", not several" if given else "")
        arguments.fail_with(problem, example)
    kind = given[0]
    low, high = limits[kind]
    return Goal(kind, arguments.decimal(kind, Decimal(low), Decimal(high)))


class Normalised(NamedTuple):
    """A vector times 2^exponent, with what is known of it."""

    x: Vector
    exponent: int
    rms: float
    largest: float


def normalise(x: Vector) -> Normalised:
    """Bring the largest magnitude between 2⁻⁴⁰ and 2⁴⁰; VectorError where a coordinate is not finite."""
    from qafel.quantizers import dither_kernels as kernels

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
    scaled = normalise(np.ldexp(x, exponent))
    return scaled._replace(exponent=exponent)


def search(cost: Callable[[float], float], most: float, *, falls: bool) -> float:
    """The step on the grid at which ``cost`` comes closest to ``most`` from below: the smallest such step
    where the cost falls with the step, the largest where it rises.
    """
    low, high = LOWEST, HIGHEST
    while low < high:
        middle = (low + high + (not falls)) // 2
        fits = cost(2.0 ** (middle / OCTAVE)) <= most
        if falls:
            low, high = (low, middle) if fits else (middle + 1, high)
        else:
            low, high = (middle, high) if fits else (low, middle - 1)
    return float(2.0 ** (low / OCTAVE))


def sample(x: Vector) -> Vector:
    """At most about 65,536 coordinates, in runs of 512 from all over the vector."""
    if x.size <= 2 * SAMPLE:
        return x
    rows = x[: x.size // 512 * 512].reshape(-1, 512)
    return np.ascontiguousarray(rows[:: len(rows) // (SAMPLE // 512)]).ravel()


def entropy(counts: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Bits a number takes whose magnitudes occur so often, its sign included."""
    total = float(counts.sum())
    share = counts[counts > 0] / total
    return float(-(share * np.log2(share)).sum()) + 1.0 - float(counts[0]) / total


def head(step: np.float32, exponent: int) -> bytes:
    """The step and the exponent."""
    return step.tobytes() + np.int16(exponent).tobytes()


def read_head(data: bytes, whose: object) -> tuple[np.float32, int]:
    """(step, exponent), or FrameError."""
    step, exponent = struct.unpack_from("<fh", data)
    if not 0 <= step <= 2.0 ** (NORMAL + 7) or abs(exponent) > 160:
        raise FrameError(f"{whose}: an impossible step")
    return np.float32(step), exponent


def rescale(value: Vector, exponent: int) -> Vector:
    """The vector that was normalised, kept within float32."""
    with np.errstate(all="ignore"):
        return within(np.ldexp(value, -exponent))


def within(value: Vector) -> Vector:
    """What left float32, back at its largest number."""
    return np.clip(value, -LARGEST, LARGEST).astype(np.float32)


@lru_cache(maxsize=256)
def most_steps(size: int, goal: Goal) -> int:
    """The largest number a coordinate can become: |x| ≤ √size·rms."""
    finest = math.ceil(1 / FINEST) + 1
    if goal.kind != "step":
        return min(finest, MOST)
    return min(finest, int(math.sqrt(size) / float(goal.value) * (1 + 1e-4)) + 2)
