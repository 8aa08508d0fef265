"""Numba kernels of ``rotated``. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.quantizers._rotation import BLOCK

F32 = np.float32
F64 = np.float64


@njit(nogil=True, cache=True)
def powers(y, out):
    """Write Σ y² of every block."""
    for block in range(out.size):
        total = 0.0
        for j in range(block * BLOCK, (block + 1) * BLOCK):
            total += F64(y[j]) * F64(y[j])
        out[block] = total


@njit(nogil=True, cache=True)
def dead_codes(y, totals, steps, rounding, place, factors, q):
    """q ← sign(y)·⌊|y|/step + rounding⌋ with a step for every block, in units of its rms. Writes the factor
    of every block. The largest coordinate of a block that is not zero gets at least ±1.
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
    """Write the values of the codes of ``dead_codes``."""
    for j in range(q.size):
        k = np.int64(q[j])
        size = F32(factors[j // BLOCK] * F32(abs(k) - rounding + place)) if k else F32(0)
        y[j] = -size if k < 0 else size
