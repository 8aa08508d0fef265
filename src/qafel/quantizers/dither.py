"""``dither``: rounding with a dither that both ends know, unbiased, for clients.

    q = ⌊x/Δ + r⌋,  r uniform in [0, 1)         x̃ = (q − λ·u)·Δ,  u = r − ½

Whatever λ is, the mean of x̃ is x. With λ = 1 the error is the dither's own, Δ²/12 for every coordinate, zeros
included; with λ = 0 it is that of rounding at random, nothing for a zero. In between, with v the mean of
f·(1 − f) and f the distance of x/Δ to a whole number, it is Δ²·(v − λ·v + λ²/12), least at λ = 6·v. Δ and λ
depend on x only. Of the 16 bits of r the decoder takes the upper 8 for u.

Most numbers are zero where the step is several times the rms, and an entropy coder makes little of them: see
``qafel.coding.integers``.

Payload: Δ (float32), a power of two that brought x to a normal size (int16, mostly 0), 256/λ (uint32), the
seed of the dither (uint32), then the integers.
"""

import math
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qafel import vectors
from qafel.coding.integers import FIXED, encode_integers
from qafel.coding.planes import packed_bytes
from qafel.coding.work import over_ranges, scratch
from qafel.errors import FrameError
from qafel.quantizers import scaled
from qafel.quantizers.base import register
from qafel.quantizers.coded import Stepped
from qafel.streams import derive, keys
from qafel.vectors import Vector

PAYLOAD = struct.Struct("<fhII")
"""How a payload begins: Δ, the power of two, 256/λ, the seed."""
HEAD = PAYLOAD.size
WHOLE = 256
"""256/λ where λ is 1."""


@register
@dataclass(frozen=True)
class Dither(Stepped):
    """Subtractive dither with the λ that loses least."""

    name = "dither"
    example = "dither:step=6"
    limits: ClassVar = {"step": ("0.001", "1000"), "bits": ("0.01", "12"), "nmse": ("0.000001", "50")}

    @property
    def unbiased(self) -> bool:
        """Whatever λ is."""
        return True

    def omega(self, size: int) -> float:
        """With step s: s²/12, and s − 3 from 6 on; of long vectors λ is a guess, and it is s²·max(v, 1/12)
        with v ≤ min(1/4, 1/s). A percent for the bits of the dither that the decoder does not know.
        """
        if size == 0:
            return 0.0
        if self.goal.kind == "nmse":
            return 1.01 * float(self.goal.value)
        s = float(self.goal.value) if self.goal.kind == "step" else 2.0 ** (scaled.HIGHEST / scaled.OCTAVE)
        if size > 2 * scaled.SAMPLE:
            bound = s * s * max(min(0.25, 1 / s), 1 / 12)
        else:
            bound = s * s / 12 if s <= 6 else s - 3
        return 1.01 * max(bound, size * scaled.FINEST**2 / 4)

    def head_bytes(self, size: int) -> int:
        """Step, exponent, 256/λ, seed."""
        del size
        return HEAD

    def encode_normalised(self, found: scaled.Normalised, seed: int) -> bytes:
        """Step, λ, seed, integers."""
        from qafel.quantizers import dither_kernels as kernels

        shared_seed = derive(seed, "shared") & 0xFFFFFFFF
        shared = keys(shared_seed)
        step = self._step(found)
        if step == 0:
            integers = encode_integers(np.zeros(found.x.size, np.int16), self.coding)
            return scaled.head(step, 0) + _words(WHOLE, shared_seed) + integers
        v = kernels.spread(found.x, step, max(1, found.x.size // scaled.SAMPLE))
        most = int(found.largest / float(step) * (1 + 1e-6)) + 1
        part = _part(v, most)
        flat = vectors.read_only(found.x)
        width = (2 * most).bit_length()
        if self.coding == "fixed" and width <= 8:
            head = scaled.head(step, found.exponent) + _words(part, shared_seed) + _fixed_head(most)
            out = scratch(len(head) + packed_bytes(found.x.size, width))
            codes = out[len(head) :]
            out[: len(head)] = np.frombuffer(head, np.uint8)
            over_ranges(
                lambda a, b: kernels.dither_pack(flat, step, shared, most, width, a, b, codes),
                found.x.size,
                kernels.BLOCK,
            )
            return out.tobytes()
        q = np.empty(found.x.size, np.int16)
        over_ranges(
            lambda a, b: kernels.dither_codes(flat, step, shared, a, b, q), found.x.size, kernels.BLOCK
        )
        integers = encode_integers(q, self.coding)
        return scaled.head(step, found.exponent) + _words(part, shared_seed) + integers

    def _step(self, found: scaled.Normalised) -> np.float32:
        from qafel.quantizers import dither_kernels as kernels

        if found.largest == 0:
            return np.float32(0)
        kind, value = self.goal.kind, float(self.goal.value)
        if kind == "step":
            return np.float32(max(value * found.rms, found.largest * scaled.FINEST))
        some = vectors.read_only(scaled.sample(found.x))
        power = float(np.mean(np.square(some, dtype=np.float64))) or found.rms**2

        def nmse(s: float) -> float:
            step = np.float32(s * found.rms)
            v = kernels.spread(some, step, 1)
            return float(step) ** 2 * (v - 3 * v * v if v < 1 / 6 else 1 / 12) / power

        def bits(s: float) -> float:
            counts = np.zeros(4096)
            kernels.expected_counts(some, np.float32(s * found.rms), counts)
            return scaled.entropy(counts)

        if kind == "nmse":
            s = scaled.search(nmse, value, falls=False)
        else:
            s = scaled.search(bits, value, falls=True)
        return np.float32(max(s * found.rms, found.largest * scaled.FINEST))

    def largest(self, data: bytes, most: int) -> int:
        """Numbers times 256/λ stay below 2³⁰."""
        step, _, part, _ = PAYLOAD.unpack_from(data)
        if not WHOLE <= part <= 1 << 30 or (step == 0 and part != WHOLE):
            raise FrameError(f"{self.spec}: an impossible λ")
        return min(most, (1 << 30) // int(part) - 1)

    def add(self, data: bytes, step: np.float32, exponent: int, weight: np.float32, out: Vector) -> None:
        """The dither, drawn again, taken away."""
        from qafel.quantizers import dither_kernels as kernels
        from qafel.quantizers.kernels import invalid_codes

        part, seed = PAYLOAD.unpack_from(data)[2:]
        shared, slope = keys(seed), step / np.float32(part)
        most = int.from_bytes(data[HEAD + 1 : HEAD + 3], "little") if data[HEAD] == FIXED else 0
        if 4 <= most <= 7 and (most + 1) * part < 1 << 15 and weight == 1 and not exponent:
            codes = np.frombuffer(data, np.uint8, offset=HEAD + 3)
            if invalid_codes(codes, 4, 2 * most, out.size):
                raise FrameError(f"{self.spec}: impossible codes or stray bits")
            over_ranges(
                lambda a, b: kernels.dither_unpack(codes, most, part, slope, shared, a, b, out),
                out.size,
                kernels.BLOCK,
            )
            return
        q = self.read_integers(data, out.size)
        if not exponent:
            kernels.dither_add(q, part, slope, shared, weight, out)
            return
        value = vectors.zeros(out.size)
        kernels.dither_add(q, part, slope, shared, np.float32(1), value)
        out += weight * scaled.rescale(value, exponent)


def _part(v: float, most: int) -> int:
    """256/λ for the best λ = 6·v, as a whole number that no product with a coordinate's overflows."""
    largest = (1 << 30) // (most + 1)
    return largest if v * 6 * largest <= WHOLE else max(WHOLE, math.floor(WHOLE / (6 * v) + 0.5))


def _fixed_head(most: int) -> bytes:
    return bytes([FIXED]) + most.to_bytes(2, "little")


def _words(part: int, seed: int) -> bytes:
    return np.array([part, seed], np.uint32).tobytes()
