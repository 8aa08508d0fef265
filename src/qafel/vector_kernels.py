"""Numba kernels of vector arithmetic that quantizers and the server share. No fast-math: they define x̂.

Sums run in 16 lanes of float64 that are added in order, so that they do not depend on the vector width, the
number of threads or the machine.
"""

import numpy as np
from numba import njit

F64 = np.float64
UINT = np.uintp


@njit(nogil=True, cache=True)
def squared_norm(x, start, stop):
    """Return Σ x² over a range: 16 lanes, the lanes in order, then the tail."""
    lanes = np.zeros(16, F64)
    first = UINT(start)
    whole = UINT((stop - start) & ~15)
    for i in range(UINT(0), whole, UINT(16)):
        for lane in range(UINT(16)):
            value = F64(x[first + i + lane])
            lanes[lane] += value * value
    total = 0.0
    for lane in range(16):
        total += lanes[lane]
    for i in range(first + whole, UINT(stop)):
        value = F64(x[i])
        total += value * value
    return total


@njit(nogil=True, cache=True)
def squared_distance(x, y):
    """Return Σ (x − y)² in float64, in lanes as in ``squared_norm``."""
    lanes = np.zeros(16, F64)
    whole = UINT(x.size & ~15)
    for i in range(UINT(0), whole, UINT(16)):
        for lane in range(UINT(16)):
            value = F64(x[i + lane]) - F64(y[i + lane])
            lanes[lane] += value * value
    total = 0.0
    for lane in range(16):
        total += lanes[lane]
    for i in range(whole, UINT(x.size)):
        value = F64(x[i]) - F64(y[i])
        total += value * value
    return total


@njit(nogil=True, cache=True)
def add_and_clear(total, weight, x):
    """``total += weight · x``, and x becomes zero."""
    for i in range(UINT(x.size)):
        total[i] = np.float32(total[i] + np.float32(weight * x[i]))
        x[i] = np.float32(0)
