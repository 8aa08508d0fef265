"""Numba kernels of ``rotated``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.gaps import BLOCK, ROUNDING
from qafel.coding.gaps_kernels import decode
from qafel.coding.numbers import F32, F64, I16, U16, U32, U64, UINT
from qafel.coding.simd import LANES, at_least, zeros_below
from qafel.quantizers._rotation_kernels import WORDS, rotate, rotate_back, signs

PLACE = 0.4
"""The cell of integer k begins at k − ROUNDING; its point is PLACE further on."""
NEGLIGIBLE = 2.0**-50
"""A block with this part of the power of the strongest block becomes zero."""
LOWEST, FRACTION, CLASS = 31, 6, 11
"""Largest exponent of a factor in 16 bits, bits of its fraction, lowest bit of the class."""


@njit(nogil=True, cache=True)
def _load(x, first, scale, y):
    """Copy the coordinates from ``first`` on, times a power of two, to a block, filled up with zeros."""
    size = min(BLOCK, x.size - first)
    part = x[first : first + size]
    for j in range(UINT(size)):
        y[j] = F32(part[j] * scale)
    y[size:] = F32(0)


@njit(nogil=True, cache=True)
def _power(y):
    """Return Σ y² of a block: float32 sums of every fourth row of 32, then float64."""
    sums, total = np.zeros(128, F32), 0.0
    for start in range(UINT(0), UINT(BLOCK), UINT(256)):
        for j in range(UINT(128)):
            a, b = y[start + j], y[start + UINT(128) + j]
            sums[j] = F32(sums[j] + F32(F32(a * a) + F32(b * b)))
    for j in range(128):
        total += F64(sums[j])
    return total


@njit(nogil=True, cache=True)
def powers(x, start, stop, out):
    """Write Σ x² of the blocks between two coordinates. Returns max |x|."""
    y, sums, tops = np.empty(BLOCK, F32), np.zeros(32), np.zeros(32, F32)
    for first in range(start, min(stop, x.size), BLOCK):
        _load(x, first, F32(1), y)
        sums[:] = 0.0
        for row in range(UINT(0), UINT(BLOCK), UINT(128)):
            for j in range(UINT(32)):
                a, b = abs(y[row + j]), abs(y[row + UINT(32) + j])
                c, d = abs(y[row + UINT(64) + j]), abs(y[row + UINT(96) + j])
                sums[j] += (F64(a) * F64(a) + F64(b) * F64(b)) + (F64(c) * F64(c) + F64(d) * F64(d))
                a, c = a if a > b else b, c if c > d else d
                a = a if a > c else c
                tops[j] = a if a > tops[j] else tops[j]
        total = 0.0
        for j in range(32):
            total += sums[j]
        out[first // BLOCK] = total
    return tops.max()


@njit(nogil=True, cache=True)
def choose_steps(powers, bits, table, steps):
    """Choose a step for every block, with bits in proportion to its rms; 0 for a negligible block.

    ``table`` has steps in ascending order and the bits per coordinate of each.
    """
    total, strongest = 0.0, 0.0
    for block in range(powers.size):
        total += np.sqrt(powers[block])
        strongest = max(strongest, powers[block])
    for block in range(powers.size):
        steps[block] = 0.0
        if powers[block] > strongest * NEGLIGIBLE:
            wanted = bits * np.sqrt(powers[block]) * (powers.size / total)
            k = 1
            while k < table.shape[0] - 1 and table[k, 1] > wanted:
                k += 1
            (low, larger), (high, smaller) = table[k - 1], table[k]
            share = min(max((wanted - smaller) / (larger - smaller), 0.0), 1.0)
            steps[block] = high + share * (low - high)


@njit(nogil=True, cache=True)
def pack(factors, classes, codes):
    """Write 16 bits for every block: class, exponent below that of the largest factor, fraction.

    Returns the exponent of the largest factor.
    """
    bits, top = factors.view(U32), U32(0)
    for block in range(codes.size):
        bits[block] = (bits[block] + U32(1 << (22 - FRACTION))) >> U32(23 - FRACTION)
        top = max(top, bits[block] >> U32(FRACTION))
    for block in range(codes.size):
        exponent = bits[block] + U32(LOWEST << FRACTION) - (top << U32(FRACTION))
        codes[block] = U16((U32(classes[block]) << U32(CLASS)) + exponent) if bits[block] else U16(0)
    return np.int64(top) - 127 if top else 0


@njit(nogil=True, cache=True)
def read(data, codes, tables, max_magnitude, places, values):
    """Read the integers of blocks with these codes: how many are not zero; −1 for an invalid stream."""
    classes = np.empty(codes.size, np.uint8)
    for block in range(codes.size):
        classes[block] = codes[block] >> U16(CLASS)
    return decode(data, classes, tables, max_magnitude, places, values)


@njit(nogil=True, cache=True)
def _quantize(y, step, places, values):
    """Find the coordinates that do not become zero, at least one, and their integers.

    Returns their number and ‖y‖²/⟨y, c⟩, c being the points of the integers.
    """
    total = _power(y)
    rate = 1 / (step * np.sqrt(total / BLOCK))
    limit, count = F32((1 - ROUNDING) / rate), UINT(0)
    for start in range(UINT(0), UINT(BLOCK), UINT(LANES)):
        mask = U64(at_least(y, start, limit))
        while mask:
            places[count] = start + UINT(zeros_below(mask))
            count += UINT(1)
            mask &= mask - U64(1)
    if count == 0:
        places[0], count = np.argmax(np.abs(y)), UINT(1)
    product = 0.0
    for n in range(count):
        value = F64(y[places[n]])
        k = max(np.int64(abs(value) * rate + ROUNDING), 1)
        product += abs(value) * (k - ROUNDING + PLACE)
        values[n] = I16(k if value > 0 else -k)
    return np.int64(count), total / product


@njit(nogil=True, cache=True)
def quantize(x, first, scale, steps, keys, nearest, factors, classes, places, values):
    """Quantize the blocks of ``scale·x`` from coordinate ``first`` on, one for every step; step 0: all zeros.

    Writes the factor and the class of every block. Returns the number of integers other than zero.
    """
    y, other, random = np.empty(BLOCK, F32), np.empty(BLOCK, F32), np.empty(WORDS, U32)
    total = 0
    for block in range(steps.size):
        factors[block], classes[block] = F32(0), 0
        if steps[block] == 0:
            continue
        _load(x, first + block * BLOCK, scale, y)
        signs(first // BLOCK + block, keys, random)
        rotate(y, other, random)
        count, factor = _quantize(y, steps[block], places[total:], values[total:])
        factors[block], classes[block] = F32(factor / BLOCK), nearest[count]
        for n in range(total, total + count):
            places[n] += block * BLOCK
        total += count
    return total


@njit(nogil=True, cache=True)
def add(places, values, first, codes, top, keys, weight, acc):
    """``acc += weight · Q(x)`` for the blocks from ``first`` on, with ``codes`` and ``top`` of ``pack``."""
    y, other, random = np.empty(BLOCK, F32), np.empty(BLOCK, F32), np.empty(WORDS, U32)
    factors, n = np.empty(codes.size, F32), 0
    bits, lowest = factors.view(U32), U32(top + 127 - LOWEST) << U32(23)
    for block in range(codes.size):
        fraction = U32(codes[block] & U16((1 << CLASS) - 1)) << U32(23 - FRACTION)
        bits[block] = lowest + fraction if codes[block] else U32(0)
    for block in range(factors.size):
        begin, factor = block * BLOCK, factors[block]
        y[:] = F32(0)
        while n < places.size and places[n] < begin + BLOCK:
            size = F32(factor * F32((abs(np.int64(values[n])) - ROUNDING + PLACE) / BLOCK))
            y[places[n] - begin] = size if values[n] > 0 else -size
            n += 1
        if factor == 0:
            continue
        signs(first // BLOCK + block, keys, random)
        rotate_back(y, other, random)
        part = acc[first + begin : first + begin + BLOCK]
        for j in range(UINT(part.size)):
            part[j] = F32(part[j] + F32(weight * y[j]))
    return 0
