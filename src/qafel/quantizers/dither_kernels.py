"""Numba kernels of ``dither``. No fast-math: these results define x̂.

Vectors are normalised: their largest magnitude is between 2⁻⁴⁰ and 2⁴⁰, so that intermediate results are
normal float32 numbers.
"""

import numpy as np
from numba import njit

from qafel.coding.bitplanes import GROUP
from qafel.coding.numbers import F32, F64, I16, I32, U8, U16, U32, U64, UINT
from qafel.quantizers._scaled_kernels import STRETCH
from qafel.streams.kernels import fill

BLOCK = 8 * GROUP
UNIT = F32(65536.0)
MIDDLE = F32(127.5)
MASKS = U32(1 << 31)
"""The masks of the blocks are the words of the stream from here on."""


@njit(nogil=True, cache=True)
def dither_table(shared):
    """Return the random bytes of the first block and of one more group. Other blocks use the same bytes,
    xor-ed with a random mask of 32 bits: the dither of any two coordinates is independent, and drawing it is
    cheap.
    """
    table = np.empty((BLOCK + GROUP) // 4, U32)
    fill(table, U32(0), shared[0], shared[1])
    return table


@njit(nogil=True, cache=True)
def dither_of(block, table, shared, mask, words):
    """Write the random bytes of a block to ``words``."""
    fill(mask, U32(MASKS + U32(block // BLOCK)), shared[0], shared[1])
    own = mask[0]
    for k in range(UINT(words.size)):
        words[k] = U32(table[k] ^ own)


@njit(nogil=True, cache=True)
def spread(x, step, stride):
    """Return the mean of f·(1 − f) over every ``stride``-th group, f being the distance of x/step to the
    nearest integer.
    """
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
    """Add up the expected number of coordinates with |q| = k when x/step is rounded stochastically. The last
    entry also holds every larger k.
    """
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
    """Return the 16 bits that are added before rounding down in the first block: the coordinate's 8 bits,
    which the decoder draws again, then the 8 bits of the coordinate one group further on. Four to a word.
    """
    known, table = dither_table(shared).view(U8), np.empty(BLOCK, U16)
    for j in range(BLOCK):
        table[j] = U16(U16(U16(known[j]) << U16(8)) | U16(known[j + GROUP]))
    return table.view(U64)


@njit(nogil=True, cache=True)
def rounding_of(block, table, shared, mask, words):
    """Write the 16 bits of ``rounding_table`` for any block to ``words``."""
    fill(mask, U32(MASKS + U32(block // BLOCK)), shared[0], shared[1])
    own = U64(0)
    for k in range(4):
        own |= ((U64(mask[0]) >> U64(8 * k)) & U64(255)) * U64(257) << U64(16 * k)
    for k in range(words.size):
        words[k] = table[k] ^ own


@njit(nogil=True, cache=True)
def dither_codes(x, step, shared, start, stop, q):
    """q ← ⌊x/step + r⌋, r being 16 random bits as a fraction."""
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
