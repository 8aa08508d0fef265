"""Numba kernels of ``affine``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.bitplanes import GROUP
from qafel.coding.bitplanes_kernels import pack, unpack
from qafel.coding.numbers import F32, F64, I32, U8


@njit(nogil=True, cache=True)
def affine_codes(x, step, zero, max_code, width, start, stop, out):
    """Round x/step to the nearest integer (ties to even), add ``zero``, clip to 0 … max_code, pack."""
    low = np.zeros(GROUP, U8)
    high = np.zeros(GROUP, U8)
    for group in range(start, stop, GROUP):
        count = min(GROUP, stop - group)
        for j in range(count):
            level = np.rint(F64(x[group + j]) / step) + zero if step > 0 else 0.0
            code = I32(min(max(level, 0.0), F64(max_code)))
            low[j] = U8(code & 255)
            high[j] = U8(code >> 8)
        at = pack(low, 0, count, min(width, 8), out, group // 8 * width)
        if width > 8:
            pack(high, 0, count, width - 8, out, at)
    return 0


@njit(nogil=True, cache=True)
def affine_add(data, step, zero, width, weight, acc):
    """``acc += weight · (code − zero) · step``, each value rounded once and kept within float32."""
    low = np.zeros(GROUP, U8)
    high = np.zeros(GROUP, U8)
    largest = F64(np.finfo(np.float32).max)
    for group in range(0, acc.size, GROUP):
        count = min(GROUP, acc.size - group)
        at = unpack(data, group // 8 * width, count, min(width, 8), low, 0)
        if width > 8:
            unpack(data, at, count, width - 8, high, 0)
        for j in range(count):
            code = I32(low[j]) | (I32(high[j]) << 8)
            value = F32(min(max((code - zero) * step, -largest), largest))
            acc[group + j] = F32(acc[group + j] + F32(weight * value))
    return 0
