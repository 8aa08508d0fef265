"""A range coder: numbers as bytes, each in as many bits as it is improbable. Integer arithmetic only.

The coder narrows an interval of 48 bits, from ``low`` on and ``span`` wide, to the part that belongs to what
is coded: a part of 2ᵇ equal ones, or one side of a decision. When ``span`` is below 2³² the upper word of
``low`` is final and is written; a carry is added to the words before. The last word names a point of the last
interval; a decoder rejects a coding that ends earlier or later.

Probabilities come from the caller: adaptive ones for ``qafel.coding.integers``, tables for
``qafel.coding.gaps``.
"""

import numpy as np
from numba import njit

from qafel.coding.numbers import U16, U64, UINT

WHOLE = U64((1 << 48) - 1)
"""The span of the first interval."""
TOP = U64(1 << 32)
_REST = TOP - U64(1)
PADDING = 64
"""Zero words after a coding that is decoded; words that must be free at every number that is coded."""


@njit(nogil=True, cache=True, inline="always")
def _carry(out, at, low):
    """Add the carry of ``low`` to the words already written. Returns ``low`` without it."""
    if low > WHOLE:
        k = at - UINT(1)
        while out[k] == U16(0xFFFF):
            out[k] = U16(0)
            k -= UINT(1)
        out[k] += U16(1)
    return low & WHOLE


@njit(nogil=True, cache=True, inline="always")
def write_word(out, at, low, span):
    """Write the upper word of ``low``, where ``span`` is below ``TOP``. Returns (at, low, span)."""
    low = _carry(out, at, low)
    out[at] = U16(low >> U64(32))
    return at + UINT(1), (low & _REST) << U64(16), span << U64(16)


@njit(nogil=True, cache=True, inline="always")
def put(out, at, low, span, start, share, bits):
    """Code the parts ``start`` to ``start + share`` of 2^bits. Returns (at, low, span)."""
    unit = span >> U64(bits)
    low, span = low + unit * U64(start), unit * U64(share)
    if span < TOP:
        at, low, span = write_word(out, at, low, span)
    return at, low, span


@njit(nogil=True, cache=True, inline="always")
def finish(out, at, low):
    """Write the last word. Returns the number of words."""
    low = _carry(out, at, low + _REST)
    out[at] = U16(low >> U64(32))
    return at + UINT(1)


@njit(nogil=True, cache=True)
def padded(data):
    """Return the words of a coding, with zeros after them."""
    words = np.zeros(data.size // 2 + PADDING, U16)
    words.view(np.uint8)[: data.size] = data
    return words


@njit(nogil=True, cache=True, inline="always")
def begin(words):
    """Return (at, code, span) of a decoder; ``code`` is the distance of the coded point from ``low``."""
    code = (U64(words[0]) << U64(32)) | (U64(words[1]) << U64(16)) | U64(words[2])
    return UINT(3), code, WHOLE


@njit(nogil=True, cache=True, inline="always")
def read_word(words, at, code, span):
    """Read the next word, where ``span`` is below ``TOP``. Returns (at, code, span)."""
    return at + UINT(1), (code << U64(16)) | U64(words[at]), span << U64(16)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def get(words, at, code, span, bits):
    """Return (at, code, span, part), the inverse of ``put`` with a share of one part of 2^bits."""
    unit = span >> U64(bits)
    part = min(code // unit, U64((1 << bits) - 1))
    code, span = code - part * unit, unit
    if span < TOP:
        at, code, span = read_word(words, at, code, span)
    return at, code, span, np.int64(part)


@njit(nogil=True, cache=True, inline="always")
def is_end(words, at, code):
    """Whether the coding ends here, as the encoder ended it."""
    return at + UINT(PADDING) == UINT(words.size) + UINT(2) and code < TOP
