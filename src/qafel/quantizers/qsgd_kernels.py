"""Numba kernels of ``qsgd``. No fast-math: these results define x̂.

Encoding kernels work on a range of coordinates, so that threads can share a vector; they return 0 for
success. Integer arithmetic is cast back to 32 bits at every operation: numba would widen it to 64 bits and
halve the speed.
"""

import numpy as np
from numba import njit

from qafel.coding.bitplanes import GROUP
from qafel.coding.bitplanes_kernels import invalid_codes, pack, unpack
from qafel.coding.numbers import F32, F64, I32, U8, U16, U32, UINT
from qafel.streams.kernels import fill
from qafel.vector_kernels import squared_norm

HALF = GROUP // 2
BLOCK = 8 * GROUP
CHUNK = 8 * BLOCK
"""Coordinates that stay in the second-level cache between computing norms and codes."""

BELOW_ONE = F32(1 - 2.0**-24)
"""A normal float32 times this is the next smaller one."""

INFINITY = 0x7F800000
"""The bits of float32 infinity: larger magnitudes are NaN."""


@njit(nogil=True, cache=True)
def bucket_norms(bits, norm_bits, bucket, l2, start, stop):
    """Write the norm of every bucket of a range that starts at a bucket. Returns 1 if one is not finite."""
    x = bits.view(F32)
    norms = norm_bits.view(F32)
    worst = U32(0)
    k = start // bucket
    for at in range(start, stop, bucket):
        end = min(at + bucket, stop)
        if l2:
            norms[k] = F32(np.sqrt(squared_norm(x, at, end)))
        else:
            largest = U32(0)
            first = UINT(at)
            for i in range(UINT(end - at)):
                largest = max(largest, U32(bits[first + i] & U32(0x7FFFFFFF)))
            norm_bits[k] = largest
        worst = max(worst, U32(norm_bits[k] & U32(0x7FFFFFFF)))
        k += 1
    return 1 if worst >= U32(INFINITY) else 0


@njit(nogil=True, cache=True)
def _before(norm):
    """Return the power of two that makes norm/s and s/norm normal numbers; it is mostly 1."""
    if F32(0) < norm < F32(2.0**-100):
        return F32(2.0**64)
    return F32(2.0**-64) if norm > F32(2.0**100) else F32(1)


@njit(nogil=True, cache=True)
def _scales(norm, full):
    """Return (before, rate): ``x · before · rate`` is x in units of norm/full, never above full."""
    before = _before(norm)
    if norm == F32(0):
        return before, F32(0)
    scaled = F32(norm * before)
    rate = F32(full / scaled)
    lower = F32(rate * BELOW_ONE)
    return before, lower if F32(scaled * rate) > full else rate


@njit(nogil=True, cache=True)
def qsgd_codes(x, norms, bucket, levels, width, key0, key1, start, stop, out):
    """Round x·s/norm stochastically, add s, pack; for at most 8 bits. ``start`` is a multiple of GROUP.

    A code is ⌊((x·s/norm + s)·2¹⁶ + r)/2¹⁶⌋, r being 16 random bits of the coordinate.
    """
    codes = np.zeros(BLOCK, U8)
    random = np.empty(BLOCK, U16)
    words = random.view(U32)
    full = F32(levels * 65536)
    middle = F32(levels * 65536 + 0.5)
    k = start // bucket
    for block in range(start, stop, BLOCK):
        end = min(block + BLOCK, stop)
        fill(words, U32(block >> 1), key0, key1)
        at = block
        while at < end:
            segment = min((k + 1) * bucket, end)
            before, rate = _scales(norms[k], full)
            first, local = UINT(at), UINT(at - block)
            if before == F32(1):
                for j in range(UINT(segment - at)):
                    t = I32(F32(F32(x[first + j] * rate) + middle))
                    codes[local + j] = U8(U32(U32(t) + U32(random[local + j])) >> U32(16))
            else:
                for j in range(UINT(segment - at)):
                    t = I32(F32(F32(F32(x[first + j] * before) * rate) + middle))
                    codes[local + j] = U8(U32(U32(t) + U32(random[local + j])) >> U32(16))
            at = segment
            if at == (k + 1) * bucket:
                k += 1
        pack(codes, 0, end - block, width, out, block // 8 * width)
    return 0


@njit(nogil=True, cache=True)
def qsgd_encode(bits, norm_bits, bucket, l2, levels, width, key0, key1, start, stop, out):
    """Write norms and codes of a range that starts at a bucket and at a group, while it is in the cache.
    Returns 1 if a norm is not finite.
    """
    x = bits.view(F32)
    norms = norm_bits.view(F32)
    chunk = CHUNK if CHUNK % bucket == 0 else stop - start
    for at in range(start, stop, chunk):
        end = min(at + chunk, stop)
        if bucket_norms(bits, norm_bits, bucket, l2, at, end):
            return 1
        qsgd_codes(x, norms, bucket, levels, width, key0, key1, at, end, out)
    return 0


@njit(nogil=True, cache=True)
def wide_codes(x, norms, bucket, levels, width, key0, key1, start, stop, out):
    """``qsgd_codes`` for 9 to 16 bits: the same formula in float64; low bytes are packed before high bits."""
    low = np.zeros(GROUP, U8)
    high = np.zeros(GROUP, U8)
    random = np.empty(GROUP, U16)
    words = random.view(U32)
    for group in range(start, stop, GROUP):
        count = min(GROUP, stop - group)
        fill(words, U32(group >> 1), key0, key1)
        for j in range(count):
            norm = F64(norms[(group + j) // bucket])
            level = F64(x[group + j]) * levels / norm if norm > 0 else 0.0
            t = np.int64((level + levels) * 65536.0 + 0.5)
            code = (t + np.int64(random[j])) >> 16
            low[j] = U8(code & 255)
            high[j] = U8(code >> 8)
        at = pack(low, 0, count, 8, out, group // 8 * width)
        pack(high, 0, count, width - 8, out, at)
    return 0


@njit(nogil=True, cache=True)
def invalid_norms(norm_bits):
    """Return 1 if a norm is negative (its sign bit makes it large), NaN or infinite, else 0."""
    largest = U32(0)
    for k in range(UINT(norm_bits.size)):
        largest = max(largest, norm_bits[k])
    return 1 if largest >= U32(INFINITY) else 0


@njit(nogil=True, cache=True)
def _step(norm, levels):
    """Return (before, step): ``k · step / before`` is k levels of the norm, never above the norm."""
    before = _before(norm)
    scaled = F32(norm * before)
    step = F32(scaled / F32(levels))
    lower = F32(step * BELOW_ONE)
    return before, lower if F32(step * F32(levels)) > scaled else step


@njit(nogil=True, cache=True)
def qsgd_add(data, norms, bucket, levels, width, weight, acc):
    """``acc += weight · (code − s) · norm/s``; for at most 8 bits.

    A full group of 4-bit codes whose halves have one ordinary norm each is added without unpacking. This
    branch is not a separate function: passing arrays costs as much as decoding a group.
    """
    codes = np.zeros(GROUP, U8)
    offset = I32(levels)
    k, stop = 0, acc.size
    for group in range(0, stop, GROUP):
        end, middle = min(group + GROUP, stop), group + HALF
        upper = k if middle < (k + 1) * bucket else k + 1
        if (
            width == 4
            and weight == F32(1)
            and (k + 1) * bucket >= middle
            and (upper + 1) * bucket >= group + GROUP <= stop
        ):
            before_low, step_low = _step(norms[k], levels)
            before_high, step_high = _step(norms[upper], levels)
            if before_low == F32(1) and before_high == F32(1):
                low, high, of = UINT(group), UINT(middle), UINT(group // 2)
                for j in range(UINT(HALF)):
                    code = I32(data[of + j] & U8(15))
                    acc[low + j] = F32(acc[low + j] + F32(F32(I32(code - offset)) * step_low))
                for j in range(UINT(HALF)):
                    code = I32(data[of + j] >> U8(4))
                    acc[high + j] = F32(acc[high + j] + F32(F32(I32(code - offset)) * step_high))
                while (k + 1) * bucket <= end:
                    k += 1
                continue
        unpack(data, group // 8 * width, end - group, width, codes, 0)
        at = group
        while at < end:
            segment = min((k + 1) * bucket, end)
            before, step = _step(norms[k], levels)
            after = F32(F32(1) / before)
            first, local = UINT(at), UINT(at - group)
            for j in range(UINT(segment - at)):
                value = F32(F32(F32(I32(I32(codes[local + j]) - offset)) * step) * after)
                acc[first + j] = F32(acc[first + j] + F32(weight * value))
            at = segment
            if at == (k + 1) * bucket:
                k += 1
    return 0


@njit(nogil=True, cache=True)
def wide_add(data, norms, bucket, levels, width, weight, acc):
    """``qsgd_add`` for 9 to 16 bits, each value in float64 rounded once."""
    low = np.zeros(GROUP, U8)
    high = np.zeros(GROUP, U8)
    for group in range(0, acc.size, GROUP):
        count = min(GROUP, acc.size - group)
        at = unpack(data, group // 8 * width, count, 8, low, 0)
        unpack(data, at, count, width - 8, high, 0)
        for j in range(count):
            code = (I32(low[j]) | (I32(high[j]) << 8)) - levels
            value = F32(F64(norms[(group + j) // bucket]) * code / levels)
            acc[group + j] = F32(acc[group + j] + F32(weight * value))
    return 0


@njit(nogil=True, cache=True)
def qsgd_decode(data, norms, bucket, levels, width, weight, acc):
    """Check a payload, then add it. Returns 1, and adds nothing, if it is invalid. One thread is enough:
    memory is the bottleneck.
    """
    if invalid_norms(norms.view(U32)) or invalid_codes(data, width, 2 * levels, acc.size):
        return 1
    if width <= 8:
        return qsgd_add(data, norms, bucket, levels, width, weight, acc)
    return wide_add(data, norms, bucket, levels, width, weight, acc)
