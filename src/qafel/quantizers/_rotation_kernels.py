"""Numba kernels of the random rotation. No fast-math: these results define x̂.

A block is a matrix of 32 × 32 numbers. The Hadamard transform of its columns, a transposition and the
transform of the new columns are the transform of the whole block, up to the order of the coordinates.
"""

import numpy as np
from numba import njit

from qafel.coding.gaps import BLOCK
from qafel.coding.numbers import F32, U32, UINT
from qafel.coding.simd import TILE, transpose_tile
from qafel.streams.kernels import fill

SIDE = 32
WORDS = 2 * SIDE
"""Words of random signs for a block."""
ROW, SIGN = UINT(SIDE), U32(1 << 31)


@njit(nogil=True, cache=True)
def _columns(y):
    """The Hadamard transform of every column, times √32: eight rows at a time, then four."""
    for start in range(UINT(0), UINT(BLOCK), UINT(8) * ROW):
        for j in range(start, start + ROW):
            a, b, c, d = y[j], y[j + ROW], y[j + UINT(2) * ROW], y[j + UINT(3) * ROW]
            e, f = y[j + UINT(4) * ROW], y[j + UINT(5) * ROW]
            g, h = y[j + UINT(6) * ROW], y[j + UINT(7) * ROW]
            a, b, c, d = F32(a + b), F32(a - b), F32(c + d), F32(c - d)
            e, f, g, h = F32(e + f), F32(e - f), F32(g + h), F32(g - h)
            a, c, b, d = F32(a + c), F32(a - c), F32(b + d), F32(b - d)
            e, g, f, h = F32(e + g), F32(e - g), F32(f + h), F32(f - h)
            y[j], y[j + ROW] = F32(a + e), F32(b + f)
            y[j + UINT(2) * ROW], y[j + UINT(3) * ROW] = F32(c + g), F32(d + h)
            y[j + UINT(4) * ROW], y[j + UINT(5) * ROW] = F32(a - e), F32(b - f)
            y[j + UINT(6) * ROW], y[j + UINT(7) * ROW] = F32(c - g), F32(d - h)
    quarter = UINT(8) * ROW
    for j in range(quarter):
        a, b, c, d = y[j], y[j + quarter], y[j + UINT(2) * quarter], y[j + UINT(3) * quarter]
        p, q, r, s = F32(a + b), F32(a - b), F32(c + d), F32(c - d)
        y[j], y[j + quarter] = F32(p + r), F32(q + s)
        y[j + UINT(2) * quarter], y[j + UINT(3) * quarter] = F32(p - r), F32(q - s)


@njit(nogil=True, cache=True)
def _transpose(y, out):
    for row in range(UINT(0), ROW, UINT(TILE)):
        for column in range(UINT(0), ROW, UINT(TILE)):
            transpose_tile(y, row * ROW + column, out, column * ROW + row, ROW)


@njit(nogil=True, cache=True)
def _flip(y, words):
    """Change the sign of row r, column c if bit r of word c is set; four rows at a time."""
    bits = y.view(U32)
    for row in range(UINT(0), ROW, UINT(4)):
        shift = U32(UINT(31) - row)
        for column in range(ROW):
            word, j = words[column], row * ROW + column
            bits[j] ^= (word << shift) & SIGN
            bits[j + ROW] ^= (word << U32(shift - U32(1))) & SIGN
            bits[j + UINT(2) * ROW] ^= (word << U32(shift - U32(2))) & SIGN
            bits[j + UINT(3) * ROW] ^= (word << U32(shift - U32(3))) & SIGN


@njit(nogil=True, cache=True)
def signs(block, keys, words):
    """Draw the random signs of a block."""
    fill(words, U32(block * WORDS), keys[0], keys[1])


@njit(nogil=True, cache=True)
def _hadamard(y, out):
    """The Hadamard transform of a block: 32 times as long, and transposed."""
    _columns(y)
    _transpose(y, out)
    _columns(out)


@njit(nogil=True, cache=True)
def rotate(y, other, words):
    """Rotate a block: random signs and a Hadamard transform, twice; the result is 1024 times as long."""
    _flip(y, words[:SIDE])
    _hadamard(y, other)
    _flip(other, words[SIDE:])
    _hadamard(other, y)


@njit(nogil=True, cache=True)
def rotate_back(y, other, words):
    """The inverse of ``rotate``; the result is again 1024 times as long."""
    _hadamard(y, other)
    _flip(other, words[SIDE:])
    _hadamard(other, y)
    _flip(y, words[:SIDE])


@njit(nogil=True, cache=True)
def rotate_blocks(y, keys, back):
    """Rotate every block of ``y``, or rotate it back, in place."""
    other, words = np.empty(BLOCK, F32), np.empty(WORDS, U32)
    for block in range(y.size // BLOCK):
        part = y[block * BLOCK : (block + 1) * BLOCK]
        signs(block, keys, words)
        if back:
            rotate_back(part, other, words)
        else:
            rotate(part, other, words)
        part *= F32(1 / BLOCK)
