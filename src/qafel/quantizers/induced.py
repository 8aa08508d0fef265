"""``induced:C+Q``: any quantizer made unbiased by a second one."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import vectors
from qafel.quantizers import _scaled
from qafel.quantizers._base import Quantizer, inner_quantizer, register_quantizer
from qafel.quantizers._spec import Arguments
from qafel.streams import derive
from qafel.vectors import Layout, Vector


@register_quantizer
@dataclass(frozen=True)
class Induced(Quantizer):
    """C(x) + Q(x − C(x)), unbiased because Q is (Horváth and Richtárik 2021). For clients.

    Any C will do; ω = ω_Q·(1 − δ_C). Payload: the length of the first payload (uint32), the first payload,
    the second.
    """

    name = "induced"
    example = "induced:topk:0.1+qsgd:4"
    unbiased = True

    first: Quantizer
    rest: Quantizer

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``SPEC+SPEC``, the second one unbiased."""
        first, plus, rest = arguments.rest.partition("+")
        if first.startswith(cls.name):
            problem = "the first quantizer must not be an induced one, which is unbiased already"
            arguments.fail_with(problem, cls.example)
        if not plus or not first or not rest:
            repaired = f"induced:{first or 'topk:0.1'}+{rest or 'qsgd:4'}"
            arguments.fail_with("needs two quantizers with a + between them", repaired)
        biased = inner_quantizer(arguments, first, lambda nearest: f"induced:{nearest}+{rest}")
        unbiased = inner_quantizer(arguments, rest, lambda nearest: f"induced:{first}+{nearest}")
        if not unbiased.unbiased:
            problem = f"the second quantizer must be unbiased, and {unbiased.spec} is biased"
            arguments.fail_with(problem, f"induced:{first}+qsgd:4")
        return cls(biased, unbiased)

    @property
    def spec(self) -> str:
        """``induced:SPEC+SPEC``."""
        return f"induced:{self.first.spec}+{self.rest.spec}"

    def bind(self, layout: Layout) -> "Induced":
        """Return this quantizer with both inner ones bound to ``layout``."""
        return Induced(self.first.bind(layout), self.rest.bind(layout))

    def omega(self, size: int) -> float:
        """Return ω of the second quantizer times ω of the first."""
        return self.rest.omega(size) * self.first.omega(size)

    def max_bytes(self, size: int) -> int:
        """Return the length of both payloads and of the first length."""
        return 4 + self.first.max_bytes(size) + self.rest.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the length of the first payload, the first, the second."""
        x = vectors.as_vector(x)
        head = self.first.encode(x, derive(seed, "first"))
        rest = self.rest.encode(_clipped_sum(x, -self.first.decode(head, x.size)), derive(seed, "rest"))
        return len(head).to_bytes(4, "little") + head + rest

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the sum of the two."""
        start = 4 + int.from_bytes(data[:4], "little")
        if not 4 <= start <= len(data) <= self.max_bytes(size):
            raise self.wrong_length(len(data), size)
        rest = self.rest.decode(data[start:], size)
        return _clipped_sum(self.first.decode(data[4:start], size), rest)


def _clipped_sum(x: Vector, y: Vector) -> Vector:
    with np.errstate(over="ignore"):
        return _scaled.clip(x + y)
