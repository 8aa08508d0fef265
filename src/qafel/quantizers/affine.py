"""``affine``: min–max quantization with deterministic rounding, the "n-bit qsgd" of the paper's CelebA
tables.

The range of a tensor, stretched to include zero, is cut into 2ⁿ − 1 steps; zero is one of the grid points.
With a layout every tensor of two or more dimensions has a range of its own, and biases and norm parameters
(one dimension) travel as float32; without one the whole vector is one tensor. Biased. The step is a float64
and has no floor: the quantizer stays scale invariant, where a floored step rounds small deltas to nothing.

Payload, tensor by tensor: step (float64), zero point (uint16), plane-packed codes; or the raw float32
numbers. With ``coding=range`` or ``rans``: step, zero point, the number of bytes (uint32) and the codes less
the zero point as ``qafel.coding.integers`` codes them.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import CODINGS, Bytes, decode_integers, encode_integers, max_integer_bytes
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
    coding: str = "fixed"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``affine:BITS``, then ``coding=fixed|range|rans``, for at most 15 bits."""
        arguments.expect("bits", ("coding",))
        bits = arguments.integer("bits", 1, 16)
        if bits is None:
            arguments.fail_with("needs bits", cls.example)
        coding = arguments.choice("coding", CODINGS) or "fixed"
        if coding != "fixed" and bits > 15:
            arguments.fail_with("codes at most 15 bits with range or rans", f"affine:15,coding={coding}")
        return cls(bits, coding=coding)

    @property
    def spec(self) -> str:
        """``affine:BITS``, and the coding where it is not fixed."""
        return f"affine:{self.bits}" + (f",coding={self.coding}" if self.coding != "fixed" else "")

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
        return Affine(self.bits, layout, self.coding)

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
        """Exactly this many where the width is fixed."""
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
        return np.float64(step).tobytes() + np.uint16(zero).tobytes() + self._coded(out, zero, x.size)

    def _coded(self, packed: Bytes, zero: int, count: int) -> bytes:
        """Codes of fixed width; or how many bytes follow (uint32) and the codes less the zero point."""
        if self.coding == "fixed":
            return packed.tobytes()
        from qafel.coding import kernels

        codes = np.empty(count, np.int16)
        kernels.unpack_integers(packed, 0, self.bits, codes, self.steps)
        integers = encode_integers((codes - np.int16(zero)).astype(np.int16), self.coding)
        return np.uint32(len(integers)).tobytes() + integers

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Checked first, then added tensor after tensor."""
        from qafel.quantizers import kernels

        vectors.check_target(out)
        factor, width = np.float32(weight), self.bits
        for place, piece, step, zero in self._checked(data, out.size):
            if step is None:
                out[place] += factor * piece.view(np.float32)
            else:
                kernels.affine_add(piece, step, zero, width, factor, out[place])

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        self._checked(data, size)
        out = vectors.zeros(size)
        self.decode_add(data, out)
        return out

    def _checked(self, data: bytes, size: int) -> list[tuple[slice, Bytes, float | None, int]]:
        """(where to add, bytes, step or None for raw numbers, zero point) of every tensor, or FrameError."""
        if self.coding == "fixed":
            self.check_length(data, size)
        from qafel.quantizers import kernels

        raw, at, pieces = np.frombuffer(data, np.uint8), 0, []
        for place, quantized in self.tensors(size):
            count, step, zero = place.stop - place.start, None, 0
            coded = quantized and self.coding != "fixed"
            if len(raw) - at < (4 * count if not quantized else HEAD + 4 if coded else HEAD):
                raise FrameError(f"{self.spec}: {len(data)} bytes are too few")
            if quantized:
                step = float(raw[at : at + 8].view(np.float64)[0])
                zero = int(raw[at + 8 : at + HEAD].view(np.uint16)[0])
                at += HEAD
                if not 0 <= step * self.steps <= 2 * LARGEST * (1 + 1e-12) or zero > self.steps:
                    raise FrameError("the payload has an impossible step or zero point")
            if coded:
                length = int(raw[at : at + 4].copy().view(np.uint32)[0])
                piece = self._packed(data[at + 4 : at + 4 + length], zero, count)
                at += 4 + length
            else:
                piece = raw[at : at + (packed_bytes(count, self.bits) if quantized else 4 * count)]
                at += piece.size
            if quantized and kernels.invalid_codes(piece, self.bits, self.steps, count):
                raise FrameError("the payload has stray bits")
            if not quantized and not vectors.is_finite(piece.view(np.float32)):
                raise FrameError("the payload has a NaN or an infinity")
            pieces.append((place, piece, step, zero))
        if at != len(raw):
            raise FrameError(f"{self.spec}: {len(data)} bytes, where there should be {at}")
        return pieces

    def _packed(self, integers: bytes, zero: int, count: int) -> Bytes:
        """The inverse of ``_coded``, or FrameError."""
        from qafel.coding import kernels

        codes = decode_integers(integers, count, self.steps).astype(np.int32) + zero
        if codes.size and not 0 <= codes.min() <= codes.max() <= self.steps:
            raise FrameError("the payload has a code out of range")
        packed = np.empty(packed_bytes(count, self.bits), np.uint8)
        kernels.pack_integers(codes.astype(np.int16), 0, self.bits, packed)
        return packed
