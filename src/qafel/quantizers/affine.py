"""``affine``: min–max quantization with deterministic rounding, the "n-bit qsgd" of the paper's CelebA
tables. Biased.

The range of a tensor, extended to include zero, is divided into 2ⁿ − 1 steps; zero is a grid point. With a
layout, every tensor of two or more dimensions has its own range, and biases and norm parameters (one
dimension) are sent as float32; without one the whole vector is one tensor. The step is a float64 without a
lower limit, so that the quantizer is scale invariant: a limit would round small deltas to zero.

Payload, tensor by tensor: step (float64), zero point (uint16), codes packed by ``qafel.coding.bitplanes``; or
the float32 numbers.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP, packed_bytes
from qafel.coding.integers import Bytes
from qafel.coding.threads import over_ranges
from qafel.errors import FrameError, VectorError
from qafel.quantizers._base import Additive, finite_payload, finite_vector, register_quantizer
from qafel.quantizers._scaled import LARGEST
from qafel.quantizers._spec import Arguments
from qafel.vectors import Layout, Vector

HEAD = 10


@register_quantizer
@dataclass(frozen=True)
class Affine(Additive):
    """The nearest of 2ⁿ grid points between the smallest and the largest coordinate of a tensor."""

    name = "affine"
    example = "affine:4"
    unbiased = False

    bits: int
    layout: Layout | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``BITS``."""
        arguments.expect("bits", ())
        bits = arguments.integer("bits", 1, 16)
        if bits is None:
            arguments.fail_with("needs a number of bits", cls.example)
        return cls(bits)

    @property
    def spec(self) -> str:
        """``affine:BITS``."""
        return f"affine:{self.bits}"

    @property
    def steps(self) -> int:
        """The number of steps between the smallest and the largest code."""
        return (1 << self.bits) - 1

    def bind(self, layout: Layout) -> "Affine":
        """Return this quantizer with a range for every tensor of ``layout``."""
        return Affine(self.bits, layout)

    def tensors(self, size: int) -> list[tuple[slice, bool]]:
        """Return the place of every tensor, and whether it is quantized."""
        if self.layout is None:
            return [(slice(0, size), True)] if size else []
        if self.layout.size != size:
            raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {size}")
        return [(place, len(tensor.shape) > 1) for tensor, place in self.layout.slices()]

    def omega(self, size: int) -> float:
        """Return n/(2L² + n − 2) for L steps and n coordinates of the largest quantized tensor, attained.

        An error is at most half a step and at most |x|; the squares of the two extremes sum to at least
        (L·step)²/2.
        """
        counts = [place.stop - place.start for place, quantized in self.tensors(size) if quantized]
        return max((n / (2 * self.steps**2 + n - 2) for n in counts if n > 1), default=0.0)

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        total = 0
        for place, quantized in self.tensors(size):
            count = place.stop - place.start
            total += HEAD + packed_bytes(count, self.bits) if quantized else 4 * count
        return total

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the payloads of the tensors."""
        del seed
        x = finite_vector(x)
        pieces = [
            self._encode(x[p]) if quantized else x[p].tobytes() for p, quantized in self.tensors(x.size)
        ]
        return b"".join(pieces)

    def _encode(self, x: Vector) -> bytes:
        from qafel.quantizers import affine_kernels

        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        step = (high - low) / self.steps
        zero = round(-low / step) if step else 0
        out = np.empty(packed_bytes(x.size, self.bits), np.uint8)
        x.flags.writeable = False
        kernel, max_code, width = affine_kernels.affine_codes, self.steps, self.bits
        over_ranges(lambda a, b: kernel(x, step, zero, max_code, width, a, b, out), x.size, GROUP)
        return np.float64(step).tobytes() + np.uint16(zero).tobytes() + out.tobytes()

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Check all tensors, then add them."""
        from qafel.quantizers import affine_kernels

        vectors.check_target(out)
        factor, width = np.float32(weight), self.bits
        for place, piece, step, zero in self._checked(data, out.size):
            if step is None:
                out[place] += factor * piece.view(np.float32)
            else:
                affine_kernels.affine_add(piece, step, zero, width, factor, out[place])

    def _checked(self, data: bytes, size: int) -> list[tuple[slice, Bytes, float | None, int]]:
        """Return (place, bytes, step or None for float32 numbers, zero point) of every tensor, or raise
        FrameError.
        """
        from qafel.coding import bitplanes_kernels

        self.check(data, size)
        raw, at, pieces = np.frombuffer(data, np.uint8), 0, []
        for place, quantized in self.tensors(size):
            count, step, zero = place.stop - place.start, None, 0
            if quantized:
                step = float(raw[at : at + 8].view(np.float64)[0])
                zero = int(raw[at + 8 : at + HEAD].view(np.uint16)[0])
                at += HEAD
                if not 0 <= step * self.steps <= 2 * LARGEST * (1 + 1e-12) or zero > self.steps:
                    raise FrameError(f"{self.spec}: impossible step or zero point: {step:g}, {zero}")
            piece = raw[at : at + (packed_bytes(count, self.bits) if quantized else 4 * count)]
            at += piece.size
            if quantized and bitplanes_kernels.invalid_codes(piece, self.bits, self.steps, count):
                raise FrameError(f"{self.spec}: the payload has stray bits")
            if not quantized:
                finite_payload(piece.view(np.float32))
            pieces.append((place, piece, step, zero))
        return pieces
