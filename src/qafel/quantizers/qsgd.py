"""``qsgd``: stochastic rounding to s levels of a norm (Alistarh et al. 2017), the paper's main example.
Unbiased.

Coordinate x becomes an integer number of steps norm/s: one of the two neighbours of x·s/norm, drawn with mean
x. Payload: the norm of every bucket (float32), then the numbers of steps plus s, packed in ``bits`` bits by
``qafel.coding.bitplanes``.

The textbook version has one L2 norm; on long vectors it is not a contraction (δ < 0). In practice one uses
buckets and the max norm: ``qsgd:4,bucket=256,norm=max`` has ω = 0.75 in the worst case, and about 0.03 on
real deltas.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from qafel import vectors
from qafel.coding.bitplanes import GROUP, packed_bytes
from qafel.coding.threads import CHUNK, over_ranges, scratch
from qafel.errors import FrameError, VectorError
from qafel.lazy import Lazy
from qafel.quantizers._base import Additive, register_quantizer
from qafel.quantizers._spec import Arguments
from qafel.streams import keys
from qafel.vectors import Vector

MAX_BITS = 16

kernels = Lazy("qafel.quantizers.qsgd_kernels")


@register_quantizer
@dataclass(frozen=True)
class QSGD(Additive):
    """Stochastic rounding to ``levels`` steps on each side of zero, per ``bucket`` (None: one for all)."""

    name = "qsgd"
    example = "qsgd:4"
    unbiased = True

    levels: int
    bucket: int | None = None
    norm: str = "l2"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``BITS`` or ``levels=S``, then ``bucket=B``, ``norm=l2|max``."""
        arguments.expect("bits", ("levels", "bucket", "norm"))
        bits = arguments.integer("bits", 2, MAX_BITS)
        levels = arguments.integer("levels", 1, (1 << (MAX_BITS - 1)) - 1)
        if bits is None and levels is None:
            options = "".join(f",{item}" for item in arguments.items)
            arguments.fail_with("needs bits (sign included) or levels", f"qsgd:4{options}")
        if bits is not None and levels is not None:
            arguments.fail(arguments.places["levels"], "takes bits or levels, not both", None)
        bucket = arguments.integer("bucket", 1, vectors.MAX_SIZE)
        norm = arguments.choice("norm", ("l2", "max")) or "l2"
        return cls(levels or (1 << ((bits or 0) - 1)) - 1, bucket, norm)

    @cached_property
    def bits(self) -> int:
        """The number of bits of a code, enough for −s … s."""
        return (2 * self.levels).bit_length()

    @property
    def spec(self) -> str:
        """Bits if they determine the levels, else levels; then the options that are not defaults."""
        whole = self.levels == (1 << (self.bits - 1)) - 1 and self.bits >= 2
        parts = [f"qsgd:{self.bits}" if whole else f"qsgd:levels={self.levels}"]
        if self.bucket is not None:
            parts.append(f"bucket={self.bucket}")
        if self.norm != "l2":
            parts.append(f"norm={self.norm}")
        return ",".join(parts)

    def omega(self, size: int) -> float:
        """Return min(B/s², √B/s) for L2 (Lemma 3.1 of QSGD); (√(1 + (B − 1)/s²) − 1)/2 for max, attained."""
        b = min(size, self.bucket or size)
        if b <= 1:
            return 0.0
        if self.norm == "max":
            return (math.sqrt(1 + (b - 1) / self.levels**2) - 1) / 2
        return min(b / self.levels**2, math.sqrt(b) / self.levels)

    def max_bytes(self, size: int) -> int:
        """Return the length of every payload."""
        return 4 * self._buckets(size) + packed_bytes(size, self.bits)

    def _buckets(self, size: int) -> int:
        return -(-size // self.bucket) if self.bucket else min(size, 1)

    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the norms, then the codes."""
        size, head = x.size, 4 * self._buckets(x.size)
        out = scratch(head + packed_bytes(size, self.bits))
        bits, norms, codes = x.view(np.uint32), out[:head].view(np.uint32), out[head:]
        bits.flags.writeable = False
        bucket, l2 = self.bucket or size, self.norm == "l2"
        draw = (bucket, self.levels, self.bits, *keys(seed))
        unit = math.lcm(bucket, GROUP)
        if self.bits <= 8 and unit <= CHUNK:
            wrong = over_ranges(
                lambda a, b: kernels.qsgd_encode(bits, norms, bucket, l2, *draw[1:], a, b, codes), size, unit
            )
        else:
            wrong = kernels.bucket_norms(bits, norms, bucket, l2, 0, size)
            if not wrong:
                kernel = kernels.qsgd_codes if self.bits <= 8 else kernels.wide_codes
                flat, scale = bits.view(np.float32), norms.view(np.float32)
                over_ranges(lambda a, b: kernel(flat, scale, *draw, a, b, codes), size, GROUP)
        if wrong:
            if vectors.is_finite(x):
                raise VectorError(
                    "the L2 norm of a bucket is beyond float32; use norm=max or smaller numbers"
                )
            raise vectors.not_finite(x)
        return out.tobytes()

    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Check norms and codes, then add the codes times the steps."""
        size, head = out.size, 4 * self._buckets(out.size)
        raw = np.frombuffer(data, np.uint8)
        scale = (raw[:head].view(np.float32), self.bucket or size, self.levels)
        if kernels.qsgd_decode(raw[head:], *scale, self.bits, weight, out):
            raise FrameError(f"{self.spec}: impossible norm, impossible code or stray bits")
