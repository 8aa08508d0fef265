"""``affine``: min–max quantization with deterministic rounding, the "n-bit qsgd" of the paper's CelebA
tables. Biased.

The range of a tensor, extended to include zero, is divided into 2ⁿ − 1 steps; zero is a grid point. With a
layout, every tensor of two or more dimensions has its own range, and biases and norm parameters (one
dimension) are sent as float32; without one the whole vector is one tensor. The step is a float64 without a
lower limit, so that the quantizer is scale invariant: a limit would round small deltas to zero.

Payload, tensor by tensor: step (float64), zero point (uint16), codes packed by ``qafel.coding.bitplanes``; or
the float32 numbers. With ``coding=range`` or ``rans``: step, zero point, the number of bytes that follow
(uint32), and the codes minus the zero point as ``qafel.coding.integers`` codes them.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP, packed_bytes
from qafel.coding.integers import CODINGS, Bytes, decode_integers, encode_integers, max_integer_bytes
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
    coding: str = "fixed"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``BITS``, then ``coding=fixed|range|rans``; range and rans take at most 15 bits."""
        arguments.expect("bits", ("coding",))
        bits = arguments.integer("bits", 1, 16)
        if bits is None:
            arguments.fail_with("needs a number of bits", cls.example)
        coding = arguments.choice("coding", CODINGS) or "fixed"
        if coding != "fixed" and bits > 15:
            arguments.fail_with(
                f"coding={coding} takes at most 15 bits, got {bits}", f"affine:15,coding={coding}"
            )
        return cls(bits, coding=coding)

    @property
    def spec(self) -> str:
        """``affine:BITS``, then the coding unless it is fixed."""
        return f"affine:{self.bits}" + (f",coding={self.coding}" if self.coding != "fixed" else "")

    @property
    def steps(self) -> int:
        """The number of steps between the smallest and the largest code."""
        return (1 << self.bits) - 1

    def bind(self, layout: Layout) -> "Affine":
        """Return this quantizer with a range for every tensor of ``layout``."""
        return Affine(self.bits, layout, self.coding)

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
        """Return the length of every payload of fixed width; no coding is longer."""
        total = 0
        for place, quantized in self.tensors(size):
            count = place.stop - place.start
            total += HEAD + self._codes_bytes(count) if quantized else 4 * count
        return total

    def _codes_bytes(self, count: int) -> int:
        if self.coding != "fixed":
            return 4 + max_integer_bytes(count, self.steps)
        return packed_bytes(count, self.bits)

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
        return np.float64(step).tobytes() + np.uint16(zero).tobytes() + self._coded(out, zero, x.size)

    def _coded(self, packed: Bytes, zero: int, count: int) -> bytes:
        """Return the codes in the wanted coding."""
        if self.coding == "fixed":
            return packed.tobytes()
        from qafel.coding import bitplanes_kernels

        codes = np.empty(count, np.int16)
        bitplanes_kernels.unpack_integers(packed, 0, self.bits, codes, self.steps)
        integers = encode_integers((codes - np.int16(zero)).astype(np.int16), self.coding)
        return np.uint32(len(integers)).tobytes() + integers

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

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the payload is invalid; of fixed width, if its length is wrong."""
        if self.coding == "fixed":
            super().check(data, size)
        else:
            self._checked(data, size)

    def _checked(self, data: bytes, size: int) -> list[tuple[slice, Bytes, float | None, int]]:
        """Return (place, bytes, step or None for float32 numbers, zero point) of every tensor, or raise
        FrameError.
        """
        from qafel.coding import bitplanes_kernels

        if self.coding == "fixed":
            self.check(data, size)

        raw, at, pieces = np.frombuffer(data, np.uint8), 0, []
        for place, quantized in self.tensors(size):
            count, step, zero = place.stop - place.start, None, 0
            coded = quantized and self.coding != "fixed"
            if len(raw) - at < (4 * count if not quantized else HEAD + 4 if coded else HEAD):
                raise self.wrong_length(len(data), size)
            if quantized:
                step = float(raw[at : at + 8].view(np.float64)[0])
                zero = int(raw[at + 8 : at + HEAD].view(np.uint16)[0])
                at += HEAD
                if not 0 <= step * self.steps <= 2 * LARGEST * (1 + 1e-12) or zero > self.steps:
                    raise FrameError(f"{self.spec}: impossible step or zero point: {step:g}, {zero}")
            if coded:
                length = int(raw[at : at + 4].copy().view(np.uint32)[0])
                piece = self._packed(data[at + 4 : at + 4 + length], zero, count)
                at += 4 + length
            else:
                piece = raw[at : at + (packed_bytes(count, self.bits) if quantized else 4 * count)]
                at += piece.size
            if quantized and bitplanes_kernels.invalid_codes(piece, self.bits, self.steps, count):
                raise FrameError(f"{self.spec}: the payload has stray bits")
            if not quantized:
                finite_payload(piece.view(np.float32))
            pieces.append((place, piece, step, zero))
        if at != len(raw):
            raise FrameError(f"{self.spec}: the payload has {len(data)} bytes, its tensors have {at}")
        return pieces

    def _packed(self, integers: bytes, zero: int, count: int) -> Bytes:
        """The inverse of ``_coded``. Raises FrameError."""
        from qafel.coding import bitplanes_kernels

        codes = decode_integers(integers, count, self.steps).astype(np.int32) + zero
        if codes.size and not 0 <= codes.min() <= codes.max() <= self.steps:
            raise FrameError(f"{self.spec}: a code is not between 0 and {self.steps}")
        packed = np.empty(packed_bytes(count, self.bits), np.uint8)
        bitplanes_kernels.pack_integers(codes.astype(np.int16), 0, self.bits, packed)
        return packed
