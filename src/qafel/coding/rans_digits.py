"""The symbols that ``rans`` codes: several small numbers make one symbol; large numbers are coded apart.

Numbers from −m to m are digits of base 2m + 1. Digit k of symbol s is number s + k·n, n being the number of
symbols; it is 0 beyond the last number. A number beyond ±m is an outlier: its digit is ±m, and two Rice-coded
lists say where the outliers are (gaps between their positions) and how far beyond ±m they lie.
"""

import numpy as np
from numba import njit

from qafel.coding import rice_kernels as rice
from qafel.coding.simd import LANES, beyond, zeros_below

I16 = np.int16
I32 = np.int32
U8 = np.uint8
U16 = np.uint16
U32 = np.uint32
U64 = np.uint64
UINT = np.uintp

GROUPINGS = ((6, 1), (4, 2), (3, 4), (2, 7), (2, 13), (1, 127))
"""(digits of a symbol, m), in the order in which ``choose_grouping`` tries them."""
OUTLIER_RATE = 160
"""One number of a sample in so many may lie beyond ±m."""
SAMPLES, RUN = 512, 32
"""A sample is this many runs of this many numbers."""
BLOCK = 4080
"""Symbols that are processed while they are in the cache; a multiple of the states of ``rans``."""
MAX_RICE = 20
HEAD = 10
"""Bytes before the Rice-coded lists of outliers."""


@njit(nogil=True, cache=True)
def largest(q):
    """Return max |q|."""
    magnitude = I16(0)
    for i in range(UINT(q.size)):
        magnitude = max(magnitude, I16(abs(q[i])))
    return magnitude


@njit(nogil=True, cache=True)
def _count_beyond(q, max_digit):
    count = U16(0)
    for i in range(UINT(q.size)):
        count += U16(U16(q[i] + max_digit) > U16(2 * max_digit))
    return np.int64(count)


@njit(nogil=True, cache=True)
def choose_grouping(q):
    """Return the index of the first grouping with few outliers in a sample of ``q``."""
    stride = max(RUN, q.size // SAMPLES)
    for k, (_, max_digit) in enumerate(GROUPINGS):
        count, seen = 0, 0
        for start in range(0, q.size, stride):
            run = q[start : start + RUN]
            count += _count_beyond(run, I16(max_digit))
            seen += run.size
        if count * OUTLIER_RATE <= seen:
            return k
    return len(GROUPINGS) - 1


@njit(nogil=True, cache=True)
def find_outliers(q, max_digit, positions, excess):
    """Write the positions of outliers and their excess |q| − m − 1. Returns their number, or −1 if the arrays
    are too short.
    """
    whole, count = UINT(q.size) & ~UINT(LANES - 1), 0
    for start in range(UINT(0), whole, UINT(LANES)):
        mask = U64(beyond(q, start, I16(max_digit)))
        if mask and count + LANES > positions.size:
            return -1
        while mask:
            i = start + UINT(zeros_below(mask))
            positions[count], excess[count] = i, abs(I32(q[i])) - max_digit - 1
            count += 1
            mask &= mask - U64(1)
    for i in range(whole, UINT(q.size)):
        if abs(I32(q[i])) > max_digit:
            if count == positions.size:
                return -1
            positions[count], excess[count] = i, abs(I32(q[i])) - max_digit - 1
            count += 1
    return count


@njit(nogil=True, cache=True)
def to_symbols(q, max_digit, digits, out, counts):
    """Write the symbols of ``q`` to ``out``, and how often each occurs to ``counts``."""
    base, size = U16(2 * max_digit + 1), UINT(out.size)
    tallies = np.zeros((4, counts.size), U32)
    for start in range(UINT(0), size, UINT(BLOCK)):
        stop = min(start + UINT(BLOCK), size)
        for s in range(start, stop):
            out[s] = U16(0)
        for k in range(UINT(digits)):
            shift = k * size
            end = min(stop, UINT(q.size) - shift) if UINT(q.size) > shift else UINT(0)
            for s in range(start, max(start, end)):
                clipped = min(max(q[s + shift], I16(-max_digit)), I16(max_digit))
                out[s] = U16(U16(out[s] * base) + U16(I16(clipped + I16(max_digit))))
            for s in range(max(start, end), stop):
                out[s] = U16(U16(out[s] * base) + U16(max_digit))
        whole = start + ((stop - start) & ~UINT(3))
        for s in range(start, whole, UINT(4)):
            tallies[0, out[s]] += U32(1)
            tallies[1, out[s + UINT(1)]] += U32(1)
            tallies[2, out[s + UINT(2)]] += U32(1)
            tallies[3, out[s + UINT(3)]] += U32(1)
        for s in range(whole, stop):
            tallies[0, out[s]] += U32(1)
    for symbol in range(counts.size):
        counts[symbol] = tallies[0, symbol] + tallies[1, symbol] + tallies[2, symbol] + tallies[3, symbol]


@njit(nogil=True, cache=True)
def to_numbers(block, start, size, max_digit, digits, q):
    """Write the numbers of a block of symbols, which begins at symbol ``start`` of ``size``, to ``q``.
    Overwrites ``block``. Returns 1 if a digit beyond the last number is not 0, else 0.
    """
    base = U16(2 * max_digit + 1)
    reciprocal = U16((65536 + base - 1) // base)
    count = UINT(block.size)
    for back in range(UINT(digits)):
        first = UINT(start) + (UINT(digits) - UINT(1) - back) * UINT(size)
        end = min(count, UINT(q.size) - first) if UINT(q.size) > first else UINT(0)
        for s in range(end):
            quotient = U16(U32(U32(block[s]) * U32(reciprocal)) >> U32(16))
            q[s + first] = I16(I16(U16(block[s] - U16(quotient * base))) - I16(max_digit))
            block[s] = quotient
        for s in range(end, count):
            quotient = U16(U32(U32(block[s]) * U32(reciprocal)) >> U32(16))
            if U16(block[s] - U16(quotient * base)) != U16(max_digit):
                return 1
            block[s] = quotient
    return 0


@njit(nogil=True, cache=True)
def _best_rice(total, count):
    """Return the Rice parameter for ``count`` numbers of this sum."""
    parameter = 0
    while count << parameter < total and parameter < MAX_RICE:
        parameter += 1
    return parameter


@njit(nogil=True, cache=True)
def _write_uint32(value, out):
    for k in range(4):
        out[k] = U8((value >> (8 * k)) & 255)


@njit(nogil=True, cache=True)
def _read_uint32(data):
    return np.int64(data[0]) | np.int64(data[1]) << 8 | np.int64(data[2]) << 16 | np.int64(data[3]) << 24


@njit(nogil=True, cache=True)
def write_outliers(positions, excess, out):
    """Write the number of outliers and of the bytes of their gaps (uint32 each), the Rice parameters of gaps
    and excess (a byte each), the gaps, the excess. Overwrites ``positions``. Returns the number of bytes, or
    −1 if ``out`` is too short.
    """
    count, total, before = positions.size, 0, -1
    for k in range(count):
        total += np.int64(excess[k])
        positions[k], before = positions[k] - before - 1, positions[k]
    gap_rice, excess_rice = _best_rice(np.int64(before) + 1 - count, count), _best_rice(total, count)
    if out.size < HEAD:
        return -1
    gap_bytes = rice.write(positions, gap_rice, out[HEAD:])
    excess_bytes = rice.write(excess, excess_rice, out[HEAD + max(gap_bytes, 0) :])
    if gap_bytes < 0 or excess_bytes < 0:
        return -1
    _write_uint32(count, out)
    _write_uint32(gap_bytes, out[4:])
    out[8], out[9] = U8(gap_rice), U8(excess_rice)
    return HEAD + gap_bytes + excess_bytes


@njit(nogil=True, cache=True)
def read_outliers(data, size, max_digit, limit, positions, excess):
    """The inverse of ``write_outliers``. Returns (number of outliers, byte after them), or (−1, 0) if these
    are not outliers of ``size`` numbers up to ``limit`` with at least eight bytes after them.
    """
    if data.size < HEAD + rice.PADDING or data[8] > MAX_RICE or data[9] > MAX_RICE:
        return -1, 0
    count = _read_uint32(data)
    if count > positions.size:
        return -1, 0
    positions, excess = positions[:count], excess[:count]
    middle = rice.read(data, HEAD, np.int64(data[8]), size - 1, positions)
    if middle != HEAD + _read_uint32(data[4:]):
        return -1, 0
    end = rice.read(data, middle, np.int64(data[9]), limit - max_digit - 1, excess)
    before = -1
    for k in range(count):
        before += np.int64(positions[k]) + 1
        if before >= size:
            return -1, 0
        positions[k] = before
    return (count, end) if end >= 0 else (-1, 0)


@njit(nogil=True, cache=True)
def add_excess(q, max_digit, positions, excess):
    """Move outliers from ±m to their values. Returns 1 if a number at their positions is not ±m, else 0."""
    for k in range(positions.size):
        value = q[positions[k]]
        if abs(value) != max_digit:
            return 1
        more = I16(excess[k] + 1)
        q[positions[k]] = I16(value + more) if value > 0 else I16(value - more)
    return 0
