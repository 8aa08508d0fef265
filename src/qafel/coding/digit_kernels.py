"""Small numbers as digits of symbols, and apart from them the few that are too large.

Numbers from −m to m are digits of base 2m + 1, several to a symbol: digit k of symbol s of n is number
s + k·n, and 0 where there is none. A number beyond ±m, an outlier, is written as ±m; how many numbers lie
between it and the outlier before, and how far beyond ±m it is, follow in bit strings, Rice-coded.
"""

import numpy as np
from numba import njit

from qafel.coding.lanes import LANES, beyond, zeros_below

I16 = np.int16
I32 = np.int32
U8 = np.uint8
U16 = np.uint16
U32 = np.uint32
U64 = np.uint64
UINT = np.uintp

GROUPINGS = ((6, 1), (4, 2), (3, 4), (2, 7), (2, 13), (1, 127))
"""Digits to a symbol, and m."""
FEW = 160
"""Of a sample, one number in so many may lie beyond ±m."""
SAMPLES, RUN = 512, 32
"""What is looked at to choose a grouping."""
BLOCK = 4080
"""Symbols that stay in the cache between their digits; as many for every state of ``rans_kernels``."""
MOST_RICE = 20
HEAD = 10
"""Bytes before the first outlier."""


@njit(nogil=True, cache=True)
def largest(q):
    """max |q|."""
    most = I16(0)
    for i in range(UINT(q.size)):
        most = max(most, I16(abs(q[i])))
    return most


@njit(nogil=True, cache=True)
def _beyond(q, most):
    count = U16(0)
    for i in range(UINT(q.size)):
        count += U16(U16(q[i] + most) > U16(2 * most))
    return np.int64(count)


@njit(nogil=True, cache=True)
def grouping(q):
    """The first of the groupings that leaves few numbers beyond ±m, by a sample."""
    apart = max(RUN, q.size // SAMPLES)
    for k, (_, most) in enumerate(GROUPINGS):
        count, seen = 0, 0
        for start in range(0, q.size, apart):
            run = q[start : start + RUN]
            count += _beyond(run, I16(most))
            seen += run.size
        if count * FEW <= seen:
            return k
    return len(GROUPINGS) - 1


@njit(nogil=True, cache=True)
def outliers(q, most, places, far):
    """Places of outliers, and |q| − m − 1; how many there are, or −1 where ``places`` is too short."""
    whole, count = UINT(q.size) & ~UINT(LANES - 1), 0
    for start in range(UINT(0), whole, UINT(LANES)):
        found = U64(beyond(q, start, I16(most)))
        if found and count + LANES > places.size:
            return -1
        while found:
            i = start + UINT(zeros_below(found))
            places[count], far[count] = i, abs(I32(q[i])) - most - 1
            count += 1
            found &= found - U64(1)
    for i in range(whole, UINT(q.size)):
        if abs(I32(q[i])) > most:
            if count == places.size:
                return -1
            places[count], far[count] = i, abs(I32(q[i])) - most - 1
            count += 1
    return count


@njit(nogil=True, cache=True)
def symbols(q, most, digits, out, counts):
    """Numbers to symbols, counted."""
    base, size = U16(2 * most + 1), UINT(out.size)
    tallies = np.zeros((4, counts.size), U32)
    for start in range(UINT(0), size, UINT(BLOCK)):
        stop = min(start + UINT(BLOCK), size)
        for s in range(start, stop):
            out[s] = U16(0)
        for k in range(UINT(digits)):
            shift = k * size
            end = min(stop, UINT(q.size) - shift) if UINT(q.size) > shift else UINT(0)
            for s in range(start, max(start, end)):
                clipped = min(max(q[s + shift], I16(-most)), I16(most))
                out[s] = U16(U16(out[s] * base) + U16(I16(clipped + I16(most))))
            for s in range(max(start, end), stop):
                out[s] = U16(U16(out[s] * base) + U16(most))
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
def numbers(block, start, size, most, digits, q):
    """A block of symbols, used up by this, from ``start`` on, of ``size``, to numbers; 1 if some follow the
    last of them.
    """
    base = U16(2 * most + 1)
    reciprocal = U16((65536 + base - 1) // base)
    count = UINT(block.size)
    for back in range(UINT(digits)):
        first = UINT(start) + (UINT(digits) - UINT(1) - back) * UINT(size)
        end = min(count, UINT(q.size) - first) if UINT(q.size) > first else UINT(0)
        for s in range(end):
            quotient = U16(U32(U32(block[s]) * U32(reciprocal)) >> U32(16))
            q[s + first] = I16(I16(U16(block[s] - U16(quotient * base))) - I16(most))
            block[s] = quotient
        for s in range(end, count):
            quotient = U16(U32(U32(block[s]) * U32(reciprocal)) >> U32(16))
            if U16(block[s] - U16(quotient * base)) != U16(most):
                return 1
            block[s] = quotient
    return 0


@njit(nogil=True, cache=True)
def _rice(total, count):
    """The Rice parameter for numbers whose mean is total/count."""
    rice = 0
    while count << rice < total and rice < MOST_RICE:
        rice += 1
    return rice


@njit(nogil=True, cache=True, inline="always")
def _put(bits, length, out, at, kept, filled):
    """Bits to ``out``, whole bytes at a time; the next byte, and what is kept for it."""
    kept |= U64(bits) << U64(filled)
    filled += length
    while filled >= 8:
        out[at] = U8(kept & U64(255))
        kept >>= U64(8)
        filled -= 8
        at += 1
    return at, kept, filled


@njit(nogil=True, cache=True)
def _write(values, rice, out):
    """Rice-code ``values``; the number of bytes, or −1 if ``out`` is too short."""
    at, kept, filled = 0, U64(0), 0
    for value in values:
        ones = np.int64(value) >> rice
        if at + ones // 8 + 8 > out.size:
            return -1
        while ones >= 32:
            at, kept, filled = _put((1 << 32) - 1, 32, out, at, kept, filled)
            ones -= 32
        low = np.int64(value) & ((1 << rice) - 1)
        at, kept, filled = _put(
            (low << (ones + 1)) | ((1 << ones) - 1), ones + 1 + rice, out, at, kept, filled
        )
    if filled:
        at, kept, filled = _put(0, 8 - filled, out, at, kept, filled)
    return at


@njit(nogil=True, cache=True)
def _write_whole(value, out):
    for k in range(4):
        out[k] = U8((value >> (8 * k)) & 255)


@njit(nogil=True, cache=True)
def _read_whole(data):
    return np.int64(data[0]) | np.int64(data[1]) << 8 | np.int64(data[2]) << 16 | np.int64(data[3]) << 24


@njit(nogil=True, cache=True)
def write_outliers(places, far, out):
    """How many there are, and bytes of their gaps (uint32 both), the Rice parameters of gaps and of how far
    beyond they are (a byte each), the gaps, how far; the number of bytes, or −1 if ``out`` is too short.
    """
    count, total, before = places.size, 0, -1
    for k in range(count):
        total += np.int64(far[k])
        places[k], before = places[k] - before - 1, places[k]
    gap, rest = _rice(np.int64(before) + 1 - count, count), _rice(total, count)
    if out.size < HEAD:
        return -1
    first = _write(places, gap, out[HEAD:])
    second = _write(far, rest, out[HEAD + max(first, 0) :])
    if first < 0 or second < 0:
        return -1
    _write_whole(count, out)
    _write_whole(first, out[4:])
    out[8], out[9] = U8(gap), U8(rest)
    return HEAD + first + second


@njit(nogil=True, cache=True, inline="always")
def _window(data, at):
    """The 57 bits, at least, from bit ``at`` on."""
    i, bits = UINT(at) >> UINT(3), U64(0)
    for k in range(UINT(8)):
        bits |= U64(data[i + k]) << U64(UINT(8) * k)
    return bits >> U64(at & 7)


@njit(nogil=True, cache=True, inline="always")
def _read(data, rice, at, last):
    """(value, where it ends); beyond ``last``, where the last window is, if it cannot be there."""
    ones, run = 0, 32
    while run >= 32:
        if at + ones > last:
            return 0, last + 1
        window = _window(data, at + ones)
        run = min(np.int64(zeros_below(~window)), 32)
        ones += run
    low = np.int64(window >> U64(run + 1)) & ((1 << rice) - 1)
    return (ones << rice) | low, at + ones + 1 + rice


@njit(nogil=True, cache=True)
def _ends(data, at, last):
    """Whether only zeros follow bit ``at`` in its byte."""
    return at <= last and not _window(data, at) & U64((1 << (-at % 8)) - 1)


@njit(nogil=True, cache=True)
def read_outliers(data, size, most, limit, places, far):
    """(how many, where they end), the inverse of ``write_outliers``; (−1, 0) if these are not outliers of
    ``size`` numbers up to ``limit`` with eight bytes after them.
    """
    if data.size < HEAD + 8 or data[8] > MOST_RICE or data[9] > MOST_RICE:
        return -1, 0
    count, gap, rest = _read_whole(data), np.int64(data[8]), np.int64(data[9])
    middle, last = 8 * (HEAD + _read_whole(data[4:])), 8 * (data.size - 8)
    if count > places.size or middle > last:
        return -1, 0
    at, beside, before = 8 * HEAD, middle, -1
    for k in range(count):
        between, at = _read(data, gap, at, last)
        more, beside = _read(data, rest, beside, last)
        before += between + 1
        if at > last or beside > last or before >= size or most + more + 1 > limit:
            return -1, 0
        places[k], far[k] = before, more
    if (at + 7) // 8 * 8 != middle or not _ends(data, at, last) or not _ends(data, beside, last):
        return -1, 0
    return count, (beside + 7) // 8


@njit(nogil=True, cache=True)
def move_outliers(q, most, places, far):
    """Outliers from ±m to where they belong; 1 if there is none where one should be."""
    for k in range(places.size):
        value = q[places[k]]
        if abs(value) != most:
            return 1
        more = I16(far[k] + 1)
        q[places[k]] = I16(value + more) if value > 0 else I16(value - more)
    return 0
