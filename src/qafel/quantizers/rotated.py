"""``rotated``: a random rotation, a dead zone, an entropy coder. Unbiased, for clients, below one bit.

A rotation (see ``eden``) makes the coordinates y of every block look normally distributed. Rounding towards
zero, q = sign(y)·⌊|y|/s + ⅓⌋, keeps the few large ones; the range coder needs few bits for the zeros. The
factor ‖y‖²/⟨y, c⟩ of a block, c being the points of q, makes the result unbiased over rotations, as in EDEN.
At half a bit the error is 0.6 of that of ``dither``; from one bit on ``dither`` has the smaller error.

Bits are allocated in proportion to each block's rms, which minimises Σ power/bits.

Payload: the seed of the rotation (uint32), the exponent E of the largest factor (int16), 16 bits for every
block, then the integers in streams of 2¹⁷ coordinates (``qafel.coding.gaps``). The bits of a block are, from
the highest on, its class (5), e (5) and m (6): its factor is (1 + m/64)·2^(E − 31 + e), or 0 if all bits are.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np

from qafel import vectors
from qafel.coding.gaps import BLOCK, ROUNDING, tables
from qafel.coding.integers import read_streams, write_streams
from qafel.coding.threads import over_parts, scratch
from qafel.errors import FrameError
from qafel.lazy import Lazy
from qafel.quantizers._base import Additive, register_quantizer
from qafel.quantizers._rotation import HEAD, blocks, draw_seed
from qafel.quantizers._scaled import rescale
from qafel.quantizers._spec import Arguments
from qafel.streams import keys
from qafel.vectors import Vector

STREAM = 1 << 17
MAX_EXPONENT, SAFE_EXPONENT, SAFE_SCALE = 300, 60, 100
"""Limits of E: for any payload, for factors that are normal numbers; of the exponent of a scale."""
STEPS = np.array([
    (0.25, 3.9959), (0.35, 3.4924), (0.5, 2.9536), (0.7, 2.4413), (1.0, 1.8984), (1.4, 1.3960),
    (2.0, 0.8757), (2.5, 0.5508), (3.0, 0.3125), (3.5, 0.1590), (4.0, 0.0725), (4.5, 0.0296),
])  # fmt: skip
"""Steps in units of the rms, and the bits per coordinate of normally distributed numbers."""
MAX_MAGNITUDE = int(BLOCK**0.5 / STEPS[0, 0]) + 2

gaps_kernels = Lazy("qafel.coding.gaps_kernels")
kernels = Lazy("qafel.quantizers.rotated_kernels")


@register_quantizer
@dataclass(frozen=True)
class Rotated(Additive):
    """A rotation, a dead zone, an entropy coder, and a factor that makes it unbiased over rotations."""

    name = "rotated"
    example = "rotated:bits=0.4"
    unbiased = True

    bits: Decimal

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``bits=B``."""
        arguments.expect(None, ("bits",))
        if "bits" not in arguments.places:
            arguments.fail_with("needs bits=…", cls.example)
        return cls(arguments.decimal("bits", Decimal("0.1"), Decimal(4)))

    @property
    def spec(self) -> str:
        """``rotated:bits=B``."""
        return f"rotated:bits={self.bits:f}"

    def omega(self, size: int) -> float:
        """Return a bound that holds for every rotation: 1/cos² − 1 of the angle between y and its points, of
        which at least one is not zero.
        """
        return BLOCK / float(STEPS[0, 0] * (1 - ROUNDING)) ** 2 - 1 if size else 0.0

    def max_bytes(self, size: int) -> int:
        """Return a bound: a coordinate takes 14 bits at most, and those of an excess that is rare because
        the squares of a block's integers add up to 2¹⁴ at most.
        """
        count = blocks(size)
        return HEAD.size + 2 * count + 2 * BLOCK * count + 6 * _streams(size) if size else 0

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the length of the payload is impossible."""
        least = HEAD.size + 2 * blocks(size) + 6 * _streams(size) - 4 if size else 0
        if not least <= len(data) <= self.max_bytes(size):
            raise self.wrong_length(len(data), size)

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the head, the blocks, the integers."""
        flat, count, signs = vectors.read_only(x), blocks(x.size), draw_seed(seed)
        powers, steps, factors = np.empty(count), np.empty(count), np.empty(count, np.float32)
        classes, codes, random = np.empty(count, np.uint8), np.empty(count, np.uint16), keys(signs)
        largest = max(
            over_parts(lambda start: kernels.powers(flat, start, start + STREAM, powers), x.size, STREAM)
        )
        if not math.isfinite(powers.sum()):
            raise vectors.not_finite(x)
        exponent = -math.frexp(largest)[1]
        scale = np.float32(2.0**exponent if abs(exponent) < SAFE_SCALE else 1)
        if scale == 1:
            flat = np.ldexp(flat, exponent)
        kernels.choose_steps(powers, float(self.bits), STEPS, steps)

        def stream(start: int) -> bytes:
            mine = slice(start // BLOCK, (start + STREAM) // BLOCK)
            return _encode_stream(flat, start, scale, steps[mine], random, factors[mine], classes[mine])

        streams = over_parts(stream, x.size, STREAM)
        top = kernels.pack(factors, classes, codes)
        head = HEAD.pack(signs, top - exponent)
        return head + codes.tobytes() + write_streams(streams)

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Add the points times the factors, rotated back."""
        (signs, top), count = HEAD.unpack_from(data), blocks(out.size)
        codes = np.frombuffer(data, np.uint16, count, HEAD.size)
        body = np.frombuffer(data, np.uint8, offset=HEAD.size + 2 * count)
        streams = read_streams(body, _streams(out.size))
        if abs(top) > MAX_EXPONENT or streams is None:
            raise FrameError(f"{self.spec}: impossible exponent {top} or streams")
        room = scratch(6 * count * BLOCK)
        places, values = room[: 4 * count * BLOCK].view(np.int32), room[4 * count * BLOCK :].view(np.int16)

        def read(start: int) -> int:
            end, mine = start + STREAM, slice(start // BLOCK, (start + STREAM) // BLOCK)
            parts = tables(), MAX_MAGNITUDE, places[start:end], values[start:end]
            return int(kernels.read(streams[start // STREAM], codes[mine], *parts))

        counts = over_parts(read, out.size, STREAM)
        if min(counts) < 0:
            raise FrameError(f"{self.spec}: these bytes are not a coding of {out.size} coordinates")
        safe, random = abs(top) <= SAFE_EXPONENT, keys(signs)
        target, share = (out, weight) if safe else (vectors.zeros(out.size), np.float32(1))

        def add(start: int) -> None:
            end, mine = start + counts[start // STREAM], slice(start // BLOCK, (start + STREAM) // BLOCK)
            parts = start, codes[mine], top if safe else 0, random, share, target
            kernels.add(places[start:end], values[start:end], *parts)

        over_parts(add, out.size, STREAM)
        if not safe:
            out += weight * rescale(target, -top)


def _streams(size: int) -> int:
    return -(-size // STREAM)


def _encode_stream(
    x: Vector, start: int, scale: Any, steps: Any, random: Any, factors: Any, classes: Any
) -> bytes:
    """Quantize the blocks from ``start`` on; write their factors and classes, return their integers."""
    size = steps.size * BLOCK + 1
    room = scratch(6 * size + 2 * gaps_kernels.max_words(size))
    places, values = room[: 4 * size].view(np.int32), room[4 * size : 6 * size].view(np.int16)
    known = tables()
    count = kernels.quantize(x, start, scale, steps, random, known.classes, factors, classes, places, values)
    out = room[6 * size :].view(np.uint16)
    return out[: gaps_kernels.encode(places[:count], values[:count], classes, known, out)].tobytes()
