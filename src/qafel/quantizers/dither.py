"""``dither``: rounding with a dither that encoder and decoder share. Unbiased, for clients.

    q = ⌊x/Δ + r⌋,  r uniform in [0, 1)         x̃ = (q − λ·u)·Δ,  u = r − ½

The mean of x̃ is x for every λ. With λ = 1 the squared error is that of the dither, Δ²/12 for every
coordinate, zeros included; with λ = 0 it is that of stochastic rounding, which keeps zeros. In general it is
Δ²·(v − λ·v + λ²/12), v being the mean of f·(1 − f) and f the distance of x/Δ to the nearest integer; the
minimum is at λ = 6·v. Δ and λ depend on x only. The decoder uses the upper 8 of the 16 bits of r for u.

If the step is several times the rms, most integers are zero and entropy coding is effective.

Payload: Δ (float32), the power of two that normalised x (int16, mostly 0), 256/λ (uint32), the seed of the
dither (uint32), then the integers.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qafel import vectors
from qafel.coding.integers import Integers
from qafel.coding.threads import over_ranges
from qafel.errors import FrameError
from qafel.lazy import Lazy
from qafel.quantizers._base import register_quantizer
from qafel.quantizers._coded import FINEST, HIGHEST, OCTAVE, SAMPLE, Stepped, entropy
from qafel.quantizers._scaled import Normalised
from qafel.streams import derive, keys
from qafel.vectors import Vector

PAYLOAD = struct.Struct("<fhII")
"""The head: Δ, the power of two, 256/λ, the seed."""
WHOLE = 256
"""256/λ for λ = 1."""
MAX_PRODUCT = 1 << 30
"""Integers times 256/λ stay below this."""

kernels = Lazy("qafel.quantizers.dither_kernels")


@register_quantizer
@dataclass(frozen=True)
class Dither(Stepped):
    """Subtractive dither with the λ of the smallest error."""

    name = "dither"
    example = "dither:step=6"
    unbiased = True
    head_bytes = PAYLOAD.size
    limits: ClassVar = {"step": ("0.001", "1000"), "bits": ("0.01", "12"), "nmse": ("0.000001", "50")}

    def omega(self, size: int) -> float:
        """Return, for step s, s²/12 if s ≤ 6, else s − 3. For long vectors, whose λ is estimated from a
        sample, s²·max(v, 1/12) with v ≤ min(1/4, 1/s). One percent is added for the bits of the dither that
        the decoder does not use.
        """
        if size == 0:
            return 0.0
        if self.goal.kind == "nmse":
            return 1.01 * float(self.goal.value)
        s = float(self.goal.value) if self.goal.kind == "step" else 2.0 ** (HIGHEST / OCTAVE)
        if size > 2 * SAMPLE:
            bound = s * s * max(min(0.25, 1 / s), 1 / 12)
        else:
            bound = s * s / 12 if s <= 6 else s - 3
        return 1.01 * max(bound, size * FINEST**2 / 4)

    def limited(self, step: float, normalised: Normalised) -> np.float32:
        """Limit a step: integers stay below 2¹⁴."""
        return np.float32(max(step, normalised.largest * FINEST))

    def search_cost(self, some: Vector, normalised: Normalised) -> Callable[[float], float]:
        """Return the entropy of the expected integers, or the nmse with the best λ."""
        power = float(np.mean(np.square(some, dtype=np.float64))) or normalised.rms**2

        def nmse(length: float) -> float:
            step = np.float32(length)
            v = kernels.spread(some, step, 1)
            return float(step) ** 2 * (v - 3 * v * v if v < 1 / 6 else 1 / 12) / power

        def bits(length: float) -> float:
            counts = np.zeros(4096)
            kernels.expected_counts(some, np.float32(length), counts)
            return entropy(counts)

        return nmse if self.goal.kind == "nmse" else bits

    def quantize(self, normalised: Normalised, step: np.float32, seed: int) -> tuple[bytes, Integers]:
        """Return step, exponent, 256/λ and seed; the integers."""
        shared_seed, part = derive(seed, "shared") & 0xFFFFFFFF, WHOLE
        flat, shared = vectors.read_only(normalised.x), keys(shared_seed)
        q = np.zeros(flat.size, np.int16)
        if step:
            v = kernels.spread(normalised.x, step, max(1, q.size // SAMPLE))
            part = _part(v, int(normalised.largest / float(step) * (1 + 1e-6)) + 1)
            over_ranges(lambda a, b: kernels.dither_codes(flat, step, shared, a, b, q), q.size, kernels.BLOCK)
        return PAYLOAD.pack(step, normalised.exponent, part, shared_seed), q

    def max_magnitude(self, data: bytes, limit: int) -> int:
        """Return the limit on integers that follows from 256/λ."""
        step, _, part, _ = PAYLOAD.unpack_from(data)
        if not WHOLE <= part <= MAX_PRODUCT or (step == 0 and part != WHOLE):
            raise FrameError(f"{self.spec}: impossible 256/λ: {part}")
        return min(limit, MAX_PRODUCT // int(part) - 1)

    def add_steps(self, data: bytes, q: Integers, step: np.float32, weight: np.float32, out: Vector) -> None:
        """Draw the dither again, subtract it, and add the result."""
        part, seed = PAYLOAD.unpack_from(data)[2:]
        shared, slope = keys(seed), step / np.float32(part)
        kernels.dither_add(q, part, slope, shared, weight, out)


def _part(v: float, max_magnitude: int) -> int:
    """Return 256/λ for the best λ = 6·v, as an integer whose products with integers stay below the limit."""
    largest = MAX_PRODUCT // (max_magnitude + 1)
    return largest if v * 6 * largest <= WHOLE else max(WHOLE, math.floor(WHOLE / (6 * v) + 0.5))
