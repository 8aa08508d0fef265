"""``affine``: min–max quantization with deterministic rounding, the "n-bit qsgd" of the paper's CelebA
tables.

The range of a tensor, stretched to include zero, is cut into 2ⁿ − 1 steps; zero is one of the grid points.
With a layout every tensor of two or more dimensions has a range of its own, and biases and norm parameters
(one dimension) travel as float32; without one the whole vector is one tensor. Biased. The step is a float64
and has no floor: the quantizer stays scale invariant, where a floored step rounds small deltas to nothing.

Payload, tensor by tensor: step (float64), zero point (uint16), plane-packed codes; or the raw float32
numbers.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.planes import GROUP, packed_bytes
from qafel.coding.work import over_ranges
from qafel.errors import FrameError, VectorError
from qafel.quantizers.base import Dense, register
from qafel.quantizers.spec import Arguments
from qafel.vectors import Layout, Vector

HEAD = 10
LARGEST = float(np.finfo(np.float32).max)


@register
@dataclass(frozen=True)
class Affine(Dense):
    """Nearest of 2ⁿ grid points between the smallest and the largest coordinate of a tensor."""

    name = "affine"
    example = "affine:4"

    bits: int
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``affine:BITS``."""
        arguments.expect("bits", ())
        bits = arguments.integer("bits", 1, 16)
        if bits is None:
            arguments.fail_with("needs bits", cls.example)
        return cls(bits)

    @property
    def spec(self) -> str:
        """``affine:BITS``."""
        return f"affine:{self.bits}"

    @property
    def unbiased(self) -> bool:
        """Deterministic rounding is biased."""
        return False

    @property
    def steps(self) -> int:
        """Steps between the smallest and the largest code."""
        return (1 << self.bits) - 1

    def bind(self, layout: Layout) -> "Affine":
        """With a range per tensor of ``layout``."""
        return Affine(self.bits, layout)

    def tensors(self, size: int) -> list[tuple[slice, bool]]:
        """The places of the tensors, and whether each is quantized."""
        if self.layout is None:
            return [(slice(0, size), True)] if size else []
        if self.layout.size != size:
            raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {size}")
        return [(place, len(tensor.shape) > 1) for tensor, place in self.layout.slices()]

    def omega(self, size: int) -> float:
        """n/(2L² + n − 2) for L steps and the largest quantized tensor's n, attained.

        An error is at most half a step, and at most |x|; the two ends alone weigh at least (L·step)²/2.
        """
        counts = [place.stop - place.start for place, quantized in self.tensors(size) if quantized]
        return max((n / (2 * self.steps**2 + n - 2) for n in counts if n > 1), default=0.0)

    def max_bytes(self, size: int) -> int:
        """Exactly this many, always."""
        total = 0
        for place, quantized in self.tensors(size):
            count = place.stop - place.start
            total += HEAD + packed_bytes(count, self.bits) if quantized else 4 * count
        return total

    def encode(self, x: Vector, seed: int) -> bytes:
        """Tensor after tensor."""
        del seed
        x = vectors.as_vector(x)
        if not vectors.is_finite(x):
            raise vectors.not_finite(x)
        pieces = [
            self._encode(x[p]) if quantized else x[p].tobytes() for p, quantized in self.tensors(x.size)
        ]
        return b"".join(pieces)

    def _encode(self, x: Vector) -> bytes:
        from qafel.quantizers import kernels

        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        step = (high - low) / self.steps
        zero = round(-low / step) if step else 0
        out = np.empty(packed_bytes(x.size, self.bits), np.uint8)
        x.flags.writeable = False
        kernel, top, width = kernels.affine_codes, self.steps, self.bits
        over_ranges(lambda a, b: kernel(x, step, zero, top, width, a, b, out), x.size, GROUP)
        return np.float64(step).tobytes() + np.uint16(zero).tobytes() + out.tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Checked first, then added tensor after tensor."""
        from qafel.quantizers import kernels

        vectors.check_target(out)
        self.check_length(data, out.size)
        factor, width = np.float32(weight), self.bits
        for target, piece, step, zero in self._checked(data, out):
            if step is None:
                target += factor * piece.view(np.float32)
            else:
                kernels.affine_add(piece, step, zero, width, factor, target)

    def _checked(
        self, data: bytes, out: Vector
    ) -> list[tuple[Vector, "np.ndarray[tuple[int], np.dtype[np.uint8]]", float | None, int]]:
        """(where to add, bytes, step or None for raw numbers, zero point) of every tensor, or FrameError."""
        from qafel.quantizers import kernels

        raw, at, pieces = np.frombuffer(data, np.uint8), 0, []
        for place, quantized in self.tensors(out.size):
            count, step, zero = place.stop - place.start, None, 0
            if quantized:
                step = float(raw[at : at + 8].view(np.float64)[0])
                zero = int(raw[at + 8 : at + HEAD].view(np.uint16)[0])
                at += HEAD
                if not 0 <= step * self.steps <= 2 * LARGEST * (1 + 1e-12) or zero > self.steps:
                    raise FrameError("the payload has an impossible step or zero point")
            piece = raw[at : at + (packed_bytes(count, self.bits) if quantized else 4 * count)]
            at += piece.size
            if quantized and kernels.invalid_codes(piece, self.bits, self.steps, count):
                raise FrameError("the payload has stray bits")
            if not quantized and not vectors.is_finite(piece.view(np.float32)):
                raise FrameError("the payload has a NaN or an infinity")
            pieces.append((out[place], piece, step, zero))
        return pieces
