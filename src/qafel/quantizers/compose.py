"""Quantizers made of quantizers: ``contract`` and ``induced``.

``contract:Q`` multiplies an unbiased Q by 1/(1 + ω), which turns it into a contraction with δ = 1/(1 + ω):
what a server quantizer must be. ``induced:C+Q`` sends C(x) and Q(x − C(x)) with an unbiased Q: unbiased
whatever C is, with ω = ω_Q·(1 − δ_C) (Horváth and Richtárik 2021): what a client quantizer should be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import vectors
from qafel.errors import FrameError, SpecError
from qafel.quantizers.base import Quantizer, quantizer, register
from qafel.quantizers.spec import Arguments
from qafel.streams import derive
from qafel.vectors import Layout, Vector

LARGEST = np.finfo(np.float32).max


def _inner(arguments: Arguments, spec: str, wrap: Callable[[str], str]) -> Quantizer:
    """The quantizer inside; a bad one is complained about with the whole spec around it."""
    try:
        return quantizer(spec)
    except SpecError as error:
        arguments.fail_with(str(error).partition("; nearest valid")[0], wrap(error.nearest))


@register
@dataclass(frozen=True)
class Contract(Quantizer):
    """An unbiased quantizer times 1/(1 + ω)."""

    name = "contract"
    example = "contract:qsgd:4"

    inner: Quantizer

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``contract:SPEC``."""
        if not arguments.rest:
            arguments.fail_with("needs a quantizer", cls.example)
        inner = _inner(arguments, arguments.rest, lambda nearest: f"contract:{nearest}")
        if not inner.unbiased:
            arguments.fail_with(f"{inner.spec} is biased and cannot be scaled into a contraction", inner.spec)
        return cls(inner)

    @property
    def spec(self) -> str:
        """``contract:SPEC``."""
        return f"contract:{self.inner.spec}"

    @property
    def unbiased(self) -> bool:
        """Scaling down makes it biased, unless nothing was lost to begin with."""
        return self.inner.lossless

    def bind(self, layout: Layout) -> "Contract":
        """Bind what is inside."""
        return Contract(self.inner.bind(layout))

    def factor(self, size: int) -> np.float32:
        """1/(1 + ω)."""
        return np.float32(1.0 / (1.0 + self.inner.omega(size)))

    def omega(self, size: int) -> float:
        """1 − 1/(1 + ω)."""
        omega = self.inner.omega(size)
        return omega / (1.0 + omega)

    def max_bytes(self, size: int) -> int:
        """What is inside."""
        return self.inner.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """What is inside: the factor is known to both ends."""
        return self.inner.encode(x, seed)

    def decode(self, data: bytes, size: int) -> Vector:
        """What is inside, scaled."""
        x: Vector = self.factor(size) * self.inner.decode(data, size)
        return x


@register
@dataclass(frozen=True)
class Induced(Quantizer):
    """C(x) + Q(x − C(x)), unbiased because Q is."""

    name = "induced"
    example = "induced:topk:0.1+qsgd:4"

    first: Quantizer
    rest: Quantizer

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``induced:SPEC+SPEC``, the second one unbiased."""
        first, plus, rest = arguments.rest.partition("+")
        if first.startswith(cls.name):
            arguments.fail_with(
                "the first quantizer cannot be an induced one, which is unbiased already", cls.example
            )
        if not plus or not first or not rest:
            arguments.fail_with(
                "needs two quantizers with a + between them",
                f"induced:{first or 'topk:0.1'}+{rest or 'qsgd:4'}",
            )
        biased = _inner(arguments, first, lambda nearest: f"induced:{nearest}+{rest}")
        unbiased = _inner(arguments, rest, lambda nearest: f"induced:{first}+{nearest}")
        if not unbiased.unbiased:
            arguments.fail_with(
                f"the second quantizer must be unbiased, and {unbiased.spec} is not",
                f"induced:{first}+qsgd:4",
            )
        return cls(biased, unbiased)

    @property
    def spec(self) -> str:
        """``induced:SPEC+SPEC``."""
        return f"induced:{self.first.spec}+{self.rest.spec}"

    @property
    def unbiased(self) -> bool:
        """Whatever the first one loses, the second sends without bias."""
        return True

    def bind(self, layout: Layout) -> "Induced":
        """Bind what is inside."""
        return Induced(self.first.bind(layout), self.rest.bind(layout))

    def omega(self, size: int) -> float:
        """ω of the second on what the first left over."""
        return self.rest.omega(size) * self.first.omega(size)

    def max_bytes(self, size: int) -> int:
        """Both, and where the second starts."""
        return 4 + self.first.max_bytes(size) + self.rest.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """The length of the first payload (uint32), the first, the second."""
        x = vectors.as_vector(x)
        head = self.first.encode(x, derive(seed, "first"))
        rest = self.rest.encode(_within(x, -self.first.decode(head, x.size)), derive(seed, "rest"))
        return len(head).to_bytes(4, "little") + head + rest

    def decode(self, data: bytes, size: int) -> Vector:
        """The sum of the two."""
        start = 4 + int.from_bytes(data[:4], "little")
        if not 4 <= start <= len(data) <= self.max_bytes(size):
            raise FrameError(f"{self.spec} cannot have {len(data)} bytes for {size} coordinates")
        rest = self.rest.decode(data[start:], size)
        return _within(self.first.decode(data[4:start], size), rest)


def _within(x: Vector, y: Vector) -> Vector:
    """x + y, kept within float32."""
    with np.errstate(over="ignore"):
        total: Vector = np.clip(x + y, -LARGEST, LARGEST)
    return total
