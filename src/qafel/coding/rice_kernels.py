"""Rice coding of non-negative integers: ``value >> r`` ones, a zero, then the r low bits, lowest first.

Bits fill bytes from the low end. The last byte is filled up with zeros; ``read`` rejects any other value, so
that every sequence of values has exactly one coding.
"""

import numpy as np
from numba import njit

from qafel.coding.numbers import U8, U64, UINT
from qafel.coding.simd import zeros_below

RUN = 24
"""Ones that are written or read at a time. The rest of a value, at most RUN + r bits, fits into one 57-bit
window for every r up to 30."""
PADDING = 8
"""Bytes that must follow the coded values in ``read`` and be free in ``write``."""


@njit(nogil=True, cache=True, inline="always")
def _put(bits, length, out, at, kept, filled):
    """Append ``length`` bits to ``out``. Returns (next byte, bits of an unfinished byte, their number)."""
    kept |= U64(bits) << U64(filled)
    filled += length
    while filled >= 8:
        out[at] = U8(kept & U64(255))
        kept >>= U64(8)
        filled -= 8
        at += 1
    return at, kept, filled


@njit(nogil=True, cache=True)
def write(values, rice, out):
    """Code ``values`` with parameter ``rice``. Returns the number of bytes, or −1 if ``out`` is too short."""
    at, kept, filled = 0, U64(0), 0
    for value in values:
        ones = np.int64(value) >> rice
        if at + ones // 8 + PADDING > out.size:
            return -1
        while ones >= RUN:
            at, kept, filled = _put((1 << RUN) - 1, RUN, out, at, kept, filled)
            ones -= RUN
        low = np.int64(value) & ((1 << rice) - 1)
        at, kept, filled = _put(
            (low << (ones + 1)) | ((1 << ones) - 1), ones + 1 + rice, out, at, kept, filled
        )
    if filled:
        at, kept, filled = _put(0, 8 - filled, out, at, kept, filled)
    return at


@njit(nogil=True, cache=True, inline="always")
def _window(data, at):
    """Return at least 57 bits, from bit ``at`` on."""
    i, bits = UINT(at) >> UINT(3), U64(0)
    for k in range(UINT(8)):
        bits |= U64(data[i + k]) << U64(UINT(8) * k)
    return bits >> U64(at & 7)


@njit(nogil=True, cache=True, inline="always")
def _read_one(data, rice, at, last):
    """Return (value, where it ends). The end is beyond ``last``, the last readable window, if it is cut."""
    ones, run = 0, RUN
    while run >= RUN:
        if at + ones > last:
            return 0, last + 1
        window = _window(data, at + ones)
        run = min(np.int64(zeros_below(~window)), RUN)
        ones += run
    low = np.int64(window >> U64(run + 1)) & ((1 << rice) - 1)
    return (ones << rice) | low, at + ones + 1 + rice


@njit(nogil=True, cache=True)
def read(data, start, rice, max_value, values):
    """Fill ``values`` from byte ``start`` on, the inverse of ``write``. ``PADDING`` bytes of ``data``, of any
    content, follow the coded values. Returns the byte after them, or −1 if a value is above ``max_value``,
    the data ends too early, or a bit belongs to no value.
    """
    at, last = 8 * start, 8 * (data.size - PADDING)
    for k in range(values.size):
        value, at = _read_one(data, rice, at, last)
        if at > last or value > max_value:
            return -1
        values[k] = value
    if at > last or _window(data, at) & U64((1 << (-at % 8)) - 1):
        return -1
    return (at + 7) // 8
