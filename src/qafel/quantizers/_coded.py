"""Quantizers whose payload ends with integers in a coding of ``qafel.coding.integers``.

``Coded`` is the base of all of them. ``Stepped`` is the base of those whose integers count steps
(``_scaled``); with a layout, they transform the 3 × 3 kernels of convolutions first (``_spatial``), and the
coder predicts signs within a layer.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import (
    Integers,
    Rows,
    check_integers,
    decode_integers,
    encode_integers,
    max_integer_bytes,
)
from qafel.errors import FrameError, VectorError
from qafel.quantizers import _scaled, _spatial
from qafel.quantizers._base import Additive
from qafel.quantizers._scaled import Goal
from qafel.quantizers._spec import Arguments
from qafel.vectors import Layout, Vector


class Coded(Additive):
    """A payload is a head of fixed length, then coded integers."""

    @abstractmethod
    def head_bytes(self, size: int) -> int:
        """Return the number of bytes before the integers."""

    @abstractmethod
    def integers(self, size: int) -> tuple[int, int]:
        """Return the number of integers and the largest magnitude that one can have."""

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
        return self.head_bytes(size) + max_integer_bytes(*self.integers(size)) if size else 0

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the length or the head of the payload is impossible."""
        if not size and not data:
            return
        head, (count, limit) = self.head_bytes(size), self.integers(size)
        if not (size and head < len(data) <= head + max_integer_bytes(count, limit)):
            raise self.wrong_length(len(data), size)
        check_integers(memoryview(data)[head:], count, self.max_magnitude(data, limit))

    def read_integers(self, data: bytes, size: int) -> Integers:
        """Return the integers of a payload that ``check`` accepted, or raise FrameError."""
        count, limit = self.integers(size)
        body = memoryview(data)[self.head_bytes(size) :]
        return decode_integers(body, count, self.max_magnitude(data, limit), self.rows)


@dataclass(frozen=True)
class Stepped(Coded):
    """Integers count steps; the goal determines the length of a step."""

    limits: ClassVar[dict[str, tuple[str, str]]]
    """Smallest and largest value of every goal."""

    goal: Goal
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``step=S``, ``bits=B`` or ``nmse=E``."""
        arguments.expect(None, tuple(cls.limits))
        return cls(_scaled.goal(arguments, cls.example, cls.limits))

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

    def integers(self, size: int) -> tuple[int, int]:
        """Return one integer for every coordinate, and the most steps that one can have."""
        return size, _scaled.max_steps(size, self.goal)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the head, then the integers."""
        return self._encode(x, seed)[0]

    def encode_add(self, x: Vector, seed: int, out: Vector) -> bytes:
        """Return the payload, and add what it stands for without reading it again."""
        vectors.check_target(out)
        payload, q = self._encode(x, seed)
        if q.size:
            self._add_integers(payload, q, np.float32(1), out)
        return payload

    def _encode(self, x: Vector, seed: int) -> tuple[bytes, Integers]:
        x = vectors.as_vector(x, None if self.layout is None else self.layout.size)
        if not x.size:
            return b"", np.empty(0, np.int16)
        normalised = _scaled.normalise(x)
        if self.layout is not None and _spatial.places(self.layout):
            moved = _scaled.normalise(_spatial.forward(normalised.x, self.layout))
            normalised = moved._replace(exponent=moved.exponent + normalised.exponent)
        head, q = self.quantize(normalised, seed)
        return head + encode_integers(q, self.rows), q

    @abstractmethod
    def quantize(self, normalised: _scaled.Normalised, seed: int) -> tuple[bytes, Integers]:
        """Return head and integers of a finite vector that is not empty."""

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Check head and integers, then add the value of each integer, transformed back with a layout."""
        vectors.check_target(out)
        if self.layout is not None and out.size != self.layout.size:
            raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {out.size}")
        self.check(data, out.size)
        if out.size:
            self._add_integers(data, self.read_integers(data, out.size), np.float32(weight), out)

    def _add_integers(self, data: bytes, q: Integers, weight: np.float32, out: Vector) -> None:
        step, exponent = _scaled.read_head(data, self)
        if not step:
            if q.any():
                raise FrameError(f"{self.spec}: the step is 0, but not all integers are")
        elif self.layout is None or not _spatial.places(self.layout):
            self.add(data, q, step, exponent, weight, out)
        else:
            values = vectors.zeros(out.size)
            self.add(data, q, step, 0, np.float32(1), values)
            if not exponent:
                _spatial.add_back(values, self.layout, weight, out)
                return
            whole = vectors.zeros(out.size)
            _spatial.add_back(values, self.layout, np.float32(1), whole)
            out += weight * _scaled.rescale(whole, exponent)

    @abstractmethod
    def add(
        self, data: bytes, q: Integers, step: np.float32, exponent: int, weight: np.float32, out: Vector
    ) -> None:
        """Do ``out += weight ·`` what the integers ``q`` stand for after the head of ``data``."""
