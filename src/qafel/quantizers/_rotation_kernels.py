"""Numba kernels of ``_rotation``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.quantizers._rotation import BLOCK
from qafel.streams.kernels import fill

F32 = np.float32
U8 = np.uint8
U32 = np.uint32
UINT = np.uintp
ROOT = F32(1 / 32)
"""1/√BLOCK."""


@njit(nogil=True, cache=True)
def _hadamard(y, first):
    """Apply the orthonormal Hadamard transform to a block, in place."""
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
    """Negate the coordinates of a block whose random byte has bit ``turn`` set."""
    for j in range(BLOCK):
        if (bits[j] >> U8(turn)) & U8(1):
            y[first + j] = -y[first + j]


@njit(nogil=True, cache=True)
def rotate(y, key0, key1):
    """Apply random signs and a Hadamard transform to every block, twice, in place."""
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
