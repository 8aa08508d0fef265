"""``topk`` and ``randk``: send some coordinates, in full precision.

``topk`` sends the k largest (ties go to the lower position) with their positions coded as in
``coding.indices``; ``randk`` sends k random ones and the seed that names them, never positions. ``topk:0.1``
means ⌈0.1·d⌉ coordinates, ``topk:100`` means 100 (all, where there are fewer). Both contract with δ = k/d.
``randk:0.1,scaled`` multiplies by d/k, which makes it unbiased with ω = d/k − 1.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.indices import Indices, decode_indices, encode_indices, max_index_bytes
from qafel.errors import FrameError, VectorError
from qafel.quantizers.base import Quantizer, register
from qafel.quantizers.spec import Arguments
from qafel.streams import MASK, keys
from qafel.vectors import Vector

SEED_BYTES = 8


@dataclass(frozen=True)
class Sparse(Quantizer):
    """What both have in common: k values, and a way to tell where they belong."""

    keep: Decimal

    def kept(self, size: int) -> int:
        """k for a vector of this size."""
        wanted = math.ceil(Fraction(self.keep) * size) if self.keep < 1 else int(self.keep)
        return min(wanted, size)

    def omega(self, size: int) -> float:
        """1 − k/d."""
        return 1.0 - self.kept(size) / size if size else 0.0

    @abstractmethod
    def positions(self, data: bytes, size: int) -> Indices:
        """Where the values belong, read from the payload's head."""

    def decode(self, data: bytes, size: int) -> Vector:
        """The values at their places, zero elsewhere."""
        indices, values = self._read(data, size)
        out = vectors.zeros(size)
        out[indices] = values
        return out

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Touches the k places only."""
        vectors.check_target(out)
        indices, values = self._read(data, out.size)
        out[indices] += np.float32(weight) * values

    def _read(self, data: bytes, size: int) -> tuple[Indices, Vector]:
        count = self.kept(size)
        if not 4 * count <= len(data) <= self.max_bytes(size):
            raise FrameError(f"{self.spec} cannot have {len(data)} bytes for {size} coordinates")
        values = np.frombuffer(data[len(data) - 4 * count :], np.float32)
        if not vectors.is_finite(values):
            raise FrameError("the payload has a NaN or an infinity")
        return self.positions(data[: len(data) - 4 * count], size), values


def _keep(arguments: Arguments, flags: tuple[str, ...] = ()) -> Decimal:
    arguments.expect("k", (), flags)
    keep = arguments.fraction("k")
    if keep is None:
        options = "".join(f",{item}" for item in arguments.items)
        arguments.fail_with("needs a fraction or a count", f"{arguments.name}:0.1{options}")
    return Decimal(f"{keep:f}".rstrip("0")) if keep < 1 else Decimal(int(keep))


@register
@dataclass(frozen=True)
class TopK(Sparse):
    """The k coordinates of largest magnitude."""

    name = "topk"
    example = "topk:0.1"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``topk:FRACTION`` or ``topk:COUNT``."""
        return cls(_keep(arguments))

    @property
    def spec(self) -> str:
        """``topk:FRACTION`` or ``topk:COUNT``."""
        return f"topk:{self.keep:f}"

    @property
    def unbiased(self) -> bool:
        """What is not sent is lost."""
        return False

    def max_bytes(self, size: int) -> int:
        """For positions as scattered as can be."""
        return max_index_bytes(size, self.kept(size)) + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Positions, then values."""
        del seed
        x = vectors.as_vector(x)
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        indices = largest(x, self.kept(x.size))
        return encode_indices(indices, x.size) + x[indices].tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """From the coded positions."""
        return decode_indices(data, size, self.kept(size))


def largest(x: Vector, count: int) -> Indices:
    """Sorted positions of the ``count`` largest magnitudes; of equal ones the lower position comes first."""
    if count == 0:
        return np.empty(0, np.int64)
    magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitude, x.size - count)[x.size - count]
    chosen = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


@register
@dataclass(frozen=True)
class RandK(Sparse):
    """k random coordinates, times d/k if ``scaled``."""

    name = "randk"
    example = "randk:0.1,scaled"

    scaled: bool = False

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``randk:FRACTION`` or ``randk:COUNT``, then ``scaled``."""
        keep = _keep(arguments, ("scaled",))
        return cls(keep, arguments.flag("scaled"))

    @property
    def spec(self) -> str:
        """``randk:FRACTION`` or ``randk:COUNT``, then ``scaled``."""
        return f"randk:{self.keep:f}" + (",scaled" if self.scaled else "")

    @property
    def unbiased(self) -> bool:
        """Only when scaled: the paper's unscaled one shrinks x by k/d on average."""
        return self.scaled

    def omega(self, size: int) -> float:
        """Scaled: d/k − 1; otherwise 1 − k/d. Both are met by every vector."""
        if self.scaled:
            return size / self.kept(size) - 1.0 if size else 0.0
        return super().omega(size)

    def max_bytes(self, size: int) -> int:
        """Exactly this many, always."""
        return SEED_BYTES + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """The seed that names the positions, then values."""
        x = vectors.as_vector(x)
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        head = (int(seed) & MASK).to_bytes(SEED_BYTES, "little")
        values = x[self.positions(head, x.size)]
        if self.scaled and values.size:
            with np.errstate(over="ignore"):
                values = values * np.float32(x.size / values.size)
            if not vectors.is_finite(values):
                raise VectorError(
                    f"{self.spec} multiplies by {x.size / values.size:g}, beyond float32 for this vector"
                )
        return head + values.tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """Drawn again from the seed in the payload."""
        from qafel.streams import kernels

        if len(data) != SEED_BYTES:
            raise FrameError(
                f"{self.spec} cannot have {len(data) + 4 * self.kept(size)} bytes for {size} coordinates"
            )
        indices = np.empty(self.kept(size), np.int64)
        kernels.subset(indices, size, *keys(int.from_bytes(data, "little")))
        return indices
