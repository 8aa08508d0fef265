"""``topk`` and ``randk``: k coordinates in full precision, zero elsewhere. δ = k/d.

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
from qafel.coding.lazy import Lazy
from qafel.coding.rice import Indices, decode_indices, encode_indices, max_index_bytes
from qafel.errors import VectorError
from qafel.quantizers._base import Quantizer, check_finite, finite_payload, register_quantizer
from qafel.quantizers._spec import Arguments
from qafel.streams import MASK, keys
from qafel.vectors import Vector

SEED_BYTES = 8

kernels = Lazy("qafel.streams.kernels")


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


@register_quantizer
@dataclass(frozen=True)
class TopK(Sparse):
    """The k coordinates of largest magnitude; equal ones in the order of their positions. Biased.

    Payload: the positions (``qafel.coding.rice``), then the values (float32).
    """

    name = "topk"
    example = "topk:0.1"
    unbiased = False

    def max_bytes(self, size: int) -> int:
        """Return the length for the positions that take the most bytes."""
        return max_index_bytes(size, self.kept(size)) + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the positions, then the values."""
        del seed
        x = vectors.as_vector(x)
        check_finite(x)
        indices = largest(x, self.kept(x.size))
        return encode_indices(indices, x.size) + x[indices].tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """Decode the positions."""
        return decode_indices(data, size, self.kept(size))


def largest(x: Vector, count: int) -> Indices:
    """Return the sorted positions of the ``count`` largest magnitudes; lower positions first among equals."""
    if count == 0:
        return np.empty(0, np.int64)
    magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitude, x.size - count)[x.size - count]
    chosen = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


@register_quantizer
@dataclass(frozen=True)
class RandK(Sparse):
    """k random coordinates; biased, or times d/k if ``scaled``, which is unbiased with ω = d/k − 1.

    Payload: the seed of the positions (uint64), then the values (float32).
    """

    name = "randk"
    example = "randk:0.1,scaled"
    flags: ClassVar = ("scaled",)

    scaled: bool = False

    @property
    def spec(self) -> str:
        """The name, the fraction or count, then ``scaled``."""
        return super().spec + (",scaled" if self.scaled else "")

    @property
    def unbiased(self) -> bool:
        """Whether it is scaled: unscaled, E[Q(x)] = x·k/d."""
        return self.scaled

    def omega(self, size: int) -> float:
        """Return d/k − 1 if scaled, else 1 − k/d. Every vector attains it."""
        if self.scaled:
            return size / self.kept(size) - 1.0 if size else 0.0
        return super().omega(size)

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return SEED_BYTES + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the seed of the positions, then the values."""
        x = vectors.as_vector(x)
        check_finite(x)
        head = (int(seed) & MASK).to_bytes(SEED_BYTES, "little")
        values = x[self.positions(head, x.size)]
        if self.scaled and values.size:
            with np.errstate(over="ignore"):
                values = values * np.float32(x.size / values.size)
            if not vectors.is_finite(values):
                raise VectorError(
                    f"{self.spec} multiplies by {x.size / values.size:g}, which is beyond float32 for this "
                    "vector; use a larger k or smaller numbers"
                )
        return head + values.tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """Draw the positions from the seed."""
        if len(data) != SEED_BYTES:
            raise self.wrong_length(len(data) + 4 * self.kept(size), size)
        indices = np.empty(self.kept(size), np.int64)
        kernels.subset(indices, size, *keys(int.from_bytes(data, "little")))
        return indices
