"""Numba kernels of ``eden``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.streams.kernels import fill

F32 = np.float32
F64 = np.float64
U8 = np.uint8
U32 = np.uint32
UINT = np.uintp
BLOCK = 1024
ROOT = F32(1 / 32)
"""1/√1024."""


@njit(nogil=True, cache=True)
def _hadamard(y, first):
    """The Hadamard transform of a block, in place; orthonormal."""
    half = 1
    while half < BLOCK:
        for start in range(first, first + BLOCK, 2 * half):
            low, high = UINT(start), UINT(start + half)
            for j in range(UINT(half)):
                a, b = y[low + j], y[high + j]
                y[low + j], y[high + j] = F32(a + b), F32(a - b)
        half *= 2
    for j in range(UINT(first), UINT(first + BLOCK)):
        y[j] = F32(y[j] * ROOT)


@njit(nogil=True, cache=True)
def _flip(y, first, bits, turn):
    """Change the signs of a block as one bit of each coordinate's byte says."""
    for j in range(BLOCK):
        if (bits[j] >> U8(turn)) & U8(1):
            y[first + j] = -y[first + j]


@njit(nogil=True, cache=True)
def rotate(y, key0, key1):
    """Random signs and a Hadamard transform, twice, block by block."""
    bits = np.empty(BLOCK, U8)
    words = bits.view(U32)
    for first in range(0, y.size, BLOCK):
        fill(words, U32(first >> 2), key0, key1)
        for turn in range(2):
            _flip(y, first, bits, turn)
            _hadamard(y, first)


@njit(nogil=True, cache=True)
def rotate_back(y, key0, key1):
    """The inverse of ``rotate``."""
    bits = np.empty(BLOCK, U8)
    words = bits.view(U32)
    for first in range(0, y.size, BLOCK):
        fill(words, U32(first >> 2), key0, key1)
        for turn in range(1, -1, -1):
            _hadamard(y, first)
            _flip(y, first, bits, turn)


@njit(nogil=True, cache=True)
def nearest(y, centres, factors, codes):
    """The nearest point of every coordinate: the point's number, plus their count if it is negative; and what
    the points of a block are to be multiplied by.
    """
    count = centres.size
    for block in range(factors.size):
        first = block * BLOCK
        power = 0.0
        for j in range(first, first + BLOCK):
            power += F64(y[j]) * F64(y[j])
        scale = np.sqrt(power / BLOCK)
        product = 0.0
        for j in range(first, first + BLOCK):
            size = abs(F64(y[j]))
            k = 0
            while k + 1 < count and size > 0.5 * scale * (F64(centres[k]) + F64(centres[k + 1])):
                k += 1
            product += size * F64(centres[k])
            codes[j] = U8(k + count if y[j] < F32(0) else k)
        factors[block] = F32(power / product) if product > 0 else F32(0)


@njit(nogil=True, cache=True)
def points(codes, centres, factors, y):
    """What ``nearest`` found, as numbers."""
    count = centres.size
    for j in range(codes.size):
        code = np.int64(codes[j])
        value = F32(factors[j // BLOCK] * centres[code % count])
        y[j] = -value if code >= count else value


@njit(nogil=True, cache=True)
def powers(y, out):
    """Σ y² of every block."""
    for block in range(out.size):
        total = 0.0
        for j in range(block * BLOCK, (block + 1) * BLOCK):
            total += F64(y[j]) * F64(y[j])
        out[block] = total


@njit(nogil=True, cache=True)
def dead_codes(y, totals, steps, rounding, place, factors, q):
    """q ← sign(y)·⌊|y|/step + rounding⌋ with a step for every block, in units of its rms, and what the points
    of a block are to be multiplied by. Where a block has power, its largest coordinate is never zero.
    """
    for block in range(factors.size):
        first = block * BLOCK
        factors[block] = F32(0)
        for j in range(first, first + BLOCK):
            q[j] = 0
        if totals[block] == 0:
            continue
        rate = 1 / (steps[block] * np.sqrt(totals[block] / BLOCK))
        product, top, where = 0.0, -1.0, first
        for j in range(first, first + BLOCK):
            size = abs(F64(y[j]))
            if size > top:
                top, where = size, j
            k = np.int64(size * rate + rounding)
            if k:
                q[j] = k if y[j] > F32(0) else -k
                product += size * (k - rounding + place)
        if product == 0:
            q[where] = 1 if y[where] > F32(0) else -1
            product = top * (1 - rounding + place)
        factors[block] = F32(totals[block] / product)


@njit(nogil=True, cache=True)
def dead_points(q, rounding, place, factors, y):
    """What ``dead_codes`` found, as numbers."""
    for j in range(q.size):
        k = np.int64(q[j])
        size = F32(factors[j // BLOCK] * F32(abs(k) - rounding + place)) if k else F32(0)
        y[j] = -size if k < 0 else size
