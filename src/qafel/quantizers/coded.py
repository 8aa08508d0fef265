"""Quantizers that send integers through ``qafel.coding.integers``.

``Coded`` is any of them: a head, then coded integers. ``Stepped`` are those whose integers count steps of a
size a person can think in (``scaled``), with the kernels of convolutions as frequencies where a layout has
any (``spatial``).
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import (
    CODINGS,
    Integers,
    check_integers,
    decode_integers,
    max_integer_bytes,
)
from qafel.errors import FrameError, VectorError
from qafel.quantizers import scaled, spatial
from qafel.quantizers.base import Quantizer
from qafel.quantizers.scaled import Goal
from qafel.quantizers.spec import Arguments
from qafel.vectors import Layout, Vector


class Coded(Quantizer):
    """A head, then coded integers; best decoded by adding to zero."""

    @abstractmethod
    def head_bytes(self, size: int) -> int:
        """What stands before the integers."""

    @abstractmethod
    def integers(self, size: int) -> tuple[int, int]:
        """(how many there are, the largest magnitude any of them can have)."""

    def largest(self, data: bytes, most: int) -> int:
        """The largest magnitude that integers after this head can have, ``most`` or less; or FrameError."""
        del data
        return most

    def max_bytes(self, size: int) -> int:
        """No coding is longer than fixed width."""
        return self.head_bytes(size) + max_integer_bytes(*self.integers(size)) if size else 0

    def check(self, data: bytes, size: int) -> None:
        """FrameError where so many bytes cannot be so many coordinates."""
        if not size and not data:
            return
        head, (count, most) = self.head_bytes(size), self.integers(size)
        if not (size and head < len(data) <= head + max_integer_bytes(count, most)):
            raise FrameError(f"{self.spec} cannot have {len(data)} bytes for {size} coordinates")
        check_integers(memoryview(data)[head:], count, self.largest(data, most))

    def read_integers(self, data: bytes, size: int) -> Integers:
        """The integers of a payload that was checked, or FrameError."""
        count, most = self.integers(size)
        body = memoryview(data)[self.head_bytes(size) :]
        return decode_integers(body, count, self.largest(data, most))

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        self.check(data, size)
        out = vectors.zeros(size)
        self.decode_add(data, out)
        return out


@dataclass(frozen=True)
class Stepped(Coded):
    """Integers are numbers of steps; a goal says how long a step is."""

    limits: ClassVar[dict[str, tuple[str, str]]]
    """The goals it knows, with the least and the most of each."""

    goal: Goal
    coding: str = "range"
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``step=S``, ``bits=B`` or ``nmse=E``, then ``coding=range|rans|fixed``."""
        arguments.expect(None, (*cls.limits, "coding"))
        goal = scaled.goal(arguments, cls.example, cls.limits)
        return cls(goal, arguments.choice("coding", CODINGS) or "range")

    @property
    def spec(self) -> str:
        """The goal, and the coding where it is not range."""
        return f"{self.name}:{self.goal}" + (f",coding={self.coding}" if self.coding != "range" else "")

    def bind(self, layout: Layout) -> Self:
        """With the kernels of that layout as frequencies, where it has any."""
        return replace(self, layout=layout if spatial.places(layout) else None)

    def integers(self, size: int) -> tuple[int, int]:
        """One for every coordinate, and no more steps than its largest can have."""
        return size, scaled.most_steps(size, self.goal)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Head, integers."""
        x = vectors.as_vector(x, None if self.layout is None else self.layout.size)
        if not x.size:
            return b""
        if self.layout is not None:
            if not vectors.is_finite(x):
                raise vectors.not_finite(x)
            x = spatial.forward(x, self.layout)
        return self.encode_normalised(scaled.normalise(x), seed)

    @abstractmethod
    def encode_normalised(self, found: scaled.Normalised, seed: int) -> bytes:
        """The payload of a vector that is not empty, and finite."""

    def decode(self, data: bytes, size: int) -> Vector:
        """What is added to zero, and frequencies back to kernels."""
        if self.layout is None:
            return super().decode(data, size)
        out = replace(self, layout=None).decode(data, size)
        return scaled.within(spatial.inverse(out, self.layout))

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Integers, and what each stands for."""
        vectors.check_target(out)
        size = out.size
        if self.layout is not None:
            if size != self.layout.size:
                raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {size}")
            out += np.float32(weight) * self.decode(data, size)
            return
        self.check(data, size)
        if not size:
            return
        step, exponent = scaled.read_head(data, self)
        if step:
            self.add(data, step, exponent, np.float32(weight), out)
        elif self.read_integers(data, size).any():
            raise FrameError(f"{self.spec}: numbers without a step")

    @abstractmethod
    def add(self, data: bytes, step: np.float32, exponent: int, weight: np.float32, out: Vector) -> None:
        """``out += weight · Q(x)`` for a payload that was checked; ``out`` is untouched where it is bad."""
