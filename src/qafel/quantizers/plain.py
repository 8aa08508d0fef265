"""Quantizers without arguments: ``identity``, ``sign``, ``ternary``, ``natural``."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import packed_bytes
from qafel.coding.integers import encode_integers
from qafel.coding.lazy import Lazy
from qafel.errors import FrameError
from qafel.quantizers import _scaled
from qafel.quantizers._base import Additive, NoArguments, check_finite, finite_payload, register_quantizer
from qafel.quantizers._coded import Coded
from qafel.quantizers.qsgd import QSGD
from qafel.streams import keys
from qafel.vectors import Vector

PLAIN = QSGD(1, None, "max")
MAX_OCTAVES = 120
"""Coordinates that are smaller than the largest by more octaves become zero in ``natural``."""
MAX_TOP = 170

bitplanes_kernels = Lazy("qafel.coding.bitplanes_kernels")
kernels = Lazy("qafel.quantizers._scaled_kernels")


@register_quantizer
@dataclass(frozen=True)
class Identity(NoArguments, Additive):
    """Q(x) = x: full precision, as FedBuff sends it. Payload: little-endian float32 numbers."""

    name = example = "identity"
    lossless = unbiased = True

    def omega(self, size: int) -> float:
        """Return 0: nothing is lost."""
        del size
        return 0.0

    def max_bytes(self, size: int) -> int:
        """Return four bytes a coordinate."""
        return 4 * size

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the bytes of the vector."""
        del seed
        check_finite(x)
        return x.tobytes()

    def decode(self, data: bytes, size: int) -> Vector:
        """Return the vector with every bit, that of a negative zero included."""
        self.check(data, size)
        return vectors.copy(finite_payload(np.frombuffer(data, np.float32)))

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the payload without a copy."""
        x = finite_payload(np.frombuffer(data, np.float32))
        out += x if weight == 1 else weight * x


@register_quantizer
@dataclass(frozen=True)
class Sign(NoArguments, Additive):
    """The sign of every coordinate times the mean magnitude. Biased, for servers.

    Payload: the mean magnitude (float32), then a bit for every coordinate, 1 for a negative one.
    """

    name = example = "sign"
    unbiased = False

    def omega(self, size: int) -> float:
        """Return 1 − 1/d: ω = 1 − ‖x‖₁²/(d·‖x‖²), and ‖x‖₁ = ‖x‖ if one coordinate is not zero."""
        return 1 - 1 / size if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return 4 + -(-size // 8) if size else 0

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the mean, then the bits."""
        del seed
        check_finite(x)
        mean = np.float32(np.abs(x).mean(dtype=np.float64))
        return mean.tobytes() + np.packbits(x < 0, bitorder="little").tobytes()

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add plus or minus the mean."""
        mean = np.frombuffer(data, np.float32, 1)[0]
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), bitorder="little")
        if not 0 <= mean < np.inf or bits[out.size :].any():
            raise FrameError(f"sign: impossible mean {mean:g} or stray bits")
        out += weight * np.where(bits[: out.size], -mean, mean)


@register_quantizer
@dataclass(frozen=True)
class Ternary(NoArguments, Coded):
    """−1, 0 or 1 times the largest magnitude (Wen et al. 2017). Unbiased.

    It is ``qsgd:levels=1,norm=max`` with an entropy coder: most of the integers are zero.

    Payload: the largest magnitude (float32), then the integers.
    """

    name = example = "ternary"
    unbiased = True
    head_bytes, largest = 4, 1

    def omega(self, size: int) -> float:
        """Return (√d − 1)/2, attained."""
        return PLAIN.omega(size)

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the largest magnitude, then the integers."""
        data, q = PLAIN.payload(x, seed), np.empty(x.size, np.int16)
        bitplanes_kernels.unpack_integers(np.frombuffer(data, np.uint8, offset=4), 1, PLAIN.bits, q)
        return data[:4] + encode_integers(q)

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the integers as the payload of ``qsgd`` that they are."""
        packed = np.empty(packed_bytes(out.size, PLAIN.bits), np.uint8)
        bitplanes_kernels.pack_integers(self.read_integers(data, out.size), 1, PLAIN.bits, packed)
        PLAIN.add(data[:4] + packed.tobytes(), weight, out)


@register_quantizer
@dataclass(frozen=True)
class Natural(NoArguments, Coded):
    """One of the two neighbouring powers of two, drawn with mean x (Horváth et al. 2022). Unbiased.

    Payload: the exponent of the largest power of two and the exponent that normalised x (int16 each), then an
    integer for every coordinate: 0, or ±k for the power of two k − 1 octaves below the largest.
    """

    name = example = "natural"
    unbiased = True
    head_bytes, largest = 4, MAX_OCTAVES

    def omega(self, size: int) -> float:
        """Return 1/8, the maximum of (2 − m)·(m − 1)/m², attained at the mantissa m = 4/3."""
        return 0.125 if size else 0.0

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the exponents, then the integers."""
        normalised, q = _scaled.normalise(x), np.zeros(x.size, np.int16)
        top = int(np.float32(normalised.largest).view(np.uint32) >> 23) + 1
        bits = vectors.read_only(normalised.x).view(np.uint32)
        kernels.natural_codes(bits, top, MAX_OCTAVES, *keys(seed), q)
        return np.array([top, normalised.exponent], np.int16).tobytes() + encode_integers(q)

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the power of two of every integer."""
        top, exponent = (int(n) for n in np.frombuffer(data, np.int16, 2))
        if not 1 <= top <= MAX_TOP or abs(exponent) > _scaled.MAX_EXPONENT:
            raise FrameError(f"{self.spec}: impossible exponents {top} and {exponent}")
        q = self.read_integers(data, out.size)
        levels = np.ldexp(1.0, top - 127 + 1 - np.arange(MAX_OCTAVES + 1))
        levels[0] = 0.0
        values = np.clip(np.ldexp(levels, -exponent), 0, _scaled.LARGEST).astype(np.float32)
        kernels.levels_add(q, values, weight, out)
