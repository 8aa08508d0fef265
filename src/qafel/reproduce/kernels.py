"""Numba kernels of the logistic-regression study."""

import numpy as np
from numba import njit

F32 = np.float32
I32 = np.int32
UINT = np.uintp
LOG2E = F32(1.4426950408889634)
MAX_SCORE = F32(60.0)
EXP2 = tuple(F32(np.log(2.0) ** k / np.prod(np.arange(1.0, k + 1))) for k in range(8))
"""Taylor's coefficients of 2^t, for |t| ≤ 1/2: the rest is below float32's last digit."""


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def scores(x, y, z):
    """z ← x·y, four rows at a time."""
    for a in range(0, x.shape[0], 4):
        b, c, d = a + 1, a + 2, a + 3
        p = q = r = s = F32(0.0)
        for k in range(UINT(x.shape[1])):
            p += x[a, k] * y[k]
            q += x[b, k] * y[k]
            r += x[c, k] * y[k]
            s += x[d, k] * y[k]
        z[a], z[b], z[c], z[d] = p, q, r, s


@njit(nogil=True, cache=True, fastmath={"contract"})
def add_rows(x, weights, factor, y):
    """y ← factor·y + weights·x, four rows at a time."""
    for k in range(UINT(y.size)):
        y[k] *= factor
    for a in range(0, x.shape[0], 4):
        b, c, d = a + 1, a + 2, a + 3
        p, q, r, s = weights[a], weights[b], weights[c], weights[d]
        for k in range(UINT(y.size)):
            y[k] += (p * x[a, k] + q * x[b, k]) + (r * x[c, k] + s * x[d, k])


@njit(nogil=True, cache=True, fastmath={"contract"})
def pull(z, signs, share, powers, pulls):
    """pulls ← share·sign/(1 + exp(sign·z)), with exp written out so that it is vectorised."""
    numbers = powers.view(F32)
    for i in range(UINT(z.size)):
        exponent = min(max(z[i] * signs[i], -MAX_SCORE), MAX_SCORE) * LOG2E
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
    for i in range(UINT(z.size)):
        pulls[i] = share * signs[i] / (F32(1.0) + pulls[i] * numbers[i])


@njit(nogil=True, cache=True)
def descend(mine, start, rates, steps, scratch, delta):
    """P full-batch steps of logistic regression with ridge: delta ← y_P − start.

    ``mine`` is (x, gram, signs, share) of a client: ``x`` has a row per sample, padded with zeros to
    multiples of 4 rows and 16 columns; ``signs`` is 1 or −1; ``share`` is 1/(number of samples).
    ``rates`` is the rate, 1 − rate·ridge, and that to the power of P, less 1.

    Where there are no more samples than coordinates, steps are taken in the space of the scores z = x·y:
    with ``gram`` = rate·x·xᵀ, z ← (1 − rate·ridge)·z + gram·pulls costs a third of two passes over x.
    """
    x, gram, signs, share = mine
    rows = signs.size
    y, z = scratch[0, : x.shape[1]], scratch[1, :rows]
    pulls, pulled, powers = scratch[2, :rows], scratch[3, :rows], scratch[4, :rows].view(I32)
    rate, keep, shrink = rates[0], rates[1], rates[2]
    y[:] = F32(0.0)
    y[: start.size] = start
    if gram.size == 0:
        for _ in range(steps):
            scores(x, y, z)
            pull(z, signs, share, powers, pulls)
            pulls *= rate
            add_rows(x, pulls, keep, y)
        delta[:] = y[: delta.size] - start
        return
    scores(x, y, z)
    pulled[:] = F32(0.0)
    for _ in range(steps):
        pull(z, signs, share, powers, pulls)
        add_rows(gram, pulls, keep, z)
        for k in range(UINT(pulled.size)):
            pulled[k] = keep * pulled[k] + pulls[k]
    pulled *= rate
    add_rows(x, pulled, shrink, y)
    delta[:] = y[: delta.size]
