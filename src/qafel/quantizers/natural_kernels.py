"""Numba kernels of ``natural``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.numbers import F32, I32, U16, U32, UINT
from qafel.streams.kernels import fill

BLOCK = 4096
"""Coordinates for which random numbers are drawn at a time."""


@njit(nogil=True, cache=True)
def levels_add(q, levels, weight, acc):
    """``acc += weight · levels[|q|]`` with the sign of q."""
    for i in range(UINT(acc.size)):
        k = I32(q[i])
        value = levels[abs(k)]
        acc[i] = F32(acc[i] + F32(weight * (value if k > 0 else -value)))


@njit(nogil=True, cache=True)
def natural_codes(bits, top, max_octaves, key0, key1, q):
    """Write ±k for a coordinate that becomes ±2^(top + 1 − k), in biased exponents, and 0 if k > max_octaves.

    The larger of the two neighbouring powers of two is drawn with probability (mantissa − 1), by 16 random
    bits.
    """
    random = np.empty(BLOCK, U16)
    words = random.view(U32)
    for block in range(0, bits.size, BLOCK):
        fill(words, U32(block >> 1), key0, key1)
        for j in range(min(BLOCK, bits.size - block)):
            number = bits[block + j]
            exponent = I32((number >> U32(23)) & U32(255))
            up = I32(random[j]) < I32((number & U32(0x7FFFFF)) >> U32(7))
            k = top + 1 - (exponent + up)
            if exponent == 0 or k > max_octaves:
                q[block + j] = 0
            else:
                q[block + j] = -k if number >> U32(31) else k
