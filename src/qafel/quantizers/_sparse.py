"""The base of ``topk`` and ``randk``: k coordinates in full precision, zero elsewhere. δ = k/d.

``0.1`` means k = ⌈0.1·d⌉ of d coordinates, ``100`` means 100, or all of fewer.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from qafel import vectors
from qafel.coding.rice import Indices
from qafel.quantizers._base import Quantizer, finite_payload
from qafel.quantizers._spec import Arguments
from qafel.vectors import Vector


@dataclass(frozen=True)
class Sparse(Quantizer):
    """A payload is a head that determines the positions, then k values."""

    flags: ClassVar[tuple[str, ...]] = ()

    keep: Decimal

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``FRACTION`` or ``COUNT``, then flags."""
        arguments.expect("k", (), cls.flags)
        keep = arguments.fraction("k")
        if keep is None:
            options = "".join(f",{item}" for item in arguments.items)
            arguments.fail_with("needs a fraction or a count", f"{arguments.name}:0.1{options}")
        exact = Decimal(f"{keep:f}".rstrip("0")) if keep < 1 else Decimal(int(keep))
        return cls(exact, *(arguments.flag(flag) for flag in cls.flags))

    @property
    def spec(self) -> str:
        """The name, then the fraction or count."""
        return f"{self.name}:{self.keep:f}"

    def kept(self, size: int) -> int:
        """Return k for a vector of this size."""
        wanted = math.ceil(Fraction(self.keep) * size) if self.keep < 1 else int(self.keep)
        return min(wanted, size)

    def omega(self, size: int) -> float:
        """Return 1 − k/d."""
        return 1.0 - self.kept(size) / size if size else 0.0

    @abstractmethod
    def positions(self, data: bytes, size: int) -> Indices:
        """Return the positions of the values from the head of a payload, or raise FrameError."""

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the values at their positions, zero elsewhere."""
        indices, values = self._read(data, size)
        out = vectors.zeros(size)
        out[indices] = values
        return out

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add the values at their positions; touch nothing else."""
        vectors.check_target(out)
        indices, values = self._read(data, out.size)
        out[indices] += np.float32(weight) * values

    def _read(self, data: bytes, size: int) -> tuple[Indices, Vector]:
        count = self.kept(size)
        if not 4 * count <= len(data) <= self.max_bytes(size):
            raise self.wrong_length(len(data), size)
        head = len(data) - 4 * count
        values = finite_payload(np.frombuffer(data[head:], np.float32))
        return self.positions(data[:head], size), values
