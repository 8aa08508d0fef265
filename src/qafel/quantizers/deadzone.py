"""``deadzone``: rounding towards zero. Biased, for the server: the hidden state x̂ carries the error over.

    q = sign(x)·⌊|x|/Δ + ⅓⌋

Coordinates below two thirds of a step become zero. The reconstruction points are sent: the mean place within
the cell of all coordinates that were rounded to ±1, to ±2, to ±3, and to anything larger. The step is limited
so that the largest coordinate never becomes zero.

Payload: Δ (float32), the power of two that normalised x (int16, mostly 0), four places within a cell (a byte
each), then the integers.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP
from qafel.coding.integers import STREAM, Integers
from qafel.coding.threads import over_parts, over_ranges
from qafel.lazy import Lazy
from qafel.quantizers._base import register_quantizer
from qafel.quantizers._coded import FINEST, Stepped, entropy
from qafel.quantizers._scaled import Normalised
from qafel.vectors import Vector

ROUNDING = np.float32(1 / 3)
PLACES = 4
PAYLOAD = struct.Struct(f"<fh{PLACES}s")
"""The head: Δ, the power of two, the places."""

integers_kernels = Lazy("qafel.coding.integers_kernels")
kernels = Lazy("qafel.quantizers.deadzone_kernels")


@register_quantizer
@dataclass(frozen=True)
class Deadzone(Stepped):
    """A uniform quantizer with a dead zone, and reconstruction points for every vector."""

    name = "deadzone"
    example = "deadzone:step=2"
    unbiased = False
    head_bytes = PAYLOAD.size
    limits: ClassVar = {"step": ("0.001", "1000"), "bits": ("0.01", "12"), "nmse": ("0.000001", "0.999")}

    def omega(self, size: int) -> float:
        """Return 1 − 0.15/d: the point of the largest coordinate removes at least 0.15 of its square, which
        is at least ‖x‖²/d.
        """
        return 1 - 0.15 / size if size else 0.0

    def limited(self, step: float, normalised: Normalised) -> np.float32:
        """Limit a step: integers stay below 2¹⁴, and the largest coordinate does not become zero."""
        max_step = normalised.largest / (1 - float(ROUNDING)) * (1 - 1e-6)
        return np.float32(min(max(step, normalised.largest * FINEST), max_step))

    def search_cost(self, some: Vector, normalised: Normalised) -> Callable[[float], float]:
        """Return the entropy of the cells, or the nmse with their mean places."""
        power = float(np.sum(np.square(some, dtype=np.float64))) or 1.0

        def nmse(length: float) -> float:
            step = self.limited(length, normalised)
            counts, sums = _cells(some, step)
            levels = np.empty(len(counts))
            kernels.levels(_places(counts, sums), ROUNDING, 1.0, levels)
            taken = (2 * sums - counts * levels) @ levels
            return 1 - float(step) ** 2 * float(taken) / power

        def bits(length: float) -> float:
            return entropy(_cells(some, self.limited(length, normalised))[0])

        return nmse if self.goal.kind == "nmse" else bits

    def quantize(self, normalised: Normalised, step: np.float32, seed: int) -> tuple[bytes, Integers]:
        """Return step, exponent and places; the integers."""
        del seed
        flat, places = vectors.read_only(normalised.x), bytes(PLACES)
        q = np.zeros(flat.size, np.int16)
        if step:
            over_ranges(lambda a, b: kernels.deadzone_codes(flat, step, ROUNDING, a, b, q), q.size, GROUP)
            places = bytes(_mean_places(flat, q, step))
        return PAYLOAD.pack(step, normalised.exponent, places), q

    def add_steps(self, data: bytes, q: Integers, step: np.float32, weight: np.float32, out: Vector) -> None:
        """Add the level of every integer."""
        places = np.frombuffer(PAYLOAD.unpack_from(data)[2], np.uint8)
        values = np.empty(int(integers_kernels.largest(q)) + 1, np.float32)
        kernels.levels(places, ROUNDING, step, values)
        over_ranges(lambda a, b: kernels.add(q, values, weight, a, b, out), q.size, GROUP)


def _mean_places(x: Vector, q: Integers, step: np.float32) -> Any:
    """Return the mean place within a cell, in 1/256, of the coordinates in cells 1, 2, 3 and all others."""

    def part(start: int) -> Any:
        sums = np.zeros((2, PLACES), np.int64)
        end = start + STREAM
        kernels.places(x[start:end], q[start:end], step, ROUNDING, *sums)
        return sums

    counts, sums = sum(over_parts(part, q.size, STREAM))
    return np.where(counts > 0, np.clip(sums // np.maximum(counts, 1) >> 8, 0, 255), 128).astype(np.uint8)


def _cells(x: Vector, step: np.float32) -> tuple[Any, Any]:
    """Return, for every k, the number of coordinates that round to ±k and their sum of |x|/Δ."""
    counts, sums = np.zeros(4096), np.zeros(4096)
    kernels.cells(x, step, ROUNDING, counts, sums)
    return counts, sums


def _places(counts: Any, sums: Any) -> Any:
    """Return the mean place within a cell, in 1/256, of the coordinates in cells 1, 2, 3 and all others."""
    first = np.arange(len(counts)) - float(ROUNDING)
    inside = sums - counts * first
    many = np.concatenate([counts[1:PLACES], [counts[PLACES:-1].sum()]])
    within = np.concatenate([inside[1:PLACES], [inside[PLACES:-1].sum()]])
    mean = np.divide(within, many, out=np.full(PLACES, 0.5), where=many > 0)
    return np.clip(np.floor(mean * 256), 0, 255).astype(np.uint8)
