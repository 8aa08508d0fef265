"""Numba kernels of ``eden``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.gaps import BLOCK
from qafel.coding.numbers import F32, F64, U8


@njit(nogil=True, cache=True)
def nearest(y, centres, factors, codes):
    """Write the index of the nearest centre of every coordinate, plus the number of centres if the coordinate
    is negative; and the factor of every block.
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
    """Write the values of the codes of ``nearest``."""
    count = centres.size
    for j in range(codes.size):
        code = np.int64(codes[j])
        value = F32(factors[j // BLOCK] * centres[code % count])
        y[j] = -value if code >= count else value
