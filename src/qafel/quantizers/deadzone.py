"""``deadzone``: rounding towards zero, biased, for the server, whose x̂ makes good what was left out.

    q = sign(x)·⌊|x|/Δ + ⅓⌋

Coordinates below two thirds of a step become zero. What the others become is sent: the mean of all that were
rounded to 1, to 2, to 3, and where in its cell everything larger lies. The step is never so large that
nothing is left: the largest coordinate is always sent.

Payload: Δ (float32), a power of two that brought x to a normal size (int16, mostly 0), four places within a
cell (a byte each), then the integers.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import (
    CODINGS,
    check_integers,
    decode_integers,
    encode_integers,
    max_integer_bytes,
)
from qafel.coding.planes import GROUP
from qafel.coding.work import over_ranges
from qafel.errors import FrameError, VectorError
from qafel.quantizers import scaled, spatial
from qafel.quantizers.base import Quantizer, register
from qafel.quantizers.scaled import Goal
from qafel.quantizers.spec import Arguments
from qafel.vectors import Layout, Vector

ROUNDING = np.float32(1 / 3)
PLACES = 4
HEAD = scaled.HEAD + PLACES
LIMITS = {"step": ("0.001", "1000"), "bits": ("0.01", "12"), "nmse": ("0.000001", "0.999")}


@register
@dataclass(frozen=True)
class Deadzone(Quantizer):
    """A uniform quantizer with a dead zone, and reconstruction points of its own for every vector."""

    name = "deadzone"
    example = "deadzone:step=2"

    goal: Goal
    coding: str = "range"
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``deadzone:step=S``, ``bits=B`` or ``nmse=E``, then ``coding=range|rans|fixed``."""
        arguments.expect(None, (*LIMITS, "coding"))
        goal = scaled.goal(arguments, cls.example, LIMITS)
        return cls(goal, arguments.choice("coding", CODINGS) or "range")

    @property
    def spec(self) -> str:
        """The goal, and the coding where it is not range."""
        return f"deadzone:{self.goal}" + (f",coding={self.coding}" if self.coding != "range" else "")

    @property
    def unbiased(self) -> bool:
        """Rounding towards zero is biased."""
        return False

    def bind(self, layout: Layout) -> "Deadzone":
        """With the kernels of that layout as frequencies, where it has any."""
        return replace(self, layout=layout if spatial.places(layout) else None)

    def omega(self, size: int) -> float:
        """The cell of the largest coordinate takes away at least 0.15 of its square, which is at least
        ‖x‖²/size; and no more than ``nmse`` is left where that is the goal.
        """
        if size == 0:
            return 0.0
        return 1 - 0.15 / size

    def max_bytes(self, size: int) -> int:
        """No coding is longer than fixed width."""
        return HEAD + max_integer_bytes(size, self._most(size)) if size else 0

    def _most(self, size: int) -> int:
        return scaled.most_steps(size, float(self.goal.value) if self.goal.kind == "step" else None)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Step, places, integers."""
        from qafel.quantizers import dither_kernels as kernels

        del seed
        x = vectors.as_vector(x, None if self.layout is None else self.layout.size)
        if not x.size:
            return b""
        if self.layout is not None:
            if not vectors.is_finite(x):
                raise vectors.not_finite(x)
            x = spatial.forward(x, self.layout)
        found = scaled.normalise(x)
        q = np.zeros(x.size, np.int16)
        step = self._step(found)
        if step == 0:
            return scaled.head(step, 0) + bytes(PLACES) + encode_integers(q, self.coding)
        flat = vectors.read_only(found.x)
        over_ranges(lambda a, b: kernels.deadzone_codes(flat, step, ROUNDING, a, b, q), x.size, GROUP)
        counts, sums = _cells(flat, step)
        return (
            scaled.head(step, found.exponent) + bytes(_places(counts, sums)) + encode_integers(q, self.coding)
        )

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

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        self._check(data, size)
        out = vectors.zeros(size)
        replace(self, layout=None).decode_add(data, out)
        return out if self.layout is None else scaled.within(spatial.inverse(out, self.layout))

    def _check(self, data: bytes, size: int) -> None:
        """FrameError where so many bytes cannot be so many coordinates."""
        if not size and not data:
            return
        if not (size and HEAD < len(data) <= self.max_bytes(size)):
            raise FrameError(f"{self.spec} cannot have {len(data)} bytes for {size} coordinates")
        check_integers(memoryview(data)[HEAD:], size, self._most(size))

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Integers, and what each stands for."""
        from qafel.quantizers import dither_kernels as kernels

        vectors.check_target(out)
        size = out.size
        if self.layout is not None:
            if size != self.layout.size:
                raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {size}")
            out += np.float32(weight) * self.decode(data, size)
            return
        self._check(data, size)
        if not size:
            return
        step, exponent = scaled.read_head(data, self.spec)
        q = decode_integers(memoryview(data)[HEAD:], size, self._most(size))
        if step == 0:
            if q.any():
                raise FrameError(f"{self.spec}: numbers without a step")
            return
        places = np.frombuffer(data, np.uint8, PLACES, scaled.HEAD)
        values = (_levels(places, int(np.abs(q).max()) + 1) * float(step)).astype(np.float32)
        kernels.levels_add(q, scaled.rescale(values, exponent), np.float32(weight), out)


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
