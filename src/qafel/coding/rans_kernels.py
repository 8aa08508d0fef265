"""Interleaved rANS with a table for each message, for long vectors. Integer arithmetic only.

Several small numbers make one symbol: numbers from −m to m are digits of base 2m + 1, ``digits`` of them to a
symbol. A digit at the edge, ±m, stands for that and everything beyond; how far beyond follows in a bit
string, Rice-coded. Eight states take turns, so that the processor works on eight symbols at a time; a state
has 32 bits and gives and takes 16 at once. Symbol k belongs to state k mod 8; the last is coded first.
"""

import numpy as np
from numba import njit

I16 = np.int16
U8 = np.uint8
U16 = np.uint16
U32 = np.uint32
U64 = np.uint64
UINT = np.uintp

SCALE = 12
"""Frequencies of a table add up to 2¹²."""
STATES = 8
LOWEST = U64(1 << 16)
BLOCK = 8192
"""Symbols that stay in the cache between their digits."""


@njit(nogil=True, cache=True, inline="always")
def _note(place, edge, where, count):
    """Write a place down; it stays if it has an edge."""
    where[count] = np.int32(place)
    return count + UINT(edge)


@njit(nogil=True, cache=True)
def symbols(q, most, digits, has, out, counts, where):
    """Numbers to symbols, counted: digit k of symbol s is number s + k·out.size, or 0 where there is none.
    The places of those that have a digit at the edge go into ``where``; how many there are.
    """
    base, size = U16(2 * most + 1), UINT(out.size)
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
    tallies = np.zeros((4, counts.size), U32)
    whole, count = size & ~UINT(3), UINT(0)
    for s in range(UINT(0), whole, UINT(4)):
        a, b, c, d = out[s], out[s + UINT(1)], out[s + UINT(2)], out[s + UINT(3)]
        tallies[0, a] += U32(1)
        tallies[1, b] += U32(1)
        tallies[2, c] += U32(1)
        tallies[3, d] += U32(1)
        count = _note(s, has[a], where, count)
        count = _note(s + UINT(1), has[b], where, count)
        count = _note(s + UINT(2), has[c], where, count)
        count = _note(s + UINT(3), has[d], where, count)
    for s in range(whole, size):
        tallies[0, out[s]] += U32(1)
        count = _note(s, has[out[s]], where, count)
    for symbol in range(counts.size):
        counts[symbol] = tallies[0, symbol] + tallies[1, symbol] + tallies[2, symbol] + tallies[3, symbol]
    return np.int64(count)


@njit(nogil=True, cache=True)
def _coding_table(frequencies):
    """(first state that must shrink, reciprocal, shift, 2¹² − frequency, bias) of every symbol."""
    size = frequencies.size
    limit, reciprocal, shift = np.zeros(size, U64), np.zeros(size, U64), np.zeros(size, U64)
    rest, bias = np.zeros(size, U64), np.zeros(size, U64)
    start = 0
    for symbol in range(size):
        frequency = np.int64(frequencies[symbol])
        limit[symbol] = U64(frequency) << U64(32 - SCALE)
        rest[symbol] = U64((1 << SCALE) - frequency)
        if frequency <= 1:
            reciprocal[symbol] = U64(0xFFFFFFFF)
            shift[symbol] = U64(32)
            bias[symbol] = U64(start + (1 << SCALE) - 1)
        else:
            bits = 0
            while frequency > (1 << bits):
                bits += 1
            reciprocal[symbol] = U64(((1 << (bits + 31)) + frequency - 1) // frequency)
            shift[symbol] = U64(32 + bits - 1)
            bias[symbol] = U64(start)
        start += frequency
    return limit, reciprocal, shift, rest, bias


@njit(nogil=True, cache=True, inline="always")
def _push(state, table, symbol, words, at):
    limit, reciprocal, shift, rest, bias = table
    words[at] = U16(state & U64(0xFFFF))
    full = U64(state >= limit[symbol])  # arithmetic, not a branch: nobody could predict it
    at -= UINT(full)
    state >>= full << U64(4)
    quotient = (state * reciprocal[symbol]) >> shift[symbol]
    return state + bias[symbol] + quotient * rest[symbol], at


@njit(nogil=True, cache=True)
def encode(data, frequencies, words):
    """Code symbols, the last one first, into the end of ``words``; where that starts, or −1: no room."""
    table = _coding_table(frequencies)
    states = np.full(STATES, LOWEST, U64)
    at, last = UINT(words.size - 1), UINT(4 * STATES)
    s = UINT(data.size)
    while s % UINT(STATES):
        s -= UINT(1)
        k = s % UINT(STATES)
        states[k], at = _push(states[k], table, UINT(data[s]), words, at)
    a, b, c, d = states[0], states[1], states[2], states[3]
    e, f, g, h = states[4], states[5], states[6], states[7]
    while s:
        if at < last:
            return -1
        s -= UINT(STATES)
        h, at = _push(h, table, UINT(data[s + UINT(7)]), words, at)
        g, at = _push(g, table, UINT(data[s + UINT(6)]), words, at)
        f, at = _push(f, table, UINT(data[s + UINT(5)]), words, at)
        e, at = _push(e, table, UINT(data[s + UINT(4)]), words, at)
        d, at = _push(d, table, UINT(data[s + UINT(3)]), words, at)
        c, at = _push(c, table, UINT(data[s + UINT(2)]), words, at)
        b, at = _push(b, table, UINT(data[s + UINT(1)]), words, at)
        a, at = _push(a, table, UINT(data[s]), words, at)
    if at < last:
        return -1
    for state in (h, g, f, e, d, c, b, a):
        words[at], words[at - UINT(1)] = U16(state >> U64(16)), U16(state & U64(0xFFFF))
        at -= UINT(2)
    return np.int64(at) + 1


@njit(nogil=True, cache=True)
def _decoding_table(frequencies, has):
    """edge·2⁴⁸ + symbol·2³² + frequency·2¹⁶ + place within it, of every value of a state's low bits."""
    table = np.zeros(1 << SCALE, U64)
    slot = 0
    for symbol in range(frequencies.size):
        frequency = np.int64(frequencies[symbol])
        for k in range(frequency):
            table[slot] = U64(np.int64(has[symbol]) << 48 | symbol << 32 | frequency << 16 | k)
            slot += 1
    return table


@njit(nogil=True, cache=True, inline="always")
def _pop(state, table, words, at):
    entry = table[UINT(state & U64((1 << SCALE) - 1))]
    frequency = (entry >> U64(16)) & U64(0xFFFF)
    state = frequency * (state >> U64(SCALE)) + (entry & U64(0xFFFF))
    low = U64(state < LOWEST)
    state = (state << (low << U64(4))) | (U64(words[at]) & (U64(0) - low))
    return entry >> U64(32), state, at + UINT(low)


@njit(nogil=True, cache=True)
def decode(words, frequencies, has, out, where):
    """The inverse of ``encode``, and the places of symbols with a digit at the edge; how many, or −1 if
    ``words`` is not what ``encode`` writes. It has ``STATES`` to spare at the end.
    """
    table, count = _decoding_table(frequencies, has), UINT(0)
    end = UINT(words.size - STATES)
    states = np.empty(STATES, U64)
    for k in range(STATES):
        states[k] = U64(words[2 * k]) | U64(words[2 * k + 1]) << U64(16)
        if states[k] < LOWEST:
            return -1
    a, b, c, d = states[0], states[1], states[2], states[3]
    e, f, g, h = states[4], states[5], states[6], states[7]
    at = UINT(2 * STATES)
    whole = UINT(out.size // STATES * STATES)
    for s in range(UINT(0), whole, UINT(STATES)):
        if at > end:
            return -1
        found, a, at = _pop(a, table, words, at)
        out[s + UINT(0)] = U16(found)
        count = _note(s + UINT(0), found >> U64(16), where, count)
        found, b, at = _pop(b, table, words, at)
        out[s + UINT(1)] = U16(found)
        count = _note(s + UINT(1), found >> U64(16), where, count)
        found, c, at = _pop(c, table, words, at)
        out[s + UINT(2)] = U16(found)
        count = _note(s + UINT(2), found >> U64(16), where, count)
        found, d, at = _pop(d, table, words, at)
        out[s + UINT(3)] = U16(found)
        count = _note(s + UINT(3), found >> U64(16), where, count)
        found, e, at = _pop(e, table, words, at)
        out[s + UINT(4)] = U16(found)
        count = _note(s + UINT(4), found >> U64(16), where, count)
        found, f, at = _pop(f, table, words, at)
        out[s + UINT(5)] = U16(found)
        count = _note(s + UINT(5), found >> U64(16), where, count)
        found, g, at = _pop(g, table, words, at)
        out[s + UINT(6)] = U16(found)
        count = _note(s + UINT(6), found >> U64(16), where, count)
        found, h, at = _pop(h, table, words, at)
        out[s + UINT(7)] = U16(found)
        count = _note(s + UINT(7), found >> U64(16), where, count)
    if at > end:
        return -1
    states[0], states[1], states[2], states[3] = a, b, c, d
    states[4], states[5], states[6], states[7] = e, f, g, h
    for k in range(UINT(out.size) - whole):
        found, states[k], at = _pop(states[k], table, words, at)
        out[whole + k] = U16(found)
        count = _note(whole + k, found >> U64(16), where, count)
    if at != end:
        return -1
    for k in range(STATES):
        if states[k] != LOWEST:
            return -1
    return np.int64(count)


@njit(nogil=True, cache=True)
def numbers(data, most, digits, q):
    """Symbols back to numbers, those beyond ±m still at the edge; 1 if there are numbers beyond the last."""
    base, size = U16(2 * most + 1), UINT(data.size)
    reciprocal = U16((65536 + base - 1) // base)
    rest = np.empty(BLOCK, U16)
    for start in range(UINT(0), size, UINT(BLOCK)):
        stop = min(start + UINT(BLOCK), size)
        for s in range(start, stop):
            rest[s - start] = U16(data[s])
        for back in range(UINT(digits)):
            shift = (UINT(digits) - UINT(1) - back) * size
            end = min(stop, UINT(q.size) - shift) if UINT(q.size) > shift else UINT(0)
            end = max(start, end)
            for s in range(start, end):
                value = rest[s - start]
                quotient = U16(U32(U32(value) * U32(reciprocal)) >> U32(16))
                q[s + shift] = I16(I16(U16(value - U16(quotient * base))) - I16(most))
                rest[s - start] = quotient
            for s in range(end, stop):
                value = rest[s - start]
                quotient = U16(U32(U32(value) * U32(reciprocal)) >> U32(16))
                if U16(value - U16(quotient * base)) != U16(most):
                    return 1
                rest[s - start] = quotient
    return 0


@njit(nogil=True, cache=True)
def at_the_edge(most, digits):
    """Which symbols have a digit at the edge."""
    base = 2 * most + 1
    has = np.zeros(base**digits, U8)
    for symbol in range(base**digits):
        rest = symbol
        for _ in range(digits):
            has[symbol] |= rest % base == 0 or rest % base == base - 1
            rest //= base
    return has


@njit(nogil=True, cache=True)
def beyond(q, most, digits, size, where, out):
    """|q| − m of every number at the edge or beyond, symbol by symbol; how many there are."""
    count = 0
    for s in where:
        for k in range(digits):
            at = s + k * size
            if at < q.size:
                out[count] = abs(np.int32(q[at])) - most
                count += out[count] >= 0
    return count


@njit(nogil=True, cache=True)
def write_rice(values, rice, out):
    """Rice-code ``values`` into zeroed ``out``; the number of bits."""
    at = 0
    for value in values:
        ones = value >> rice
        for _ in range(ones):
            out[at >> 3] |= U8(1 << (at & 7))
            at += 1
        at += 1
        for k in range(rice):
            out[at >> 3] |= U8(((value >> k) & 1) << (at & 7))
            at += 1
    return at


@njit(nogil=True, cache=True)
def read_rice(data, most, limit, rice, digits, size, where, q):
    """The inverse of ``beyond`` and ``write_rice``: numbers at the edge move on; 1 if these are not their
    bits.
    """
    at, bits = 0, data.size * 8
    for s in where:
        for k in range(digits):
            i = s + k * size
            if i < q.size and abs(q[i]) == most:
                value = 0
                while at < bits and (data[at >> 3] >> (at & 7)) & 1:
                    value += 1
                    at += 1
                at += 1
                if at + rice > bits:
                    return 1
                value <<= rice
                for low in range(rice):
                    value |= ((data[at >> 3] >> (at & 7)) & 1) << low
                    at += 1
                if most + value > limit:
                    return 1
                q[i] = q[i] + value if q[i] > 0 else q[i] - value
    if bits - at >= 8:
        return 1
    while at < bits:
        if (data[at >> 3] >> (at & 7)) & 1:
            return 1
        at += 1
    return 0


@njit(nogil=True, cache=True)
def largest(q):
    """max |q|."""
    most = I16(0)
    for i in range(UINT(q.size)):
        most = max(most, I16(abs(q[i])))
    return most


@njit(nogil=True, cache=True)
def write_table(frequencies, out):
    """A byte for a frequency below 255, otherwise 255 and two bytes; the number of bytes."""
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
def read_table(data, frequencies):
    """The inverse of ``write_table``: where it ends; −1 if that is no table whose frequencies add up."""
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
