"""Numba kernels of the logistic-regression study."""

import numpy as np
from numba import njit

F32 = np.float32
I32 = np.int32
UINT = np.uintp
LOG2E = F32(1.4426950408889634)
MOST = F32(60.0)
BLOCK = 16
EXP2 = tuple(F32(np.log(2.0) ** k / np.prod(np.arange(1.0, k + 1))) for k in range(8))
"""Taylor's coefficients of 2^t, for |t| ≤ 1/2: the rest is below float32's last digit."""


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def descend(x, signs, share, start, rates, steps, scratch, delta):
    """P full-batch steps of logistic regression with ridge: delta ← y_P − start.

    ``x`` has a row per sample, padded with zeros to multiples of 4 rows and 16 columns; ``signs`` is 1 or −1,
    ``share`` 1/(number of samples). Sixteen samples at a time stay in the cache between their scores and
    their pulls; exp is spelled out to be vectorised.
    """
    count, size = x.shape
    y, gradient = scratch[0], scratch[1]
    pulls, powers = np.zeros(BLOCK, F32), np.empty(BLOCK, I32)
    numbers = powers.view(F32)
    rate, decay = rates[0], rates[1]
    y[:] = F32(0.0)
    for k in range(start.size):
        y[k] = start[k]
    for _ in range(steps):
        for k in range(UINT(size)):
            gradient[k] = decay * y[k]
        for first in range(0, count, BLOCK):
            rows = min(BLOCK, count - first)
            for i in range(0, rows, 4):
                a = UINT(first + i)
                b, c, d = a + UINT(1), a + UINT(2), a + UINT(3)
                p = q = r = s = F32(0.0)
                for k in range(UINT(size)):
                    p += x[a, k] * y[k]
                    q += x[b, k] * y[k]
                    r += x[c, k] * y[k]
                    s += x[d, k] * y[k]
                pulls[i], pulls[i + 1] = p * signs[first + i], q * signs[first + i + 1]
                pulls[i + 2], pulls[i + 3] = r * signs[first + i + 2], s * signs[first + i + 3]
            for i in range(UINT(BLOCK)):
                exponent = min(max(pulls[i], -MOST), MOST) * LOG2E
                whole = np.floor(exponent + F32(0.5))
                t = exponent - whole
                power = EXP2[7]
                power = power * t + EXP2[6]
                power = power * t + EXP2[5]
                power = power * t + EXP2[4]
                power = power * t + EXP2[3]
                power = power * t + EXP2[2]
                power = power * t + EXP2[1]
                pulls[i] = power * t + EXP2[0]
                powers[i] = I32(I32(whole) + I32(127)) << I32(23)
            for i in range(UINT(BLOCK)):
                pulls[i] = share / (F32(1.0) + pulls[i] * numbers[i])
            for i in range(0, rows, 4):
                a = UINT(first + i)
                b, c, d = a + UINT(1), a + UINT(2), a + UINT(3)
                p = pulls[i] * signs[first + i]
                q = pulls[i + 1] * signs[first + i + 1]
                r = pulls[i + 2] * signs[first + i + 2]
                s = pulls[i + 3] * signs[first + i + 3]
                for k in range(UINT(size)):
                    gradient[k] -= (p * x[a, k] + q * x[b, k]) + (r * x[c, k] + s * x[d, k])
        for k in range(UINT(size)):
            y[k] -= rate * gradient[k]
    for k in range(delta.size):
        delta[k] = y[k] - start[k]
