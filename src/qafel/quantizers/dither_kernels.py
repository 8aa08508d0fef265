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
U16 = np.uint16
U32 = np.uint32
U64 = np.uint64
UINT = np.uintp
BLOCK, HALF = 8 * GROUP, GROUP // 2
UNIT = F32(65536.0)
MIDDLE = F32(127.5)
STRETCH = 256
"""Groups that are summed in float32."""
MASKS = U32(1 << 31)
"""The words of the stream from here on are the masks of the blocks."""


@njit(nogil=True, cache=True)
def dither_table(shared):
    """The random bytes of the first block; those of the others are these under a mask of 32 bits. So the
    dither of any two coordinates is independent, and drawing it costs next to nothing.
    """
    table = np.empty((BLOCK + GROUP) // 4, U32)
    fill(table, U32(0), shared[0], shared[1])
    return table


@njit(nogil=True, cache=True)
def dither_of(block, table, shared, mask, words):
    """The random bytes of a block, and of a group beyond it, into ``words``."""
    fill(mask, U32(MASKS + U32(block // BLOCK)), shared[0], shared[1])
    own = mask[0]
    for k in range(UINT(words.size)):
        words[k] = U32(table[k] ^ own)


@njit(nogil=True, cache=True)
def moments(x, start, stop, totals):
    """max |x| from ``start`` to ``stop``, and Σ x² of every STRETCH of groups into ``totals``: a float32 sum
    for every place in a group. Where a number is not finite, or its square, a total is not finite.
    """
    sums, largest = np.zeros(GROUP, F32), np.zeros(GROUP, F32)
    for stretch in range(start, stop, STRETCH * GROUP):
        end = min(stretch + STRETCH * GROUP, stop)
        group = stretch
        while group + 4 * GROUP <= end:  # four at a time: sums are loaded and stored a quarter as often
            a, b = UINT(group), UINT(group + GROUP)
            c, d = UINT(group + 2 * GROUP), UINT(group + 3 * GROUP)
            for j in range(UINT(GROUP)):
                p, q, r, s = abs(x[a + j]), abs(x[b + j]), abs(x[c + j]), abs(x[d + j])
                low, high = F32(F32(p * p) + F32(q * q)), F32(F32(r * r) + F32(s * s))
                sums[j] = F32(sums[j] + F32(low + high))
                p, r = p if p > q else q, r if r > s else s
                p = p if p > r else r
                largest[j] = p if p > largest[j] else largest[j]
            group += 4 * GROUP
        while group < end:
            a = UINT(group)
            for j in range(UINT(min(GROUP, end - group))):
                p = abs(x[a + j])
                sums[j] = F32(sums[j] + F32(p * p))
                largest[j] = p if p > largest[j] else largest[j]
            group += GROUP
        total = 0.0
        for j in range(GROUP):
            total += F64(sums[j])
            sums[j] = F32(0)
        totals[stretch // (STRETCH * GROUP)] = total
    most = F32(0)
    for j in range(GROUP):
        most = max(most, largest[j])
    return most


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
def rounding_table(shared):
    """What is added before rounding down, in the first block: 16 bits, the coordinate's own 8, which the
    decoder draws again, then those of the coordinate a group further on. Four to a word.
    """
    known, table = dither_table(shared).view(U8), np.empty(BLOCK, U16)
    for j in range(BLOCK):
        table[j] = U16(U16(U16(known[j]) << U16(8)) | U16(known[j + GROUP]))
    return table.view(U64)


@njit(nogil=True, cache=True)
def rounding_of(block, table, shared, mask, words):
    """The same of any block, into ``words``."""
    fill(mask, U32(MASKS + U32(block // BLOCK)), shared[0], shared[1])
    own = U64(0)
    for k in range(4):
        own |= ((U64(mask[0]) >> U64(8 * k)) & U64(255)) * U64(257) << U64(16 * k)
    for k in range(words.size):
        words[k] = table[k] ^ own


@njit(nogil=True, cache=True)
def dither_codes(x, step, shared, start, stop, q):
    """q ← ⌊x/step + r⌋, r being 16 random bits."""
    r, mask, table = np.empty(BLOCK, U16), np.empty(1, U32), rounding_table(shared)
    words, rate = r.view(U64), F32(UNIT / step)
    for block in range(start, stop, BLOCK):
        rounding_of(block, table, shared, mask, words)
        end = min(block + BLOCK, stop)
        of, to = x[block:end], q[block:end]
        for j in range(end - block):
            to[j] = I16(I32(I32(F32(of[j] * rate)) + I32(r[j])) >> I32(16))
    return 0


@njit(nogil=True, cache=True)
def dither_pack(x, step, shared, most, width, start, stop, out):
    """``dither_codes`` of numbers up to ``most``, plane-packed in at most 8 bits on the way."""
    r, codes = np.empty(BLOCK, U16), np.zeros(BLOCK, U8)
    words, mask, table = r.view(U64), np.empty(1, U32), rounding_table(shared)
    rate, offset = F32(UNIT / step), I32(most << 16)
    for block in range(start, stop, BLOCK):
        end = min(block + BLOCK, stop)
        rounding_of(block, table, shared, mask, words)
        of = x[block:end]
        for j in range(end - block):
            codes[j] = U8(I32(I32(I32(F32(of[j] * rate)) + offset) + I32(r[j])) >> I32(16))
        pack(codes, 0, end - block, width, out, block // 8 * width)
    return 0


@njit(nogil=True, cache=True)
def dither_add(q, part, slope, shared, weight, acc):
    """``acc += weight · (q·part − r + 127½) · slope``, r being the coordinate's 8 shared bits: (q − λ·u)·step
    with λ = 256/part and slope = step/part.
    """
    known = np.empty(BLOCK, U8)
    words, mask, table = known.view(U32), np.empty(1, U32), dither_table(shared)
    middle, part = F32(slope * MIDDLE), I32(part)
    for block in range(0, acc.size, BLOCK):
        dither_of(block, table, shared, mask, words)
        of, to = q[block : block + BLOCK], acc[block : block + BLOCK]
        for j in range(to.size):
            whole = I32(I32(I32(of[j]) * part) - I32(known[j]))
            to[j] = F32(to[j] + F32(weight * F32(F32(F32(whole) * slope) + middle)))


@njit(nogil=True, cache=True)
def dither_unpack(data, most, part, slope, shared, start, stop, acc):
    """``dither_add`` of weight 1 straight from plane-packed 4-bit codes, checked before, whose products with
    ``part`` fit into 16 bits: twice as many at a time.
    """
    known, codes, whole = np.empty(BLOCK, U8), np.empty(GROUP, U8), np.empty(BLOCK, I16)
    words, mask, table = known.view(U32), np.empty(1, U32), dither_table(shared)
    middle, part, least = F32(slope * MIDDLE), I16(part), I16(most * part)
    for block in range(start, stop, BLOCK):
        dither_of(block, table, shared, mask, words)
        to = acc[block : min(block + BLOCK, stop)]
        for group in range(0, to.size, GROUP):
            middle_of, end = group + HALF, group + GROUP
            if end <= to.size:
                packed = data[(block + group) // 2 : (block + end) // 2]
                low, own = whole[group:middle_of], known[group:middle_of]
                for j in range(HALF):
                    low[j] = I16(I16(I16(I16(packed[j] & U8(15)) * part) - least) - I16(own[j]))
                high, other = whole[middle_of:end], known[middle_of:end]
                for j in range(HALF):
                    high[j] = I16(I16(I16(I16(packed[j] >> U8(4)) * part) - least) - I16(other[j]))
            else:
                unpack(data, (block + group) // 2, to.size - group, 4, codes, 0)
                for j in range(to.size - group):
                    whole[group + j] = I16(I16(codes[j]) * part - least - I16(known[group + j]))
        for j in range(to.size):
            to[j] = F32(to[j] + F32(F32(F32(whole[j]) * slope) + middle))
    return 0


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
