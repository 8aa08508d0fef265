"""Interleaved rANS with a frequency table for each stream. Integer arithmetic only.

Numbers become symbols (``rans_digits``). Symbol k is coded into state k mod 6, the last symbol first; six
independent states let the processor work on several symbols at a time. A state has 32 bits and is shifted by
words of 16. A stream is

    the grouping (a byte), the frequency table, the outliers, the states (uint32), the words (uint16)
"""

import numpy as np
from numba import njit

from qafel.coding.rans_digits import (
    BLOCK,
    GROUPINGS,
    add_excess,
    choose_grouping,
    find_outliers,
    largest,
    read_outliers,
    to_numbers,
    to_symbols,
    write_outliers,
)
from qafel.coding.simd import LANES

I32 = np.int32
U8 = np.uint8
U16 = np.uint16
U32 = np.uint32
U64 = np.uint64
UINT = np.uintp

SCALE = 12
"""The frequencies of a table add up to 2¹²."""
STATES = 6
"""Eight states need more registers than there are; four leave the processor waiting."""
LOWEST = U64(1 << 16)
MAX_OUTLIERS = 64
"""At most one number in so many is an outlier."""
TABLE = 1 << 12
"""Bytes that are enough for the grouping and the table."""
RECIPROCAL = 44
"""⌊state/frequency⌋ = ⌊state·⌈2⁴⁴/frequency⌉/2⁴⁴⌋, exactly, because state < 2²⁰·frequency."""


@njit(nogil=True, cache=True)
def _frequencies(counts):
    """Scale counts so that they add up to 2¹² and no symbol that occurs gets 0."""
    total, scaled = np.int64(counts.sum()), np.zeros(counts.size, U16)
    excess = -(1 << SCALE)
    for symbol in range(counts.size):
        if counts[symbol]:
            share = ((np.int64(counts[symbol]) << SCALE) + total // 2) // total
            scaled[symbol] = max(share, 1)
            excess += scaled[symbol]
    while excess:
        symbol = np.argmax(scaled)
        taken = min(excess, max(np.int64(scaled[symbol]) // 4, 1))
        scaled[symbol] -= taken
        excess -= taken
    return scaled


@njit(nogil=True, cache=True)
def _write_table(frequencies, out):
    """Write a byte for a frequency below 255, else 255 and a uint16. Returns the number of bytes."""
    at = 0
    for symbol in range(frequencies.size):
        frequency = frequencies[symbol]
        out[at] = U8(min(frequency, U16(255)))
        at += 1
        if frequency >= 255:
            out[at], out[at + 1] = U8(frequency & U16(255)), U8(frequency >> U16(8))
            at += 2
    return at


@njit(nogil=True, cache=True)
def _read_table(data, frequencies):
    """The inverse of ``_write_table``. Returns where it ends, or −1 if it is not a valid table."""
    at, total = 0, 0
    for symbol in range(frequencies.size):
        if at + 3 > data.size:
            return -1
        frequency = np.int64(data[at])
        at += 1
        if frequency == 255:
            frequency = np.int64(data[at]) | np.int64(data[at + 1]) << 8
            at += 2
            if frequency < 255:
                return -1
        total += frequency
        if total > 1 << SCALE:
            return -1
        frequencies[symbol] = frequency
    return at if total == 1 << SCALE else -1


@njit(nogil=True, cache=True)
def _coding_table(frequencies):
    """Return (reciprocal, first state that must shed a word, 2¹² − frequency, start) of every symbol."""
    table, start = np.zeros((frequencies.size, 4), U64), 0
    for symbol in range(frequencies.size):
        frequency = np.int64(frequencies[symbol])
        if frequency:
            table[symbol, 0] = U64(((1 << RECIPROCAL) + frequency - 1) // frequency)
            table[symbol, 1] = U64(frequency << (32 - SCALE))
            table[symbol, 2] = U64((1 << SCALE) - frequency)
            table[symbol, 3] = U64(start)
            start += frequency
    return table


@njit(nogil=True, cache=True, inline="always")
def _push(state, table, symbol, words, at):
    words[at] = U16(state & U64(0xFFFF))
    full = U64(state >= table[symbol, 1])  # arithmetic instead of an unpredictable branch
    at -= UINT(full)
    state >>= full << U64(4)
    quotient = (state * table[symbol, 0]) >> U64(RECIPROCAL)
    return state + table[symbol, 3] + quotient * table[symbol, 2], at


@njit(nogil=True, cache=True)
def _push_all(data, frequencies, words):
    """Code symbols, the last one first, into the end of ``words``. Returns where the coding starts."""
    table = _coding_table(frequencies)
    states = np.full(STATES, LOWEST, U64)
    at, s = UINT(words.size - 1), UINT(data.size)
    while s % UINT(STATES):
        s -= UINT(1)
        k = s % UINT(STATES)
        states[k], at = _push(states[k], table, UINT(data[s]), words, at)
    a, b, c, d, e, f = states[0], states[1], states[2], states[3], states[4], states[5]
    while s:
        s -= UINT(STATES)
        f, at = _push(f, table, UINT(data[s + UINT(5)]), words, at)
        e, at = _push(e, table, UINT(data[s + UINT(4)]), words, at)
        d, at = _push(d, table, UINT(data[s + UINT(3)]), words, at)
        c, at = _push(c, table, UINT(data[s + UINT(2)]), words, at)
        b, at = _push(b, table, UINT(data[s + UINT(1)]), words, at)
        a, at = _push(a, table, UINT(data[s]), words, at)
    for state in (f, e, d, c, b, a):
        words[at], words[at - UINT(1)] = U16(state >> U64(16)), U16(state & U64(0xFFFF))
        at -= UINT(2)
    return np.int64(at) + 1


@njit(nogil=True, cache=True)
def _copy(data, out):
    for i in range(UINT(data.size)):
        out[i] = data[i]


@njit(nogil=True, cache=True)
def scratch_bytes(size):
    """Return the bytes of ``room`` that coding or decoding ``size`` numbers needs, the result included."""
    return 8 * (size // MAX_OUTLIERS + LANES) + 6 * size + TABLE


@njit(nogil=True, cache=True)
def _arrays(size, room):
    """Divide ``room`` into positions and excess of outliers, words, symbols, bytes."""
    length = 4 * (size // MAX_OUTLIERS + LANES)
    positions, excess = room[:length].view(I32), room[length : 2 * length].view(I32)
    room = room[2 * length :]
    end = 2 * (size + 3 * STATES)
    symbols = room[end : end + 2 * size].view(U16)
    return positions, excess, room[:end].view(U16), symbols, room[end + 2 * size :]


@njit(nogil=True, cache=True)
def encode(q, room):
    """Code ``q`` into ``room``, of ``scratch_bytes``. Returns where in it the stream starts and ends; (0, 0)
    if the stream would be longer than the numbers.
    """
    positions, excess, words, symbols, out = _arrays(q.size, room)
    kind, count = choose_grouping(q), -1
    while count < 0:
        if kind == len(GROUPINGS):
            return 0, 0
        digits, max_digit = GROUPINGS[kind]
        count = find_outliers(q, max_digit, positions, excess)
        kind += 1
    symbols, counts = symbols[: -(-q.size // digits)], np.empty((2 * max_digit + 1) ** digits, U32)
    to_symbols(q, max_digit, digits, symbols, counts)
    frequencies = _frequencies(counts)
    out[0] = kind - 1
    at = 1 + _write_table(frequencies, out[1:])
    length = write_outliers(positions[:count], excess[:count], out[at:])
    words = words[: symbols.size + 2 * STATES + 1]
    tail = words[_push_all(symbols, frequencies, words) :].view(U8)
    end = at + length + tail.size
    if length < 0 or end > out.size:
        return 0, 0
    _copy(tail, out[at + length : end])
    start = room.size - out.size
    return start, start + end


@njit(nogil=True, cache=True)
def _decoding_table(frequencies):
    """Return symbol, frequency and offset in the symbol's range for every value of a state's low bits."""
    table, slot = np.empty((3, 1 << SCALE), U16), 0
    for symbol in range(frequencies.size):
        for k in range(frequencies[symbol]):
            table[0, slot], table[1, slot], table[2, slot] = symbol, frequencies[symbol], k
            slot += 1
    return table


@njit(nogil=True, cache=True, inline="always")
def _pop(state, table, words, at, out, s):
    low_bits = UINT(state & U64((1 << SCALE) - 1))
    out[s] = table[0, low_bits]
    state = U64(table[1, low_bits]) * (state >> U64(SCALE)) + U64(table[2, low_bits])
    low = U64(state < LOWEST)
    state = (state << (low << U64(4))) | (U64(words[at]) & (U64(0) - low))
    return state, at + UINT(low)


@njit(nogil=True, cache=True)
def _pop_some(words, at, states, table, out):
    """Fill ``out`` with symbols, from word ``at`` on. Returns the next word, beyond the last if there are too
    few.
    """
    end = UINT(words.size - STATES)
    a, b, c, d, e, f = states[0], states[1], states[2], states[3], states[4], states[5]
    whole = UINT(out.size // STATES * STATES)
    for s in range(UINT(0), whole, UINT(STATES)):
        if at > end:
            return at
        a, at = _pop(a, table, words, at, out, s)
        b, at = _pop(b, table, words, at, out, s + UINT(1))
        c, at = _pop(c, table, words, at, out, s + UINT(2))
        d, at = _pop(d, table, words, at, out, s + UINT(3))
        e, at = _pop(e, table, words, at, out, s + UINT(4))
        f, at = _pop(f, table, words, at, out, s + UINT(5))
    states[0], states[1], states[2], states[3], states[4], states[5] = a, b, c, d, e, f
    if at <= end:
        for k in range(UINT(out.size) - whole):
            states[k], at = _pop(states[k], table, words, at, out, whole + k)
    return at


@njit(nogil=True, cache=True)
def decode(data, limit, room, q):
    """Fill ``q``, the inverse of ``encode``. Returns 1 if ``data`` is not a stream of numbers up to
    ``limit``.
    """
    positions, excess, words, _, _ = _arrays(q.size, room)
    if data.size < 1 or data[0] >= len(GROUPINGS):
        return 1
    digits, max_digit = GROUPINGS[data[0]]
    frequencies = np.empty((2 * max_digit + 1) ** digits, U16)
    at = 1 + _read_table(data[1:], frequencies)
    if at < 1:
        return 1
    count, length = read_outliers(data[at:], q.size, max_digit, limit, positions, excess)
    tail = data[at + length :]
    if count < 0 or tail.size < 4 * STATES or tail.size % 2 or tail.size // 2 + STATES > words.size:
        return 1
    words = words[: tail.size // 2 + STATES]
    words[-STATES:] = 0
    _copy(tail, words.view(U8))
    states = np.empty(STATES, U64)
    for k in range(STATES):
        states[k] = U64(words[2 * k]) | U64(words[2 * k + 1]) << U64(16)
        if states[k] < LOWEST:
            return 1
    table, block = _decoding_table(frequencies), np.empty(BLOCK, U16)
    size, place = -(-q.size // digits), UINT(2 * STATES)
    for start in range(0, size, BLOCK):
        some = block[: min(BLOCK, size - start)]
        place = _pop_some(words, place, states, table, some)
        if place > UINT(words.size - STATES) or to_numbers(some, start, size, max_digit, digits, q):
            return 1
    for k in range(STATES):
        if states[k] != LOWEST:
            return 1
    if place != UINT(words.size - STATES) or add_excess(q, max_digit, positions[:count], excess[:count]):
        return 1
    return max_digit > limit and largest(q) > limit
