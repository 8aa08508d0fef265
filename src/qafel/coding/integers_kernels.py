"""The adaptive model of ``qafel.coding.integers``: probabilities that follow the numbers just coded.

A number is coded as decisions: whether its magnitude reaches 1, 2, 3, 5, 9, 17, … (2ᵏ + 1). The place between
two of these follows as equally likely bits, then whether the sign is the predicted one. The probability of a
decision on the magnitude depends on the class of the activity, a moving average of the last magnitudes: large
numbers come together.

Signs are predicted where the numbers are the rows of a matrix, as the weights of a layer are. A column keeps
a tally of its signs; ``turn`` tells whether this row agrees with the columns so far or is their opposite. The
steps of a training are sums of few outer products, in which the signs of a row are those of another row, or
their opposites.

A probability is a uint32: the upper 26 bits are the probability of a yes, the lower 6 count the decisions
seen. It moves by 2^-rate of its distance to the decision; the rate grows with the count.
"""

import numpy as np
from numba import njit

from qafel.coding.numbers import I8, I16, I32, I64, U32, U64, UINT
from qafel.coding.range_coder import (
    PADDING,
    TOP,
    WHOLE,
    begin,
    finish,
    get,
    is_end,
    padded,
    put,
    read_word,
    write_word,
)

PLACES = 16
"""Decisions on a magnitude: the last one is whether it reaches 2¹⁴ + 1."""
CLIP = 15
"""The activity counts larger magnitudes as this one."""
CLASSES = 20
EVEN = U32(1 << 31)
COUNT, CHANCE = U32(63), U32(0xFFFFFFC0)
BITS = 15
"""Bits of a probability that the coder uses."""
MIN_CHANCE, MAX_CHANCE = U32(32 << 17), U32(0xFFFFFFFF - (32 << 17))
"""No probability is nearer to 0 or 1 than this."""
RATES = np.array([1, 2, 2, 3, 3, 3, 3] + [4] * 8 + [5] * 16 + [6] * 32 + [7], np.uint32)
MAX_TALLY, MAX_TURN = 2, 3


def _classes():
    """The class of an activity in units of 2⁻⁶: half octaves from 1/32 on."""
    classes = np.zeros((CLIP << 6) + 1, np.uint8)
    for activity in range(2, classes.size):
        octave = activity.bit_length() - 1
        classes[activity] = min(2 * octave - 1 + (activity >> (octave - 1) & 1), CLASSES - 1)
    return classes


CLASS = _classes()


@njit(nogil=True, cache=True)
def largest(q):
    """Return max |q|."""
    magnitude = I16(0)
    for i in range(UINT(q.size)):
        magnitude = max(magnitude, I16(abs(q[i])))
    return magnitude


@njit(nogil=True, cache=True, inline="always")
def _yes(chance):
    """The probability after a yes."""
    seen = chance & COUNT
    return chance + (((MAX_CHANCE - chance) >> RATES[seen]) & CHANCE) + U32(seen < COUNT)


@njit(nogil=True, cache=True, inline="always")
def _no(chance):
    """The probability after a no."""
    seen = chance & COUNT
    return chance - (((chance - MIN_CHANCE) >> RATES[seen]) & CHANCE) + U32(seen < COUNT)


@njit(nogil=True, cache=True, inline="always")
def _bound(span, chance):
    """The part of the interval that belongs to a yes."""
    return (span >> U64(BITS)) * U64(chance >> U32(32 - BITS))


@njit(nogil=True, cache=True, inline="always")
def _sign_context(tally, turn):
    """Return the context of a sign, and whether a positive one is expected."""
    return abs(tally) * (MAX_TURN + 1) + abs(turn), (tally >= 0) == (turn >= 0)


@njit(nogil=True, cache=True, inline="always")
def _sign_seen(tally, turn, positive):
    """Return tally and turn after a sign."""
    if tally != 0:
        turn = min(turn + 1, MAX_TURN) if positive == (tally > 0) else max(turn - 1, -MAX_TURN)
    if positive == (turn >= 0):
        return min(tally + 1, MAX_TALLY), turn
    return max(tally - 1, -MAX_TALLY), turn


@njit(nogil=True, cache=True)
def _row(rows, first):
    """Return the matrix that number ``first`` belongs to, and its column."""
    k, start = 0, 0
    while rows[k, 0] <= first:
        start = rows[k, 0]
        k += 1
    return k, (first - start) % max(rows[k, 1], 1)


@njit(nogil=True, cache=True)
def encode(q, first, rows, out):
    """Code ``q``, the numbers from ``first`` on, into words. Returns their number, or −1 if ``out`` is full.

    ``rows`` has (end, width) of consecutive matrices that cover all numbers; width 0: not a matrix.
    """
    chances, sign_chances = np.full(CLASSES * PLACES, EVEN, U32), np.full(PLACES, EVEN, U32)
    tallies = np.zeros(max(rows[:, 1].max(), 1), I8)
    low, span, at, room = U64(0), WHOLE, UINT(0), UINT(max(out.size - PADDING, 0))
    activity, turn, start = I32(0), 0, UINT(0)
    k, column = _row(rows, first)
    while start < UINT(q.size):
        width = rows[k, 1]
        end = min(UINT(rows[k, 0] - first), UINT(q.size))
        if width:
            end = min(end, start + UINT(width - column))
        for i in range(start, end):
            if at >= room:
                return -1
            value = I32(q[i])
            place = UINT(CLASS[activity >> 6]) * UINT(PLACES)
            bound = _bound(span, chances[place])
            if value == 0:
                chances[place] = _no(chances[place])
                low, span = low + bound, span - bound
                if span < TOP:
                    at, low, span = write_word(out, at, low, span)
                activity -= activity >> 3
                continue
            magnitude, reached, yes = abs(value), 0, True
            while yes:
                chances[place], span = _yes(chances[place]), bound
                if span < TOP:
                    at, low, span = write_word(out, at, low, span)
                reached += 1
                if reached == PLACES:
                    break
                place += UINT(1)
                bound = _bound(span, chances[place])
                yes = (magnitude - 1) >> (reached - 1) != 0
            if not yes:
                chances[place] = _no(chances[place])
                low, span = low + bound, span - bound
                if span < TOP:
                    at, low, span = write_word(out, at, low, span)
            if reached > 2:
                rest = magnitude - 1 - (1 << (reached - 2))
                at, low, span = put(out, at, low, span, rest, 1, reached - 2)
            bound, positive, expected = span >> U64(1), value > 0, True
            if width:
                here = column + I64(i - start)
                context, expected = _sign_context(I64(tallies[here]), turn)
                chance = sign_chances[context]
                bound = _bound(span, chance)
                tallies[here], turn = _sign_seen(I64(tallies[here]), turn, positive)
                sign_chances[context] = _yes(chance) if positive == expected else _no(chance)
            other = U64(positive != expected)  # arithmetic instead of an unpredictable branch
            low, span = low + other * bound, bound + other * (span - bound - bound)
            if span < TOP:
                at, low, span = write_word(out, at, low, span)
            activity += ((min(magnitude, CLIP) << 12) - activity) >> 3
        k, column, turn = _next_row(rows, k, column + I64(end - start), first + I64(end), tallies)
        start = end
    return I64(finish(out, at, low))


@njit(nogil=True, cache=True, inline="always")
def _next_row(rows, k, column, end, tallies):
    """Return the matrix and the column after a row, and a fresh turn."""
    if end == rows[k, 0]:
        tallies[:] = I8(0)
        return k + 1, 0, 0
    return k, 0 if column == rows[k, 1] else column, 0


@njit(nogil=True, cache=True)
def decode(data, first, rows, max_magnitude, q):
    """Fill ``q``, the inverse of ``encode``.

    Returns 1 if this is not a coding of numbers up to ``max_magnitude``, else 0.
    """
    words = padded(data)
    chances, sign_chances = np.full(CLASSES * PLACES, EVEN, U32), np.full(PLACES, EVEN, U32)
    tallies = np.zeros(max(rows[:, 1].max(), 1), I8)
    at, code, span = begin(words)
    last = UINT(words.size - PADDING + 3)
    activity, turn, start = I32(0), 0, UINT(0)
    k, column = _row(rows, first)
    while start < UINT(q.size):
        width = rows[k, 1]
        end = min(UINT(rows[k, 0] - first), UINT(q.size))
        if width:
            end = min(end, start + UINT(width - column))
        for i in range(start, end):
            if at > last:
                return 1
            place = UINT(CLASS[activity >> 6]) * UINT(PLACES)
            bound = _bound(span, chances[place])
            if code >= bound:
                chances[place] = _no(chances[place])
                code, span = code - bound, span - bound
                if span < TOP:
                    at, code, span = read_word(words, at, code, span)
                activity -= activity >> 3
                q[i] = I16(0)
                continue
            reached, yes = I32(0), True
            while yes:
                chances[place], span = _yes(chances[place]), bound
                if span < TOP:
                    at, code, span = read_word(words, at, code, span)
                reached += I32(1)
                if reached == PLACES:
                    break
                place += UINT(1)
                bound = _bound(span, chances[place])
                yes = code < bound
            if not yes:
                chances[place] = _no(chances[place])
                code, span = code - bound, span - bound
                if span < TOP:
                    at, code, span = read_word(words, at, code, span)
            magnitude = reached
            if reached > 2:
                at, code, span, rest = get(words, at, code, span, reached - 2)
                magnitude = I32(1 + (1 << (reached - 2)) + rest)
            if magnitude > max_magnitude:
                return 1
            bound, expected, context, here = span >> U64(1), True, 0, column + I64(i - start)
            if width:
                context, expected = _sign_context(I64(tallies[here]), turn)
                bound = _bound(span, sign_chances[context])
            other = U64(code >= bound)
            code, span = code - other * bound, bound + other * (span - bound - bound)
            positive = (other == 0) == expected
            if width:
                tallies[here], turn = _sign_seen(I64(tallies[here]), turn, positive)
                chance = sign_chances[context]
                sign_chances[context] = _no(chance) if other else _yes(chance)
            if span < TOP:
                at, code, span = read_word(words, at, code, span)
            q[i] = I16(magnitude * (2 * I32(positive) - 1))
            activity += ((min(magnitude, CLIP) << 12) - activity) >> 3
        k, column, turn = _next_row(rows, k, column + I64(end - start), first + I64(end), tallies)
        start = end
    return 0 if is_end(words, at, code) else 1
