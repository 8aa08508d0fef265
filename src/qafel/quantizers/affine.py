"""``affine``: min–max quantization with deterministic rounding, the "n-bit qsgd" of the paper's CelebA
tables. Biased.

The range of a tensor, extended to include zero, is divided into 2ⁿ − 1 steps; zero is a grid point. With a
layout, every tensor of two or more dimensions has its own range, and biases and norm parameters (one
dimension) are sent as float32; without one the whole vector is one tensor. The step is a float64 without a
lower limit, so that the quantizer is scale invariant: a limit would round small deltas to zero.

Payload, tensor by tensor: step (float64), zero point (uint16), codes packed by ``qafel.coding.bitplanes``; or
the float32 numbers.
"""

import struct
from dataclasses import dataclass, field

import numpy as np

from qafel.coding.bitplanes import GROUP, packed_bytes
from qafel.coding.integers import Bytes
from qafel.coding.threads import over_ranges
from qafel.errors import FrameError
from qafel.lazy import Lazy
from qafel.quantizers._base import Bits, check_finite, finite_payload, register_quantizer
from qafel.quantizers._scaled import LARGEST
from qafel.vectors import Layout, Vector

HEAD = struct.Struct("<dH")

bitplanes_kernels = Lazy("qafel.coding.bitplanes_kernels")
kernels = Lazy("qafel.quantizers.affine_kernels")


@register_quantizer
@dataclass(frozen=True)
class Affine(Bits):
    """The nearest of 2ⁿ grid points between the smallest and the largest coordinate of a tensor."""

    name = "affine"
    example = "affine:4"
    unbiased = False
    max_bits = 16

    layout: Layout | None = field(default=None, repr=False)

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
        self.check_size(size)
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
            total += HEAD.size + packed_bytes(count, self.bits) if quantized else 4 * count
        return total

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the payloads of the tensors."""
        del seed
        check_finite(x)
        places = self.tensors(x.size)
        return b"".join([self._encode(x[p]) if quantized else x[p].tobytes() for p, quantized in places])

    def _encode(self, x: Vector) -> bytes:
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        step = (high - low) / self.steps
        zero = round(-low / step) if step else 0
        out = np.empty(packed_bytes(x.size, self.bits), np.uint8)
        x.flags.writeable = False
        rule = step, zero, self.steps, self.bits
        over_ranges(lambda a, b: kernels.affine_codes(x, *rule, a, b, out), x.size, GROUP)
        return HEAD.pack(step, zero) + out.tobytes()

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Check all tensors, then add them."""
        for place, piece, step, zero in self._checked(data, out.size):
            if step is None:
                out[place] += weight * piece.view(np.float32)
            else:
                kernels.affine_add(piece, step, zero, self.bits, weight, out[place])

    def _checked(self, data: bytes, size: int) -> list[tuple[slice, Bytes, float | None, int]]:
        """Return (place, bytes, step or None for float32 numbers, zero point) of every tensor, or raise
        FrameError.
        """
        raw, at, pieces = np.frombuffer(data, np.uint8), 0, []
        for place, quantized in self.tensors(size):
            count, step, zero = place.stop - place.start, None, 0
            if quantized:
                step, zero = HEAD.unpack_from(data, at)
                at += HEAD.size
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
