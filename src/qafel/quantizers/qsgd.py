"""``qsgd``: stochastic rounding to a few levels of a norm (Alistarh et al. 2017), the paper's main example.

With s levels and the norm of a bucket, coordinate x becomes a whole number of steps norm/s: one of the two
neighbours of x·s/norm, drawn so that the mean is x. The payload is the float32 norm of every bucket, then the
codes (sign included, as an offset: code − s steps) in ``bits`` bits each, plane-packed; with ``coding=range``
or ``rans`` the numbers of steps as ``qafel.coding.integers`` codes them.

One L2 norm over a whole long vector is the textbook; it is not a contraction there (δ < 0). Buckets and the
max norm are what practice uses: ``qsgd:4,bucket=256,norm=max`` has ω = 0.75 at worst and about 0.03 on real
deltas.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from qafel import vectors
from qafel.coding.integers import CODINGS, decode_integers, encode_integers, max_integer_bytes
from qafel.coding.planes import GROUP, packed_bytes
from qafel.coding.work import CHUNK, over_ranges, scratch
from qafel.errors import FrameError, VectorError
from qafel.quantizers.base import Dense, register
from qafel.quantizers.spec import Arguments
from qafel.streams import keys
from qafel.vectors import Vector

MAX_BITS = 16


@register
@dataclass(frozen=True)
class QSGD(Dense):
    """Stochastic rounding to ``levels`` steps each side of zero, per ``bucket`` (None: the whole vector)."""

    name = "qsgd"
    example = "qsgd:4"

    levels: int
    bucket: int | None = None
    norm: str = "l2"
    coding: str = "fixed"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """``qsgd:BITS`` or ``qsgd:levels=S``, then ``bucket=B``, ``norm=l2|max`` and
        ``coding=fixed|range|rans``.
        """
        arguments.expect("bits", ("levels", "bucket", "norm", "coding"))
        bits = arguments.integer("bits", 2, MAX_BITS)
        levels = arguments.integer("levels", 1, (1 << (MAX_BITS - 1)) - 1)
        if bits is None and levels is None:
            options = "".join(f",{item}" for item in arguments.items)
            arguments.fail_with("needs bits (sign included) or levels", f"qsgd:4{options}")
        if bits is not None and levels is not None:
            arguments.fail(arguments.places["levels"], "takes bits or levels, not both", None)
        bucket = arguments.integer("bucket", 1, vectors.MAX_SIZE)
        norm = arguments.choice("norm", ("l2", "max")) or "l2"
        coding = arguments.choice("coding", CODINGS) or "fixed"
        return cls(levels or (1 << ((bits or 0) - 1)) - 1, bucket, norm, coding)

    @cached_property
    def bits(self) -> int:
        """Bits a code takes: enough for −s … s."""
        return (2 * self.levels).bit_length()

    @property
    def spec(self) -> str:
        """Bits where they say it all, levels otherwise; defaults left out."""
        whole = self.levels == (1 << (self.bits - 1)) - 1 and self.bits >= 2
        parts = [f"qsgd:{self.bits}" if whole else f"qsgd:levels={self.levels}"]
        if self.bucket is not None:
            parts.append(f"bucket={self.bucket}")
        if self.norm != "l2":
            parts.append(f"norm={self.norm}")
        if self.coding != "fixed":
            parts.append(f"coding={self.coding}")
        return ",".join(parts)

    @property
    def unbiased(self) -> bool:
        """The mean of the two neighbours is x."""
        return True

    def omega(self, size: int) -> float:
        """L2: Lemma 3.1 of QSGD, min(B/s², √B/s). Max: (√(1 + (B − 1)/s²) − 1)/2, attained."""
        b = min(size, self.bucket or size)
        if b <= 1:
            return 0.0
        if self.norm == "max":
            return (math.sqrt(1 + (b - 1) / self.levels**2) - 1) / 2
        return min(b / self.levels**2, math.sqrt(b) / self.levels)

    def max_bytes(self, size: int) -> int:
        """Exactly this many where the width is fixed."""
        head = 4 * self._buckets(size)
        if self.coding != "fixed":
            return head + max_integer_bytes(size, self.levels)
        return head + packed_bytes(size, self.bits)

    def _buckets(self, size: int) -> int:
        return -(-size // self.bucket) if self.bucket else min(size, 1)

    @cached_property
    def _kernels(self) -> Any:
        """Imported with the first vector, not with the package."""
        from qafel.quantizers import kernels

        return kernels

    def encode(self, x: Vector, seed: int) -> bytes:
        """Norms, then codes."""
        if self.coding != "fixed":
            return self._coded(self._fixed.encode(x, seed), np.size(x))
        kernels = self._kernels
        x = vectors.as_vector(x)
        size, head = x.size, 4 * self._buckets(x.size)
        out = scratch(head + packed_bytes(size, self.bits))
        bits, norms, codes = x.view(np.uint32), out[:head].view(np.uint32), out[head:]
        bits.flags.writeable = False
        bucket, l2 = self.bucket or max(size, 1), self.norm == "l2"
        key0, key1 = keys(seed)
        draw = (bucket, self.levels, self.bits, key0, key1)
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

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Codes times steps, added where they belong."""
        vectors.check_target(out)
        size = out.size
        if self.coding != "fixed":
            self._fixed.decode_add(self._packed(data, size), out, weight)
            return
        self.check_length(data, size)
        head = 4 * self._buckets(size)
        raw = np.frombuffer(data, np.uint8)
        scale = (raw[:head].view(np.float32), self.bucket or max(size, 1), self.levels)
        if self._kernels.qsgd_decode(raw[head:], *scale, self.bits, np.float32(weight), out):
            raise FrameError(f"{self.spec}: an impossible norm, an impossible code, or stray bits")

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        if self.coding != "fixed":
            return self._fixed.decode(self._packed(data, size), size)
        return super().decode(data, size)

    @cached_property
    def _fixed(self) -> "QSGD":
        """The same with codes of fixed width, which the others are made from."""
        return QSGD(self.levels, self.bucket, self.norm)

    def _coded(self, payload: bytes, size: int) -> bytes:
        """Norms, then integers in a shorter coding."""
        from qafel.coding import kernels

        head = 4 * self._buckets(size)
        q = np.empty(size, np.int16)
        kernels.unpack_integers(np.frombuffer(payload, np.uint8, offset=head), self.levels, self.bits, q)
        return payload[:head] + encode_integers(q, self.coding)

    def _packed(self, data: bytes, size: int) -> bytes:
        """The inverse of ``_coded``, or FrameError."""
        from qafel.coding import kernels

        head = 4 * self._buckets(size)
        if len(data) < head:
            raise FrameError(f"{self.spec} needs more than {len(data)} bytes for {size} coordinates")
        q = decode_integers(memoryview(data)[head:], size, self.levels)
        out = np.empty(packed_bytes(size, self.bits), np.uint8)
        kernels.pack_integers(q, self.levels, self.bits, out)
        return data[:head] + out.tobytes()
