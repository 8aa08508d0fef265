"""Numba kernels of normalised vectors. No fast-math: these results define x̂."""

import numpy as np
from numba import njit

from qafel.coding.bitplanes import GROUP
from qafel.coding.numbers import F32, F64, UINT

STRETCH = 256
"""Groups that are summed in float32."""


@njit(nogil=True, cache=True)
def moments(x, start, stop, totals):
    """Return max |x| of a range; write Σ x² of every STRETCH of groups to ``totals``, summed in float32 for
    every place in a group. A total is not finite if a number or its square is not.
    """
    sums, largest = np.zeros(GROUP, F32), np.zeros(GROUP, F32)
    for stretch in range(start, stop, STRETCH * GROUP):
        end = min(stretch + STRETCH * GROUP, stop)
        group = stretch
        while group + 4 * GROUP <= end:  # four groups at a time: fewer loads and stores of sums
            a, b = UINT(group), UINT(group + GROUP)
            c, d = UINT(group + 2 * GROUP), UINT(group + 3 * GROUP)
            for j in range(UINT(GROUP)):
                p, q, r, s = abs(x[a + j]), abs(x[b + j]), abs(x[c + j]), abs(x[d + j])
                low, high = F32(F32(p * p) + F32(q * q)), F32(F32(r * r) + F32(s * s))
                sums[j] = F32(sums[j] + F32(low + high))
                p, r = p if p > q else q, r if r > s else s
                p = p if p > r else r
                largest[j] = p if p > largest[j] else largest[j]
            group += 4 * GROUP
        while group < end:
            a = UINT(group)
            for j in range(UINT(min(GROUP, end - group))):
                p = abs(x[a + j])
                sums[j] = F32(sums[j] + F32(p * p))
                largest[j] = p if p > largest[j] else largest[j]
            group += GROUP
        total = 0.0
        for j in range(GROUP):
            total += F64(sums[j])
            sums[j] = F32(0)
        totals[stretch // (STRETCH * GROUP)] = total
    result = F32(0)
    for j in range(GROUP):
        result = max(result, largest[j])
    return result
