"""The code of ``qafel.coding.gaps``. Numbers other than zero are given by their places and values.

Every BLOCK of coordinates has a class. A gap may begin in one block and end in a later one; it is coded with
the class of the block that it begins in.
"""

import numpy as np
from numba import njit

from qafel.coding.gaps import BITS, BLOCK, SKIP
from qafel.coding.numbers import I16, I32, U64, UINT
from qafel.coding.range_coder import PADDING, TOP, WHOLE, begin, finish, get, is_end, padded, put, read_word


@njit(nogil=True, cache=True)
def max_words(size):
    """Return a number of words that is enough: a symbol has up to 13 bits, an excess below 2⁷ up to 15."""
    return 2 * size + 2 * PADDING


@njit(nogil=True, cache=True, inline="always")
def _put_excess(out, at, low, span, value):
    """Code an integer of at least 0 as an Elias gamma code of equally likely bits."""
    rest, length = value + 1, 0
    while rest >> (length + 1):
        length += 1
    for _ in range(length):
        at, low, span = put(out, at, low, span, 0, 1, 1)
    at, low, span = put(out, at, low, span, 1, 1, 1)
    return put(out, at, low, span, rest - (1 << length), 1, length)


@njit(nogil=True, cache=True, inline="always")
def _get_excess(words, at, code, span):
    """Return (at, code, span, value), the inverse of ``_put_excess``; 2¹⁴ or more if it is impossible."""
    length, bit = 0, 0
    while length < 14:
        at, code, span, bit = get(words, at, code, span, 1)
        if bit:
            break
        length += 1
    at, code, span, rest = get(words, at, code, span, length)
    return at, code, span, (1 << length) + rest - 1


@njit(nogil=True, cache=True, inline="always")
def _put_symbol(out, at, low, span, starts, kind, symbol):
    start = starts[kind, symbol]
    return put(out, at, low, span, start, U64(starts[kind, symbol + UINT(1)]) - U64(start), BITS)


@njit(nogil=True, cache=True)
def encode(places, values, classes, tables, out):
    """Code the numbers at ``places``, in ascending order, into words. Returns the number of words."""
    gaps, tops, starts = tables[0], tables[1], tables[2]
    low, span, at, place, size = U64(0), WHOLE, UINT(0), UINT(0), UINT(classes.size) * UINT(BLOCK)
    for n in range(UINT(places.size + 1)):
        end = UINT(places[n]) if n < UINT(places.size) else size + UINT(BLOCK)
        kind = UINT(classes[place // UINT(BLOCK)]) if place < size else UINT(0)
        while place < size and end - place >= gaps[kind]:
            at, low, span = _put_symbol(out, at, low, span, starts, kind, UINT(2) * gaps[kind] * tops[kind])
            place += gaps[kind]
            kind = UINT(classes[min(place // UINT(BLOCK), UINT(classes.size - 1))])
        if n < UINT(places.size):
            magnitude, top = UINT(abs(I32(values[n]))), tops[kind]
            symbol = UINT(2) * ((end - place) * top + min(magnitude, top) - UINT(1)) + UINT(values[n] < 0)
            at, low, span = _put_symbol(out, at, low, span, starts, kind, symbol)
            if magnitude >= top:
                at, low, span = _put_excess(out, at, low, span, np.int64(magnitude - top))
            place = end + UINT(1)
    return finish(out, at, low)


@njit(nogil=True, cache=True, error_model="numpy")
def decode(data, classes, tables, max_magnitude, places, values):
    """Read the numbers that ``encode`` coded.

    Returns how many there are, or −1 if this is not a coding of numbers up to ``max_magnitude``.
    """
    tops, starts, symbols, zeros, numbers = tables[1], tables[2], tables[3], tables[4], tables[5]
    words = padded(data)
    at, code, span = begin(words)
    last, size = UINT(words.size - PADDING + 3), UINT(classes.size) * UINT(BLOCK)
    place, count = UINT(0), UINT(0)
    while place < size:
        if at > last:
            return -1
        kind, unit = UINT(classes[place // UINT(BLOCK)]), span >> U64(BITS)
        part = min(code // unit, U64((1 << BITS) - 1))
        symbol = UINT(symbols[kind, part >> U64(SKIP)])
        while starts[kind, symbol + UINT(1)] <= part:
            symbol += UINT(1)
        start = U64(starts[kind, symbol])
        code, span = code - unit * start, unit * (U64(starts[kind, symbol + UINT(1)]) - start)
        if span < TOP:
            at, code, span = read_word(words, at, code, span)
        value = np.int64(numbers[kind, symbol])
        place += UINT(zeros[kind, symbol])
        if value == 0:
            continue
        if abs(value) == np.int64(tops[kind]):
            at, code, span, excess = _get_excess(words, at, code, span)
            value += excess if value > 0 else -excess
        if place >= size or abs(value) > max_magnitude:
            return -1
        places[count], values[count] = I32(place), I16(value)
        place += UINT(1)
        count += UINT(1)
    return np.int64(count) if is_end(words, at, code) else -1
