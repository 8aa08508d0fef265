"""``rotated``: a random rotation, a dead zone, an entropy coder. Unbiased, for clients, below one bit.

A rotation (``_rotation``) makes the coordinates y of every block look normally distributed. Rounding towards
zero, q = sign(y)·⌊|y|/s + ⅓⌋, keeps the few large ones; the range coder needs few bits for the zeros. The
factor ‖y‖²/⟨y, c⟩ of a block, c being the points of q, makes the result unbiased over rotations, as in EDEN.
At half a bit the error is 0.6 of that of ``dither``; from one bit on ``dither`` has the smaller error.

Bits are allocated in proportion to each block's rms, which minimises Σ power/bits.

Payload: the seed of the rotation (uint32), the exponent E of the largest factor (int16), 16 bits for every
block, then the integers in streams of 2¹⁷ coordinates (``qafel.coding.gaps``). The bits of a block are, from
the highest on, its class (5), e (5) and m (6): its factor is (1 + m/64)·2^(E − 31 + e), or 0 if all bits are.
"""

import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import numpy as np

from qafel import vectors
from qafel.coding.gaps import ROUNDING, tables
from qafel.coding.integers import read_streams, write_streams
from qafel.coding.threads import over_parts, scratch
from qafel.errors import FrameError
from qafel.quantizers import _rotation, _scaled
from qafel.quantizers._base import Additive, register_quantizer
from qafel.quantizers._rotation import BLOCK
from qafel.quantizers._spec import Arguments
from qafel.streams import keys
from qafel.vectors import Vector

HEAD = struct.Struct("<Ih")
STREAM = 1 << 17
MAX_EXPONENT, SAFE_EXPONENT, SAFE_SCALE = 300, 60, 100
"""Limits of E: for any payload, for factors that are normal numbers; of the exponent of a scale."""
STEPS = np.array(
    [
        (0.25, 3.9959),
        (0.35, 3.4924),
        (0.5, 2.9536),
        (0.7, 2.4413),
        (1.0, 1.8984),
        (1.4, 1.3960),
        (2.0, 0.8757),
        (2.5, 0.5508),
        (3.0, 0.3125),
        (3.5, 0.1590),
        (4.0, 0.0725),
        (4.5, 0.0296),
    ]
)
"""Steps in units of the rms, and the bits per coordinate of normally distributed numbers."""
MAX_MAGNITUDE = int(BLOCK**0.5 / STEPS[0, 0]) + 2


@register_quantizer
@dataclass(frozen=True)
class Rotated(Additive):
    """A rotation, a dead zone, an entropy coder, and a factor that makes it unbiased over rotations."""

    name = "rotated"
    example = "rotated:bits=0.5"
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
        blocks = _rotation.blocks(size)
        return HEAD.size + 2 * blocks + 2 * BLOCK * blocks + 6 * _streams(size) if size else 0

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the length of the payload is impossible."""
        least = HEAD.size + 2 * _rotation.blocks(size) + 6 * _streams(size) - 4 if size else 0
        if not least <= len(data) <= self.max_bytes(size):
            raise self.wrong_length(len(data), size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the head, the blocks, the integers."""
        from qafel.quantizers import rotated_kernels as kernels

        x = vectors.as_vector(x)
        if not x.size:
            return b""
        flat, blocks, signs = vectors.read_only(x), _rotation.blocks(x.size), _rotation.draw_seed(seed)
        powers, steps, factors = np.empty(blocks), np.empty(blocks), np.empty(blocks, np.float32)
        classes, codes, random = np.empty(blocks, np.uint8), np.empty(blocks, np.uint16), keys(signs)
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

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Add the points times the factors, rotated back."""
        from qafel.quantizers import rotated_kernels as kernels

        vectors.check_target(out)
        self.check(data, out.size)
        if not out.size:
            return
        signs, top = HEAD.unpack_from(data)
        blocks = _rotation.blocks(out.size)
        codes = np.frombuffer(data, np.uint16, blocks, HEAD.size)
        body = np.frombuffer(data, np.uint8, offset=HEAD.size + 2 * blocks)
        streams = read_streams(body, _streams(out.size))
        if abs(top) > MAX_EXPONENT or streams is None:
            raise FrameError(f"{self.spec}: impossible exponent {top} or streams")
        places, values = np.empty(blocks * BLOCK, np.int32), np.empty(blocks * BLOCK, np.int16)

        def read(start: int) -> int:
            end, mine = start + STREAM, slice(start // BLOCK, (start + STREAM) // BLOCK)
            parts = tables(), MAX_MAGNITUDE, places[start:end], values[start:end]
            return int(kernels.read(streams[start // STREAM], codes[mine], *parts))

        counts = over_parts(read, out.size, STREAM)
        if min(counts) < 0:
            raise FrameError(f"{self.spec}: these bytes are not a coding of {out.size} coordinates")
        safe, random = abs(top) <= SAFE_EXPONENT, keys(signs)
        target, share = (out, np.float32(weight)) if safe else (vectors.zeros(out.size), np.float32(1))

        def add(start: int) -> None:
            end, mine = start + counts[start // STREAM], slice(start // BLOCK, (start + STREAM) // BLOCK)
            parts = start, codes[mine], top if safe else 0, random, share, target
            kernels.add(places[start:end], values[start:end], *parts)

        over_parts(add, out.size, STREAM)
        if not safe:
            out += np.float32(weight) * _scaled.rescale(target, -top)


def _streams(size: int) -> int:
    return -(-size // STREAM)


def _encode_stream(
    x: Vector, start: int, scale: Any, steps: Any, random: Any, factors: Any, classes: Any
) -> bytes:
    """Quantize the blocks from ``start`` on; write their factors and classes, return their integers."""
    from qafel.coding import gaps_kernels
    from qafel.quantizers import rotated_kernels as kernels

    size = steps.size * BLOCK + 1
    room = scratch(6 * size + 2 * gaps_kernels.max_words(size))
    places, values = room[: 4 * size].view(np.int32), room[4 * size : 6 * size].view(np.int16)
    known = tables()
    count = kernels.quantize(x, start, scale, steps, random, known.classes, factors, classes, places, values)
    out = room[6 * size :].view(np.uint16)
    return out[: gaps_kernels.encode(places[:count], values[:count], classes, known, out)].tobytes()
