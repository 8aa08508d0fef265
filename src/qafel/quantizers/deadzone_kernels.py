"""Numba kernels of ``deadzone``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

F32 = np.float32
F64 = np.float64
I16 = np.int16
I32 = np.int32
UINT = np.uintp


@njit(nogil=True, cache=True)
def deadzone_codes(x, step, rounding, start, stop, q):
    """q ← sign(x)·⌊|x|/step + rounding⌋."""
    rate = F32(F32(1) / step)
    for i in range(UINT(start), UINT(stop)):
        magnitude = I32(F32(F32(abs(x[i]) * rate) + rounding))
        q[i] = I16(magnitude) if x[i] > F32(0) else I16(-magnitude)
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
