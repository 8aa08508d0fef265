"""Vectors of small integers as bytes: fixed width, range-coded, or rANS-coded; never longer than fixed width
and one byte.

The first byte says which coding follows:

    FIXED   the largest magnitude m (uint16), then q + m plane-packed
    RANGE   the adaptive range coder (``range_kernels``): the fewest bytes, about 25 million numbers a second
    RANS    (``rans_kernels``) several times faster, for long vectors: the lengths of streams of 2¹⁹ numbers
            (uint32), then the streams

Both ends know how many numbers there are, and how large one may be.
"""

from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from qafel.coding.planes import packed_bytes
from qafel.coding.work import over_parts, scratch
from qafel.errors import FrameError

Integers = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]

FIXED, RANGE, RANS = range(3)
CODINGS = ("fixed", "range", "rans")
MOST = (1 << 15) - 1
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
    q = np.ascontiguousarray(q, np.int16)
    most = _largest(q)
    limit = 3 + packed_bytes(q.size, _width(most))
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
    from qafel.coding import digit_kernels

    return int(digit_kernels.largest(q))


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
    if not all(parts) or sum(map(len, parts)) > limit:
        return None
    sizes = np.array([len(part) for part in parts], np.uint32)
    return b"".join([bytes([RANS]), sizes.tobytes(), *parts])


def _rans_stream(q: Integers) -> bytes:
    """Empty if there is no coding of these numbers as short as they are."""
    from qafel.coding import rans_kernels

    room = scratch(rans_kernels.room_for(q.size))
    start, end = rans_kernels.encode(q, room)
    return room[start:end].tobytes()


def _read_rans(body: Bytes, size: int, limit: int) -> Integers:
    from qafel.coding import rans_kernels

    head = 4 * -(-size // STREAM)
    ends = list(accumulate(np.frombuffer(body[:head].tobytes(), np.uint32).tolist(), initial=head))
    if ends[-1] != len(body):
        raise FrameError(f"these bytes are not a rANS coding of {size} numbers")
    q = np.empty(size, np.int16)

    def read(start: int) -> None:
        k, part = start // STREAM, q[start : start + STREAM]
        room = scratch(rans_kernels.room_for(part.size))
        if rans_kernels.decode(body[ends[k] : ends[k + 1]], limit, room, part):
            raise FrameError(f"these bytes are not a rANS coding of {part.size} numbers up to {limit}")

    over_parts(read, size, STREAM)
    return q
