"""Numba kernels of the server optimizers: one pass over the model. No fast-math: they define x̂."""

import numpy as np
from numba import njit

F32 = np.float32
UINT = np.uintp


@njit(nogil=True, cache=True)
def sgd(beta, rate, total, count, m, x, hidden, new_m, new_x, ahead):
    """Step with momentum."""
    for i in range(UINT(x.size)):
        new_m[i] = beta * m[i] + total[i] / count
        new_x[i] = x[i] + rate * new_m[i]
        ahead[i] = new_x[i] - hidden[i]


@njit(nogil=True, cache=True, error_model="numpy")
def adam(
    beta1, rest1, beta2, rest2, rate, root, eps, total, count, m, v, x, hidden, new_m, new_v, new_x, ahead
):
    """Step with both moments; ``rate`` and ``root`` have the corrections of their bias."""
    for i in range(UINT(x.size)):
        g = F32(total[i] / count)
        new_m[i] = F32(F32(beta1 * m[i]) + F32(rest1 * g))
        new_v[i] = F32(F32(beta2 * v[i]) + F32(rest2 * F32(g * g)))
        scale = F32(F32(np.sqrt(new_v[i]) / root) + eps)
        new_x[i] = F32(x[i] + F32(rate * F32(new_m[i] / scale)))
        ahead[i] = new_x[i] - hidden[i]


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad(rate, eps, total, count, v, x, hidden, new_v, new_x, ahead):
    """Step with the sum of squares."""
    for i in range(UINT(x.size)):
        g = F32(total[i] / count)
        new_v[i] = F32(v[i] + F32(g * g))
        new_x[i] = F32(x[i] + F32(rate * F32(g / F32(np.sqrt(new_v[i]) + eps))))
        ahead[i] = new_x[i] - hidden[i]


@njit(nogil=True, cache=True, error_model="numpy")
def yogi(beta1, rest1, rest2, rate, eps, total, count, m, v, x, hidden, new_m, new_v, new_x, ahead):
    """Step with both moments; the second one moves towards Δ̄² by no more than a share of Δ̄² itself."""
    for i in range(UINT(x.size)):
        g = F32(total[i] / count)
        square = F32(g * g)
        new_m[i] = F32(F32(beta1 * m[i]) + F32(rest1 * g))
        change = F32(rest2 * square)
        if v[i] > square:
            new_v[i] = F32(v[i] - change)
        elif v[i] < square:
            new_v[i] = F32(v[i] + change)
        else:
            new_v[i] = v[i]
        new_x[i] = F32(x[i] + F32(rate * F32(new_m[i] / F32(np.sqrt(new_v[i]) + eps))))
        ahead[i] = new_x[i] - hidden[i]
