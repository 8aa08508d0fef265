"""Numba kernels of ``deadzone``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.numbers import F32, F64, I16, I32, U64, UINT
from qafel.coding.simd import LANES, nonzero, zeros_below


@njit(nogil=True, cache=True)
def deadzone_codes(x, step, rounding, start, stop, q):
    """q ← sign(x)·⌊|x|/step + rounding⌋."""
    rate = F32(F32(1) / step)
    for i in range(UINT(start), UINT(stop)):
        magnitude = I32(F32(F32(abs(x[i]) * rate) + rounding))
        q[i] = I16(magnitude) if x[i] > F32(0) else I16(-magnitude)
    return 0


@njit(nogil=True, cache=True, inline="always")
def _mask(q, start, end):
    """Which of the LANES numbers from ``start`` on, before ``end``, are not 0."""
    if start + UINT(LANES) <= end:
        return U64(nonzero(q, start))
    mask = U64(0)
    for k in range(end - start):
        mask |= U64(q[start + k] != 0) << U64(k)
    return mask


@njit(nogil=True, cache=True)
def places(x, q, step, rounding, counts, sums):
    """Add up, for |q| of 1, 2, 3 and more, how many there are and where in their cells they are, in 2⁻¹⁶."""
    rate, top, end = F32(F32(1) / step), counts.size - 1, UINT(q.size)
    for start in range(UINT(0), end, UINT(LANES)):
        mask = _mask(q, start, end)
        while mask:
            i = start + UINT(zeros_below(mask))
            mask &= mask - U64(1)
            magnitude = abs(I32(q[i]))
            inside = F32(F32(abs(x[i]) * rate) + rounding) - F32(magnitude)
            kind = min(magnitude - 1, top)
            counts[kind] += 1
            sums[kind] += np.int64(inside * F32(65536))


@njit(nogil=True, cache=True)
def levels(places, rounding, step, out):
    """Write the values of the integers 0, 1, 2, …, rounded to the numbers of ``out``."""
    out[0] = 0
    for k in range(1, out.size):
        inside = (places[min(k, places.size) - 1] + 0.5) / 256
        out[k] = (k - F64(rounding) + inside) * F64(step)


@njit(nogil=True, cache=True)
def add(q, values, weight, start, stop, acc):
    """``acc += weight · values[|q|]``, with the sign of q, for the coordinates of a range."""
    for first in range(UINT(start), UINT(stop), UINT(LANES)):
        mask = _mask(q, first, UINT(stop))
        while mask:
            i = first + UINT(zeros_below(mask))
            mask &= mask - U64(1)
            k = I32(q[i])
            value = values[abs(k)]
            acc[i] = F32(acc[i] + F32(weight * (value if k > 0 else -value)))
    return 0


@njit(nogil=True, cache=True)
def cells(x, step, rounding, counts, sums):
    """Add up, for every k = ⌊|x|/step + rounding⌋, the coordinates and Σ |x|/step. The last entry also holds
    every larger k.
    """
    rate, top = F32(F32(1) / step), counts.size - 1
    for i in range(x.size):
        y = F32(abs(x[i]) * rate)
        k = min(I32(min(F32(y + rounding), F32(1 << 20))), top)
        counts[k] += 1.0
        sums[k] += F64(y)
