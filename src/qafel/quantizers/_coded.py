"""Quantizers whose payload ends with integers in a coding of ``qafel.coding.integers``.

``Coded`` is the base of all of them. ``Stepped`` is the base of those whose integers count steps; with a
layout, they transform the 3 × 3 kernels of convolutions first (``_spatial``), and the coder predicts signs
within a layer.

A step is given in units of the rms of the vector (``step=6``), or by what it should result in: ``bits`` per
coordinate, or ``nmse``, the squared error divided by the squared norm. For these the encoder searches a step,
on a grid of 512 to the octave, from the vector alone.
"""

import math
import struct
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import (
    MAX_MAGNITUDE,
    Integers,
    Rows,
    check_integers,
    decode_integers,
    encode_integers,
    max_integer_bytes,
)
from qafel.errors import FrameError
from qafel.quantizers import _spatial
from qafel.quantizers._base import Additive
from qafel.quantizers._scaled import MAX_EXPONENT, NORMAL, Normalised, normalise, rescale
from qafel.quantizers._spec import Arguments
from qafel.vectors import Layout, Vector

FINEST = 1.0 / 16000
"""Smallest step as a part of the largest magnitude: integers stay below 2¹⁴."""
OCTAVE, LOWEST, HIGHEST = 512, -5120, 3072
"""The grid of steps in units of the rms: 2⁻¹⁰ to 2⁶."""
SAMPLE = 1 << 16
"""Coordinates that the search for a step looks at."""


class Coded(Additive):
    """A payload is a head of fixed length, then a coded integer for every coordinate."""

    head_bytes: ClassVar[int]
    largest: ClassVar[int]

    def max_integer(self, size: int) -> int:
        """Return the largest magnitude that an integer can have."""
        del size
        return self.largest

    @property
    def rows(self) -> Rows | None:
        """The matrices that the integers are, None if that is unknown."""
        return None

    def max_magnitude(self, data: bytes, limit: int) -> int:
        """Return the largest magnitude, at most ``limit``, that integers after this head can have.

        Raises FrameError if the head is invalid.
        """
        del data
        return limit

    def max_bytes(self, size: int) -> int:
        """Return the length with integers of fixed width; no coding is longer."""
        return self.head_bytes + max_integer_bytes(size, self.max_integer(size)) if size else 0

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the length or the head of the payload is impossible."""
        if not size and not data:
            return
        if not (size and self.head_bytes < len(data) <= self.max_bytes(size)):
            raise self.wrong_length(len(data), size)
        limit = self.max_magnitude(data, self.max_integer(size))
        check_integers(memoryview(data)[self.head_bytes :], size, limit)

    def read_integers(self, data: bytes, size: int) -> Integers:
        """Return the integers of a payload that ``check`` accepted, or raise FrameError."""
        limit = self.max_magnitude(data, self.max_integer(size))
        return decode_integers(memoryview(data)[self.head_bytes :], size, limit, self.rows)


class Goal(NamedTuple):
    """A step, or what the step should result in."""

    kind: str
    value: Decimal

    def __str__(self) -> str:
        return f"{self.kind}={self.value:f}"


@dataclass(frozen=True)
class Stepped(Coded):
    """Integers count steps; the goal determines the length of a step.

    The head begins with the step (float32) and the power of two that normalised x (int16, mostly 0).
    """

    limits: ClassVar[dict[str, tuple[str, str]]]
    """Smallest and largest value of every goal."""

    goal: Goal
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``step=S``, ``bits=B`` or ``nmse=E``."""
        arguments.expect(None, tuple(cls.limits))
        given = list(arguments.places)
        if len(given) != 1:
            problem = f"needs one of {', '.join(cls.limits)}" + (", not several" if given else "")
            arguments.fail_with(problem, cls.example)
        low, high = map(Decimal, cls.limits[given[0]])
        return cls(Goal(given[0], arguments.decimal(given[0], low, high)))

    @property
    def spec(self) -> str:
        """The goal."""
        return f"{self.name}:{self.goal}"

    def bind(self, layout: Layout) -> Self:
        """Return this quantizer for the tensors of ``layout``."""
        return replace(self, layout=layout)

    @property
    def rows(self) -> Rows | None:
        """The tensors of the layout."""
        return None if self.layout is None else _spatial.rows(self.layout)

    def max_integer(self, size: int) -> int:
        """Return the largest number of steps that a coordinate can have."""
        return max_steps(size, self.goal)

    def check(self, data: bytes, size: int) -> None:
        """Raise VectorError if the layout has another size, FrameError if the payload is impossible."""
        self.check_size(size)
        super().check(data, size)

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the head, then the integers."""
        return self._encode(x, seed)[0]

    def encode_add(self, x: Vector, seed: int, out: Vector) -> bytes:
        """Return the payload, and add what it stands for without reading it again."""
        vectors.check_target(out)
        x = vectors.as_vector(x)
        self.check_size(x.size)
        if not x.size:
            return b""
        payload, q = self._encode(x, seed)
        self._add_integers(payload, q, np.float32(1), out)
        return payload

    def _encode(self, x: Vector, seed: int) -> tuple[bytes, Integers]:
        normalised = normalise(x)
        if self.layout is not None and _spatial.places(self.layout):
            moved = normalise(_spatial.forward(normalised.x, self.layout))
            normalised = moved._replace(exponent=moved.exponent + normalised.exponent)
        head, q = self.quantize(normalised, self._step(normalised), seed)
        return head + encode_integers(q, self.rows), q

    def _step(self, normalised: Normalised) -> np.float32:
        """Return the step that meets the goal; 0 for a vector of zeros."""
        if normalised.largest == 0:
            return np.float32(0)
        value, rms = float(self.goal.value), normalised.rms
        if self.goal.kind == "step":
            return self.limited(value * rms, normalised)
        some = vectors.read_only(sample(normalised.x))
        cost = self.search_cost(some, normalised)
        s = search(lambda s: cost(s * rms), value, falls=self.goal.kind == "bits")
        return self.limited(s * rms, normalised)

    @abstractmethod
    def limited(self, step: float, normalised: Normalised) -> np.float32:
        """Return the allowed step that is nearest to ``step``."""

    @abstractmethod
    def search_cost(self, some: Vector, normalised: Normalised) -> Callable[[float], float]:
        """Return the function that estimates, from some coordinates, the bits or the nmse of a step."""

    @abstractmethod
    def quantize(self, normalised: Normalised, step: np.float32, seed: int) -> tuple[bytes, Integers]:
        """Return head and integers of a finite vector that is not empty; step 0: all are zero."""

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the value of each integer, transformed back with a layout."""
        self._add_integers(data, self.read_integers(data, out.size), weight, out)

    def _add_integers(self, data: bytes, q: Integers, weight: np.float32, out: Vector) -> None:
        number, exponent = struct.unpack_from("<fh", data)
        if not 0 <= number <= 2.0 ** (NORMAL + 10) or abs(exponent) > MAX_EXPONENT:
            raise FrameError(f"{self.spec}: impossible step {number:g} or exponent {exponent}")
        step = np.float32(number)
        if not step:
            if q.any():
                raise FrameError(f"{self.spec}: the step is 0, but not all integers are")
        elif exponent:
            values = vectors.zeros(out.size)
            self._add_normal(data, q, step, np.float32(1), values)
            out += weight * rescale(values, exponent)
        else:
            self._add_normal(data, q, step, weight, out)

    def _add_normal(
        self, data: bytes, q: Integers, step: np.float32, weight: np.float32, out: Vector
    ) -> None:
        if self.layout is None or not _spatial.places(self.layout):
            self.add_steps(data, q, step, weight, out)
            return
        values = vectors.zeros(out.size)
        self.add_steps(data, q, step, np.float32(1), values)
        _spatial.add_back(values, self.layout, weight, out)

    @abstractmethod
    def add_steps(self, data: bytes, q: Integers, step: np.float32, weight: np.float32, out: Vector) -> None:
        """Do ``out += weight ·`` what the integers ``q`` stand for after the head of ``data``."""


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


def entropy(counts: Any) -> float:
    """Return the bits per integer, sign included, if ``counts[k]`` integers have magnitude k."""
    total = float(counts.sum())
    share = counts[counts > 0] / total
    return float(-(share * np.log2(share)).sum()) + 1.0 - float(counts[0]) / total


@lru_cache(maxsize=256)
def max_steps(size: int, goal: Goal) -> int:
    """Return the largest integer that a coordinate can become, given |x| ≤ √size·rms."""
    finest = math.ceil(1 / FINEST) + 1
    if goal.kind != "step":
        return min(finest, MAX_MAGNITUDE)
    return min(finest, int(math.sqrt(size) / float(goal.value) * (1 + 1e-4)) + 2)
