"""Helpers of quantizers with a step: goals, normalised vectors, the search for a step.

A step is given in units of the rms of the vector (``step=6``), or by what it should result in: ``bits`` per
coordinate, or ``nmse``, the squared error divided by the squared norm. For these the encoder searches a step,
on a grid of 512 to the octave, from the vector alone.
"""

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP
from qafel.coding.integers import MAX_MAGNITUDE
from qafel.coding.threads import over_ranges
from qafel.errors import FrameError
from qafel.quantizers._spec import Arguments
from qafel.vectors import Vector

FINEST = 1.0 / 16000
"""Smallest step as a part of the largest magnitude: integers stay below 2¹⁴."""
OCTAVE, LOWEST, HIGHEST = 512, -5120, 3072
"""The grid of steps in units of the rms: 2⁻¹⁰ to 2⁶."""
SAMPLE = 1 << 16
"""Coordinates that the search for a step looks at."""
NORMAL = 40
"""The largest magnitude of a normalised vector is between 2⁻⁴⁰ and 2⁴⁰."""
MAX_EXPONENT = 160
LARGEST = float(np.finfo(np.float32).max)
HEAD = 6


class Goal(NamedTuple):
    """A step, or what the step should result in."""

    kind: str
    value: Decimal

    def __str__(self) -> str:
        return f"{self.kind}={self.value:f}"


def goal(arguments: Arguments, example: str, limits: dict[str, tuple[str, str]]) -> Goal:
    """Return the one goal among the arguments, or raise SpecError."""
    given = [kind for kind in limits if kind in arguments.places]
    if len(given) != 1:
        problem = f"needs one of {', '.join(limits)}" + (", not several" if given else "")
        arguments.fail_with(problem, example)
    kind = given[0]
    low, high = limits[kind]
    return Goal(kind, arguments.decimal(kind, Decimal(low), Decimal(high)))


class Normalised(NamedTuple):
    """A vector times 2^exponent, its rms and its largest magnitude."""

    x: Vector
    exponent: int
    rms: float
    largest: float


def normalise(x: Vector) -> Normalised:
    """Scale the largest magnitude to 2⁻⁴⁰ … 2⁴⁰; raise VectorError if a coordinate is not finite."""
    from qafel.quantizers import _scaled_kernels as kernels

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


def search(cost: Callable[[float], float], max_cost: float, *, falls: bool) -> float:
    """Return the step of the grid whose cost is closest to ``max_cost`` from below: the smallest such step if
    the cost falls with the step, the largest if it rises.
    """
    low, high = LOWEST, HIGHEST
    while low < high:
        middle = (low + high + (not falls)) // 2
        fits = cost(2.0 ** (middle / OCTAVE)) <= max_cost
        if falls:
            low, high = (low, middle) if fits else (middle + 1, high)
        else:
            low, high = (middle, high) if fits else (low, middle - 1)
    return float(2.0 ** (low / OCTAVE))


def sample(x: Vector) -> Vector:
    """Return about 65,536 coordinates in evenly spaced runs of 512, or ``x`` if it is not much longer."""
    if x.size <= 2 * SAMPLE:
        return x
    rows = x[: x.size // 512 * 512].reshape(-1, 512)
    return np.ascontiguousarray(rows[:: len(rows) // (SAMPLE // 512)]).ravel()


def entropy(counts: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Return the bits per integer, sign included, if ``counts[k]`` integers have magnitude k."""
    total = float(counts.sum())
    share = counts[counts > 0] / total
    return float(-(share * np.log2(share)).sum()) + 1.0 - float(counts[0]) / total


def head(step: np.float32, exponent: int) -> bytes:
    """Return the bytes of step and exponent."""
    return step.tobytes() + np.int16(exponent).tobytes()


def read_head(data: bytes, spec: object) -> tuple[np.float32, int]:
    """Return step and exponent, or raise FrameError."""
    step, exponent = struct.unpack_from("<fh", data)
    if not 0 <= step <= 2.0 ** (NORMAL + 10) or abs(exponent) > MAX_EXPONENT:
        raise FrameError(f"{spec}: impossible step {step:g} or exponent {exponent}")
    return np.float32(step), exponent


def rescale(value: Vector, exponent: int) -> Vector:
    """Undo the scaling of ``normalise``; clip to float32."""
    with np.errstate(all="ignore"):
        return clip(np.ldexp(value, -exponent))


def clip(value: Vector) -> Vector:
    """Return ``value`` clipped to the finite float32 numbers."""
    return np.clip(value, -LARGEST, LARGEST).astype(np.float32, copy=False)


@lru_cache(maxsize=256)
def max_steps(size: int, goal: Goal) -> int:
    """Return the largest integer that a coordinate can become, given |x| ≤ √size·rms."""
    finest = math.ceil(1 / FINEST) + 1
    if goal.kind != "step":
        return min(finest, MAX_MAGNITUDE)
    return min(finest, int(math.sqrt(size) / float(goal.value) * (1 + 1e-4)) + 2)
