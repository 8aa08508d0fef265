"""Numba kernels of ``_spatial``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

F32 = np.float32


@njit(nogil=True, cache=True)
def to_frequencies(x, matrix, out):
    """Transform kernels of 9 numbers each; frequency f of kernel j goes to place f·count + j."""
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
