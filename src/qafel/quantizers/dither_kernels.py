"""Numba kernels of ``dither`` and ``deadzone``. No fast-math: these results define x̂.

Vectors come normalised: their largest magnitude is between 2⁻⁴⁰ and 2⁴⁰, so that no intermediate number
leaves float32's normal range.
"""

import numpy as np
from numba import njit

from qafel.coding.kernels import pack, unpack
from qafel.coding.planes import GROUP
from qafel.streams.kernels import fill

F32 = np.float32
F64 = np.float64
I16 = np.int16
I32 = np.int32
U8 = np.uint8
U32 = np.uint32
UINT = np.uintp
BLOCK, HALF = 8 * GROUP, GROUP // 2
UNIT = F32(65536.0)
MIDDLE = F32(127.5)
STRETCH = 256
"""Groups that are summed in float32."""


@njit(nogil=True, cache=True)
def moments(bits):
    """(Σ x², the bits of max |x|): a float32 sum for every place in a group, emptied into float64 now and
    then.
    """
    x = bits.view(F32)
    sums, largest = np.zeros(GROUP, F32), np.zeros(GROUP, U32)
    mask, total = U32(0x7FFFFFFF), 0.0
    for stretch in range(0, x.size, STRETCH * GROUP):
        stop = min(stretch + STRETCH * GROUP, x.size)
        group = stretch
        while group + 4 * GROUP <= stop:  # four at a time: sums are loaded and stored a quarter as often
            a, b = UINT(group), UINT(group + GROUP)
            c, d = UINT(group + 2 * GROUP), UINT(group + 3 * GROUP)
            for j in range(UINT(GROUP)):
                low = F32(F32(x[a + j] * x[a + j]) + F32(x[b + j] * x[b + j]))
                high = F32(F32(x[c + j] * x[c + j]) + F32(x[d + j] * x[d + j]))
                sums[j] = F32(sums[j] + F32(low + high))
                first = max(U32(bits[a + j] & mask), U32(bits[b + j] & mask))
                second = max(U32(bits[c + j] & mask), U32(bits[d + j] & mask))
                largest[j] = max(largest[j], max(first, second))
            group += 4 * GROUP
        while group < stop:
            a = UINT(group)
            for j in range(UINT(min(GROUP, stop - group))):
                sums[j] = F32(sums[j] + F32(x[a + j] * x[a + j]))
                largest[j] = max(largest[j], U32(bits[a + j] & mask))
            group += GROUP
        for j in range(GROUP):
            total += F64(sums[j])
            sums[j] = F32(0)
    most = U32(0)
    for j in range(GROUP):
        most = max(most, largest[j])
    return total, most


@njit(nogil=True, cache=True)
def spread(x, step, stride):
    """Mean of f·(1 − f) over every ``stride``-th group, f being how far x/step is from a whole number."""
    rate = F32(F32(1) / step)
    sums = np.zeros(GROUP, F32)
    total, count = 0.0, 0
    for stretch in range(0, x.size, stride * STRETCH * GROUP):
        for group in range(stretch, min(stretch + stride * STRETCH * GROUP, x.size), stride * GROUP):
            first, end = UINT(group), min(group + GROUP, x.size)
            for j in range(UINT(end - group)):
                y = F32(x[first + j] * rate)
                f = F32(abs(F32(y - np.rint(y))))
                sums[j] = F32(sums[j] + F32(f * F32(F32(1) - f)))
            count += end - group
        for j in range(GROUP):
            total += F64(sums[j])
            sums[j] = F32(0)
    return total / count


@njit(nogil=True, cache=True)
def expected_counts(x, step, counts):
    """How often |q| is expected to be k when x/step is rounded at random; the last: from there on."""
    rate, top = F32(F32(1) / step), counts.size - 1
    for i in range(x.size):
        y = F32(abs(x[i]) * rate)
        below = np.floor(y)
        share = F64(F32(y - below))
        k = I32(min(below, F32(top)))
        counts[k] += 1.0 - share
        counts[min(k + 1, top)] += share


@njit(nogil=True, cache=True)
def dither_codes(x, step, shared, start, stop, q):
    """q ← ⌊x/step + r⌋, r being 16 random bits: the coordinate's own 8, which the decoder draws again, then
    those of the coordinate a group further on.
    """
    known = np.empty(BLOCK + GROUP, U8)
    words = known.view(U32)
    rate = F32(UNIT / step)
    for block in range(start, stop, BLOCK):
        fill(words, U32(block >> 2), shared[0], shared[1])
        first = UINT(block)
        for j in range(UINT(min(BLOCK, stop - block))):
            r = I32(I32(I32(known[j]) << I32(8)) | I32(known[j + UINT(GROUP)]))
            q[first + j] = I16(I32(I32(F32(x[first + j] * rate)) + r) >> I32(16))
    return 0


@njit(nogil=True, cache=True)
def dither_pack(x, step, shared, most, width, start, stop, out):
    """``dither_codes`` of numbers up to ``most``, plane-packed in at most 8 bits on the way."""
    known, codes = np.empty(BLOCK + GROUP, U8), np.zeros(BLOCK, U8)
    words = known.view(U32)
    rate, offset = F32(UNIT / step), I32(most << 16)
    for block in range(start, stop, BLOCK):
        end = min(block + BLOCK, stop)
        fill(words, U32(block >> 2), shared[0], shared[1])
        first = UINT(block)
        for j in range(UINT(end - block)):
            r = I32(I32(I32(I32(known[j]) << I32(8)) | I32(known[j + UINT(GROUP)])) + offset)
            codes[j] = U8(I32(I32(F32(x[first + j] * rate)) + r) >> I32(16))
        pack(codes, 0, end - block, width, out, block // 8 * width)
    return 0


@njit(nogil=True, cache=True)
def dither_add(q, part, slope, shared, weight, acc):
    """``acc += weight · (q·part − r + 127½) · slope``, r being the coordinate's 8 shared bits: (q − λ·u)·step
    with λ = 256/part and slope = step/part.
    """
    known = np.empty(BLOCK, U8)
    words = known.view(U32)
    middle, part = F32(slope * MIDDLE), I32(part)
    for block in range(0, acc.size, BLOCK):
        fill(words, U32(block >> 2), shared[0], shared[1])
        first = UINT(block)
        for j in range(UINT(min(BLOCK, acc.size - block))):
            whole = I32(I32(I32(q[first + j]) * part) - I32(known[j]))
            value = F32(F32(F32(whole) * slope) + middle)
            acc[first + j] = F32(acc[first + j] + F32(weight * value))


@njit(nogil=True, cache=True)
def dither_unpack(data, most, part, slope, shared, acc):
    """``dither_add`` of weight 1 straight from plane-packed 4-bit codes, checked before."""
    known, codes = np.empty(GROUP, U8), np.zeros(GROUP, U8)
    words = known.view(U32)
    middle, part, offset = F32(slope * MIDDLE), I32(part), I32(most)
    for group in range(0, acc.size, GROUP):
        fill(words, U32(group >> 2), shared[0], shared[1])
        low, high, of = UINT(group), UINT(group + HALF), UINT(group // 2)
        if group + GROUP <= acc.size:
            for j in range(UINT(HALF)):
                code = I32(I32(data[of + j] & U8(15)) - offset)
                whole = I32(I32(code * part) - I32(known[j]))
                acc[low + j] = F32(acc[low + j] + F32(F32(F32(whole) * slope) + middle))
            for j in range(UINT(HALF)):
                code = I32(I32(data[of + j] >> U8(4)) - offset)
                whole = I32(I32(code * part) - I32(known[UINT(HALF) + j]))
                acc[high + j] = F32(acc[high + j] + F32(F32(F32(whole) * slope) + middle))
        else:
            unpack(data, group // 2, acc.size - group, 4, codes, 0)
            for j in range(UINT(acc.size - group)):
                whole = I32(I32(I32(I32(codes[j]) - offset) * part) - I32(known[j]))
                acc[low + j] = F32(acc[low + j] + F32(F32(F32(whole) * slope) + middle))


@njit(nogil=True, cache=True)
def deadzone_codes(x, step, rounding, start, stop, q):
    """q ← sign(x)·⌊|x|/step + rounding⌋."""
    rate = F32(F32(1) / step)
    for i in range(UINT(start), UINT(stop)):
        magnitude = I32(F32(F32(abs(x[i]) * rate) + rounding))
        q[i] = I16(magnitude) if x[i] > F32(0) else I16(-magnitude)
    return 0


@njit(nogil=True, cache=True)
def cells(x, step, rounding, counts, sums):
    """For every k = ⌊|x|/step + rounding⌋: how many, and Σ |x|/step; the last: from there on."""
    rate, top = F32(F32(1) / step), counts.size - 1
    for i in range(x.size):
        y = F32(abs(x[i]) * rate)
        k = min(I32(min(F32(y + rounding), F32(1 << 20))), top)
        counts[k] += 1.0
        sums[k] += F64(y)


@njit(nogil=True, cache=True)
def levels_add(q, levels, weight, acc):
    """``acc += weight · levels[|q|]`` with the sign of q."""
    for i in range(UINT(acc.size)):
        k = I32(q[i])
        value = levels[abs(k)]
        acc[i] = F32(acc[i] + F32(weight * (value if k > 0 else -value)))


@njit(nogil=True, cache=True)
def to_frequencies(x, matrix, out):
    """Frequency f of kernel j, of 9 numbers each, to place f·count + j."""
    count = x.size // 9
    for j in range(count):
        for f in range(9):
            total = F32(0)
            for p in range(9):
                total = F32(total + F32(matrix[f, p] * x[9 * j + p]))
            out[f * count + j] = total


@njit(nogil=True, cache=True)
def from_frequencies(y, matrix, out):
    """The inverse of ``to_frequencies``."""
    count = y.size // 9
    for j in range(count):
        for p in range(9):
            total = F32(0)
            for f in range(9):
                total = F32(total + F32(matrix[f, p] * y[f * count + j]))
            out[9 * j + p] = total
