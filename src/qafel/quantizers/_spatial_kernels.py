"""Numba kernels of ``_spatial``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.numbers import F32, UINT

THIRD, HALF, SIXTH = F32(np.sqrt(1 / 3)), F32(np.sqrt(1 / 2)), F32(np.sqrt(1 / 6))


@njit(nogil=True, cache=True, inline="always")
def _line(a, b, c):
    """The cosine transform of three numbers."""
    ends = F32(a + c)
    return F32(THIRD * F32(ends + b)), F32(HALF * F32(a - c)), F32(SIXTH * F32(ends - F32(b + b)))


@njit(nogil=True, cache=True, inline="always")
def _line_back(p, q, r):
    """The inverse of ``_line``."""
    mean, slope, bend = F32(THIRD * p), F32(HALF * q), F32(SIXTH * r)
    ends = F32(mean + bend)
    return F32(ends + slope), F32(mean - F32(bend + bend)), F32(ends - slope)


@njit(nogil=True, cache=True)
def to_frequencies(x, parts, out):
    """Transform kernels of 3 × 3 numbers to nine planes of frequencies; copy everything else."""
    for place, kernels, first, last in parts:
        if kernels == 0:
            out[first:last] = x[first:last]
            continue
        count, start = UINT(kernels), UINT(place)
        for j in range(start + UINT(first), start + UINT(last)):
            k = start + UINT(9) * (j - start)
            a0, a1, a2 = _line(x[k], x[k + UINT(1)], x[k + UINT(2)])
            b0, b1, b2 = _line(x[k + UINT(3)], x[k + UINT(4)], x[k + UINT(5)])
            c0, c1, c2 = _line(x[k + UINT(6)], x[k + UINT(7)], x[k + UINT(8)])
            out[j], out[j + UINT(3) * count], out[j + UINT(6) * count] = _line(a0, b0, c0)
            out[j + count], out[j + UINT(4) * count], out[j + UINT(7) * count] = _line(a1, b1, c1)
            out[j + UINT(2) * count], out[j + UINT(5) * count], out[j + UINT(8) * count] = _line(a2, b2, c2)


@njit(nogil=True, cache=True)
def add_back(y, parts, weight, acc):
    """``acc += weight ·`` the inverse of ``to_frequencies``."""
    for place, kernels, first, last in parts:
        if kernels == 0:
            for k in range(UINT(first), UINT(last)):
                acc[k] = F32(acc[k] + F32(weight * y[k]))
            continue
        count, start = UINT(kernels), UINT(place)
        for j in range(start + UINT(first), start + UINT(last)):
            k = start + UINT(9) * (j - start)
            a0, b0, c0 = _line_back(y[j], y[j + UINT(3) * count], y[j + UINT(6) * count])
            a1, b1, c1 = _line_back(y[j + count], y[j + UINT(4) * count], y[j + UINT(7) * count])
            a2, b2, c2 = _line_back(y[j + UINT(2) * count], y[j + UINT(5) * count], y[j + UINT(8) * count])
            for a, b, c in ((a0, a1, a2), (b0, b1, b2), (c0, c1, c2)):
                p, q, r = _line_back(a, b, c)
                acc[k] = F32(acc[k] + F32(weight * p))
                acc[k + UINT(1)] = F32(acc[k + UINT(1)] + F32(weight * q))
                acc[k + UINT(2)] = F32(acc[k + UINT(2)] + F32(weight * r))
                k += UINT(3)
