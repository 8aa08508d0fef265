"""Vectors of small integers as bytes: fixed width, range-coded, or rANS-coded; never longer than fixed width
and one byte.

The first byte says which coding follows:

    FIXED   the largest magnitude m (uint16), then q + m plane-packed
    RANGE   the adaptive range coder (``range_kernels``): the fewest bytes, about 25 million numbers a second
    RANS    (``rans_kernels``) several times faster, for long vectors: the lengths of streams of 2¹⁹ numbers
            (uint32), then the streams: digits to a symbol, m, the Rice parameter (a byte each), the table of
            frequencies (``write_table``), the number of bytes beyond (uint32), those bytes, the words

Both ends know how many numbers there are, and how large one may be.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qafel.coding.planes import packed_bytes
from qafel.coding.work import over_parts
from qafel.errors import FrameError

Integers = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]

FIXED, RANGE, RANS = range(3)
CODINGS = ("fixed", "range", "rans")
MOST = (1 << 15) - 1
DIGITS = {6: 1, 4: 2, 2: 7, 1: 127}
"""Digits to a symbol: the m that so many digits leave room for."""
EDGES = 0.03
"""The share of numbers that may lie at the edge of their digit."""
SCALE = 1 << 12
DENSEST = 13
"""Of a range coding, no byte holds 2¹³ numbers: even the likeliest decision costs a 700th of a bit."""
STREAM = 1 << 19
"""Numbers to a stream; threads share streams."""


@lru_cache(maxsize=256)
def max_integer_bytes(size: int, most: int) -> int:
    """No ``size`` numbers up to ``most`` take more bytes than this."""
    return 3 + max(packed_bytes(size, width) for width in range(_width(most) + 1)) if size else 1


def encode_integers(q: Integers, coding: str) -> bytes:
    """The shorter of the wanted coding and fixed width."""
    most = _largest(q)
    limit = max_integer_bytes(q.size, most)
    if coding == "range" and q.size:
        coded = _range(q, limit)
    elif coding == "rans" and q.size:
        coded = _rans(q, limit)
    else:
        coded = None
    return coded if coded is not None and len(coded) < limit else _fixed(q, most)


def check_integers(data: bytes | memoryview, size: int, most: int) -> None:
    """FrameError, before anything is allocated, where so few or so many bytes cannot be so many numbers."""
    length = len(data)
    if not 0 < length <= max_integer_bytes(size, most):
        raise FrameError(f"{length} bytes cannot hold {size} numbers up to {most}")
    if data[0] >= len(CODINGS):
        raise FrameError(f"unknown coding of numbers: {data[0]}")
    if not size:
        enough = length == 1 and data[0] == FIXED
    elif data[0] == FIXED:
        found = int.from_bytes(data[1:3], "little")
        enough = length >= 3 and found <= most and length == 3 + packed_bytes(size, _width(found))
    elif data[0] == RANGE:
        enough = length > size >> DENSEST
    else:
        enough = length > 4 * -(-size // STREAM)
    if not enough:
        raise FrameError(f"these {length} bytes are not a coding of {size} numbers up to {most}")


def decode_integers(data: bytes | memoryview, size: int, most: int) -> Integers:
    """The ``size`` numbers up to ``most`` that ``encode_integers`` wrote, or FrameError."""
    check_integers(data, size, most)
    body = np.frombuffer(data, np.uint8, offset=1)
    read = {FIXED: _read_fixed, RANGE: _read_range, RANS: _read_rans}[data[0]]
    return read(body, size, most)


def _largest(q: Integers) -> int:
    from qafel.coding import rans_kernels

    return int(rans_kernels.largest(q))


def _width(most: int) -> int:
    return (2 * most).bit_length()


def _fixed(q: Integers, most: int) -> bytes:
    from qafel.coding import kernels

    if not q.size:
        return bytes([FIXED])
    width = _width(most)
    out = np.empty(3 + packed_bytes(q.size, width), np.uint8)
    out[0] = FIXED
    out[1:3].view(np.uint16)[0] = most
    kernels.pack_integers(q, most, width, out[3:])
    return out.tobytes()


def _read_fixed(body: Bytes, size: int, limit: int) -> Integers:
    from qafel.coding import kernels

    del limit
    q = np.empty(size, np.int16)
    if size:
        most = int(body[:2].copy().view(np.uint16)[0])
        if kernels.unpack_integers(body[2:], most, _width(most), q):
            raise FrameError("numbers out of range or stray bits")
    return q


def _range(q: Integers, limit: int) -> bytes | None:
    from qafel.coding import range_kernels

    out = np.empty(limit + range_kernels.MOST_BYTES, np.uint8)
    count = range_kernels.encode(q, out[1:])
    if count < 0:
        return None
    out[0] = RANGE
    return out[: 1 + count].tobytes()


def _read_range(body: Bytes, size: int, limit: int) -> Integers:
    from qafel.coding import range_kernels

    q = np.empty(size, np.int16)
    if range_kernels.decode(body, limit, q):
        raise FrameError(f"these bytes are not a range coding of {size} numbers up to {limit}")
    return q


def _rans(q: Integers, limit: int) -> bytes | None:
    parts = over_parts(lambda start: _rans_stream(q[start : start + STREAM]), q.size, STREAM)
    if sum(map(len, parts)) > limit:
        return None
    sizes = np.array([len(part) for part in parts], np.uint32)
    return b"".join([bytes([RANS]), sizes.tobytes(), *parts])


def _read_rans(body: Bytes, size: int, limit: int) -> Integers:
    head = 4 * -(-size // STREAM)
    sizes = (
        body[:head].copy().view(np.uint32).astype(np.int64) if len(body) >= head else np.zeros(0, np.int64)
    )
    if head + int(sizes.sum()) != len(body):
        raise FrameError(f"these bytes are not a rANS coding of {size} numbers")
    ends = head + np.cumsum(sizes)
    q = np.empty(size, np.int16)

    def read(start: int) -> None:
        k = start // STREAM
        _read_rans_stream(body[ends[k] - sizes[k] : ends[k]], q[start : start + STREAM], limit)

    over_parts(read, size, STREAM)
    return q


def _rans_stream(q: Integers) -> bytes:
    from qafel.coding import rans_kernels

    digits, most = _grouping(q)
    symbols, counts = (
        np.empty(-(-q.size // digits), np.uint16),
        np.empty((2 * most + 1) ** digits, np.uint32),
    )
    where = np.empty(len(symbols) + 1, np.int32)
    edges = rans_kernels.symbols(q, most, digits, _at_the_edge(most, digits), symbols, counts, where)
    where = where[:edges]
    frequencies = _frequencies(counts)
    table = np.empty(3 * len(counts), np.uint8)
    table = table[: rans_kernels.write_table(frequencies, table)]
    beyond = np.empty(digits * len(where) + 1, np.int32)
    beyond = beyond[: rans_kernels.beyond(q, most, digits, len(symbols), where, beyond)]
    total = int(beyond.sum(dtype=np.int64))
    rice = _rice(total, len(beyond))
    over = np.zeros((len(beyond) * (rice + 1) + (total >> rice)) // 8 + 1, np.uint8)
    tail = over[: -(-rans_kernels.write_rice(beyond, rice, over) // 8)]
    words = np.empty(len(symbols) + 64, np.uint16)
    start = rans_kernels.encode(symbols, frequencies, words)
    head = bytes([digits, most, rice]) + table.tobytes() + np.uint32(len(tail)).tobytes()
    return b"".join([head, tail.tobytes(), words[start:].tobytes()])


def _read_rans_stream(body: Bytes, q: Integers, limit: int) -> None:
    from qafel.coding import rans_kernels

    size = q.size
    bad = FrameError(f"these bytes are not a rANS coding of {size} numbers up to {limit}")
    if len(body) < 7:
        raise bad
    digits, most, rice = (int(byte) for byte in body[:3])
    if DIGITS.get(digits) != most or rice > 15:
        raise bad
    frequencies = np.empty((2 * most + 1) ** digits, np.uint16)
    at = 3 + rans_kernels.read_table(body[3:], frequencies)
    if at < 3 or len(body) < at + 4:
        raise bad
    beyond = int(body[at : at + 4].copy().view(np.uint32)[0])
    at += 4
    words = len(body) - at - beyond
    if words < 4 * rans_kernels.STATES or words % 2:
        raise bad
    padded = np.empty(words // 2 + rans_kernels.STATES, np.uint16)
    padded.view(np.uint8)[:words] = body[at + beyond :]
    padded[words // 2 :] = 0
    symbols = np.empty(-(-size // digits), np.uint16)
    where = np.empty(len(symbols) + 1, np.int32)
    edges = rans_kernels.decode(padded, frequencies, _at_the_edge(most, digits), symbols, where)
    if edges < 0:
        raise bad
    where = where[:edges]
    tail = body[at : at + beyond]
    if rans_kernels.numbers(symbols, most, digits, q) or rans_kernels.read_rice(
        tail, most, max(most, limit), rice, digits, len(symbols), where, q
    ):
        raise bad
    if most > limit and rans_kernels.largest(q) > limit:
        raise bad


@lru_cache(maxsize=8)
def _at_the_edge(most: int, digits: int) -> Bytes:
    from qafel.coding import rans_kernels

    has: Bytes = rans_kernels.at_the_edge(most, digits)
    return has


def _grouping(q: Integers) -> tuple[int, int]:
    """(digits to a symbol, m): as many digits as leave few numbers at the edge."""
    sample = np.abs(q[:: max(1, q.size // 4096)])
    for digits, most in DIGITS.items():
        if np.count_nonzero(sample >= most) <= EDGES * len(sample):
            return digits, most
    return 1, DIGITS[1]


def _frequencies(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Counts scaled to add up to 2¹², none of those that occur to zero."""
    total = int(counts.sum())
    scaled = np.maximum((counts.astype(np.int64) * SCALE + total // 2) // total, counts > 0)
    order = np.argsort(-scaled, kind="stable")
    excess = int(scaled.sum()) - SCALE
    k = 0
    while excess:
        symbol = order[k % len(order)]
        if excess < 0:
            scaled[symbol] -= excess
            excess = 0
        elif scaled[symbol] > 1:
            taken = min(excess, max(1, int(scaled[symbol]) // 4), int(scaled[symbol]) - 1)
            scaled[symbol] -= taken
            excess -= taken
        k += 1
    return scaled.astype(np.uint16)


def _rice(beyond: int, edges: int) -> int:
    """The Rice parameter for numbers whose mean is beyond/edges."""
    mean, rice = beyond / edges if edges else 0.0, 0
    while mean > 1 and rice < 15:
        mean, rice = mean / 2, rice + 1
    return rice
