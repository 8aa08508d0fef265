"""``deadzone``: rounding towards zero, biased, for the server, whose x̂ makes good what was left out.

    q = sign(x)·⌊|x|/Δ + ⅓⌋

Coordinates below two thirds of a step become zero. What the others become is sent: the mean of all that were
rounded to 1, to 2, to 3, and where in its cell everything larger lies. The step is never so large that
nothing is left: the largest coordinate is always sent.

Payload: Δ (float32), a power of two that brought x to a normal size (int16, mostly 0), four places within a
cell (a byte each), then the integers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qafel import vectors
from qafel.coding.integers import encode_integers
from qafel.coding.planes import GROUP
from qafel.coding.work import over_ranges
from qafel.quantizers import scaled
from qafel.quantizers.base import register
from qafel.quantizers.coded import Stepped
from qafel.vectors import Vector

ROUNDING = np.float32(1 / 3)
PLACES = 4


@register
@dataclass(frozen=True)
class Deadzone(Stepped):
    """A uniform quantizer with a dead zone, and reconstruction points of its own for every vector."""

    name = "deadzone"
    example = "deadzone:step=2"
    limits: ClassVar = {"step": ("0.001", "1000"), "bits": ("0.01", "12"), "nmse": ("0.000001", "0.999")}

    @property
    def unbiased(self) -> bool:
        """Rounding towards zero is biased."""
        return False

    def omega(self, size: int) -> float:
        """The cell of the largest coordinate takes away at least 0.15 of its square, which is at least
        ‖x‖²/size; and no more than ``nmse`` is left where that is the goal.
        """
        if size == 0:
            return 0.0
        return 1 - 0.15 / size

    def head_bytes(self, size: int) -> int:
        """Step, exponent, places."""
        del size
        return scaled.HEAD + PLACES

    def encode_normalised(self, found: scaled.Normalised, seed: int) -> bytes:
        """Step, places, integers."""
        from qafel.quantizers import dither_kernels as kernels

        del seed
        q = np.zeros(found.x.size, np.int16)
        step = self._step(found)
        if step == 0:
            return scaled.head(step, 0) + bytes(PLACES) + encode_integers(q, self.coding)
        flat = vectors.read_only(found.x)
        over_ranges(lambda a, b: kernels.deadzone_codes(flat, step, ROUNDING, a, b, q), q.size, GROUP)
        places = bytes(_places(*_cells(flat, step)))
        return scaled.head(step, found.exponent) + places + encode_integers(q, self.coding)

    def _step(self, found: scaled.Normalised) -> np.float32:
        if found.largest == 0:
            return np.float32(0)
        some = vectors.read_only(scaled.sample(found.x))
        power = float(np.sum(np.square(some, dtype=np.float64))) or 1.0

        def nmse(s: float) -> float:
            step = self._within(s * found.rms, found)
            counts, sums = _cells(some, step)
            levels = _levels(_places(counts, sums), len(counts))
            taken = (2 * sums - counts * levels) @ levels
            return 1 - float(step) ** 2 * float(taken) / power

        def bits(s: float) -> float:
            return scaled.entropy(_cells(some, self._within(s * found.rms, found))[0])

        kind, value = self.goal.kind, float(self.goal.value)
        if kind == "step":
            s = value
        elif kind == "nmse":
            s = scaled.search(nmse, value, falls=False)
        else:
            s = scaled.search(bits, value, falls=True)
        return self._within(s * found.rms, found)

    @staticmethod
    def _within(step: float, found: scaled.Normalised) -> np.float32:
        """Not so small that numbers grow long, not so large that nothing is left."""
        most = found.largest / (1 - float(ROUNDING)) * (1 - 1e-6)
        return np.float32(min(max(step, found.largest * scaled.FINEST), most))

    def add(self, data: bytes, step: np.float32, exponent: int, weight: np.float32, out: Vector) -> None:
        """What each integer stands for."""
        from qafel.quantizers import dither_kernels as kernels

        q = self.read_integers(data, out.size)
        places = np.frombuffer(data, np.uint8, PLACES, scaled.HEAD)
        values = (_levels(places, int(np.abs(q).max()) + 1) * float(step)).astype(np.float32)
        kernels.levels_add(q, scaled.rescale(values, exponent), weight, out)


def _cells(x: Vector, step: np.float32) -> tuple[Any, Any]:
    """How many coordinates round to k, and the sum of |x|/Δ of those."""
    from qafel.quantizers import dither_kernels as kernels

    counts, sums = np.zeros(4096), np.zeros(4096)
    kernels.cells(x, step, ROUNDING, counts, sums)
    return counts, sums


def _places(counts: Any, sums: Any) -> Any:
    """Where in their cells the coordinates lie on average, in 256ths: of 1, of 2, of 3, and of the rest."""
    first = np.arange(len(counts)) - float(ROUNDING)
    inside = sums - counts * first
    many = np.concatenate([counts[1:PLACES], [counts[PLACES:-1].sum()]])
    within = np.concatenate([inside[1:PLACES], [inside[PLACES:-1].sum()]])
    mean = np.divide(within, many, out=np.full(PLACES, 0.5), where=many > 0)
    return np.clip(np.floor(mean * 256), 0, 255).astype(np.uint8)


def _levels(places: Any, count: int) -> Any:
    """What 0, 1, 2, … stand for, in steps."""
    k = np.arange(count)
    inside = (np.asarray(places, np.float64) + 0.5) / 256
    levels = k - float(ROUNDING) + inside[np.clip(k - 1, 0, PLACES - 1)]
    levels[0] = 0.0
    return levels
