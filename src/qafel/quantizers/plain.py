"""Three classics: ``sign``, ``natural`` and ``ternary``.

``sign`` sends a bit for every coordinate and the mean magnitude: biased, for servers. ``natural`` rounds to
one of the two neighbouring powers of two, drawn so that the mean is x (Horváth et al. 2022): unbiased, ω =
1/8. ``ternary`` keeps −1, 0 or 1 times the largest magnitude (Wen et al. 2017): unbiased; it is
``qsgd:levels=1`` with the max norm.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import CODINGS, encode_integers
from qafel.errors import FrameError
from qafel.quantizers import scaled
from qafel.quantizers.base import Dense, Quantizer, register
from qafel.quantizers.coded import Coded
from qafel.quantizers.qsgd import QSGD
from qafel.quantizers.spec import Arguments
from qafel.streams import keys
from qafel.vectors import Vector

MOST_OCTAVES = 120
"""What ``natural`` finds smaller than the largest by more octaves becomes zero."""


@register
@dataclass(frozen=True)
class Sign(Dense):
    """The sign of every coordinate times the mean magnitude."""

    name = "sign"
    example = "sign"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``sign``."""
        arguments.expect(None, ())
        return cls()

    @property
    def spec(self) -> str:
        """``sign``."""
        return "sign"

    @property
    def unbiased(self) -> bool:
        """A sign says nothing about a magnitude."""
        return False

    def omega(self, size: int) -> float:
        """1 − ‖x‖₁²/(size·‖x‖²), and ‖x‖₁ ≥ ‖x‖; met where all but one are zero."""
        return 1 - 1 / size if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Exactly this many, always."""
        return 4 + -(-size // 8) if size else 0

    def encode(self, x: Vector, seed: int) -> bytes:
        """The mean magnitude (float32), then a bit for every coordinate: 1 is negative."""
        del seed
        x = vectors.as_vector(x)
        if not x.size:
            return b""
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        mean = np.float32(np.abs(x).mean(dtype=np.float64))
        return mean.tobytes() + np.packbits(x < 0, bitorder="little").tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Plus or minus the mean."""
        vectors.check_target(out)
        self.check_length(data, out.size)
        if not out.size:
            return
        mean = np.frombuffer(data, np.float32, 1)[0]
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), bitorder="little")
        if not 0 <= mean < np.inf or bits[out.size :].any():
            raise FrameError("sign: an impossible mean or stray bits")
        out += np.float32(weight) * np.where(bits[: out.size], -mean, mean)


@dataclass(frozen=True)
class _Plain(Quantizer):
    """Nothing to choose but the coding."""

    coding: str = "range"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """The name, then ``coding=range|rans|fixed``."""
        arguments.expect(None, ("coding",))
        return cls(arguments.choice("coding", CODINGS) or "range")

    @property
    def spec(self) -> str:
        """The name, and the coding where it is not range."""
        return self.name + (f":coding={self.coding}" if self.coding != "range" else "")


@register
@dataclass(frozen=True)
class Natural(_Plain, Coded):
    """One of the two neighbouring powers of two."""

    name = "natural"
    example = "natural"

    @property
    def unbiased(self) -> bool:
        """The mean of the two neighbours is x."""
        return True

    def omega(self, size: int) -> float:
        """At worst 1/8: (2 − m)·(m − 1)/m² for a mantissa m of 4/3."""
        return 0.125 if size else 0.0

    def head_bytes(self, size: int) -> int:
        """The largest power of two, the exponent."""
        del size
        return 4

    def integers(self, size: int) -> tuple[int, int]:
        """One for every coordinate."""
        return size, MOST_OCTAVES

    def encode(self, x: Vector, seed: int) -> bytes:
        """The largest power of two and what normalised x (int16 each); then 0, or octaves below."""
        from qafel.quantizers import kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        found = scaled.normalise(x)
        q = np.zeros(x.size, np.int16)
        top = int(np.float32(found.largest).view(np.uint32) >> 23) + 1
        bits = vectors.read_only(found.x).view(np.uint32)
        kernels.natural_codes(bits, top, MOST_OCTAVES, *keys(seed), q)
        return np.array([top, found.exponent], np.int16).tobytes() + encode_integers(q, self.coding)

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Powers of two."""
        from qafel.quantizers import dither_kernels

        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        top, exponent = (int(n) for n in np.frombuffer(data, np.int16, 2))
        if not 1 <= top <= 170 or abs(exponent) > 160:
            raise FrameError(f"{self.spec}: an impossible power of two")
        q = self.read_integers(data, out.size)
        levels = np.ldexp(1.0, top - 127 + 1 - np.arange(MOST_OCTAVES + 1))
        levels[0] = 0.0
        values = np.clip(np.ldexp(levels, -exponent), 0, scaled.LARGEST).astype(np.float32)
        dither_kernels.levels_add(q, values, np.float32(weight), out)


@register
@dataclass(frozen=True)
class Ternary(_Plain):
    """−1, 0 or 1 times the largest magnitude."""

    name = "ternary"
    example = "ternary"

    @cached_property
    def _inner(self) -> QSGD:
        return QSGD(1, None, "max", self.coding)

    @property
    def unbiased(self) -> bool:
        """A coordinate is kept as often as it is large."""
        return True

    def omega(self, size: int) -> float:
        """(√size − 1)/2, attained."""
        return self._inner.omega(size)

    def max_bytes(self, size: int) -> int:
        """As ``qsgd:levels=1,norm=max``."""
        return self._inner.max_bytes(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """As ``qsgd:levels=1,norm=max``."""
        return self._inner.encode(x, seed)

    def decode(self, data: bytes, size: int) -> Vector:
        """As ``qsgd:levels=1,norm=max``."""
        return self._inner.decode(data, size)

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """As ``qsgd:levels=1,norm=max``."""
        self._inner.decode_add(data, out, weight)
