"""Vectors of small integers as bytes. No coding takes more than fixed width does.

The first byte names the coding:

    FIXED   the largest magnitude m (uint16), then q + m, packed by ``bitplanes``
    RANGE   the adaptive range coder (``range_coder``): the fewest bytes, about 25 million numbers a second
    RANS    (``rans``): several times faster on long vectors. The lengths of streams of 2¹⁹ numbers (uint32),
            then the streams

Encoder and decoder know the number of integers and the largest magnitude that is allowed.
"""

from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from qafel.coding.bitplanes import packed_bytes
from qafel.coding.threads import over_parts, scratch
from qafel.errors import FrameError

Integers = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]

FIXED, RANGE, RANS = range(3)
CODINGS = ("fixed", "range", "rans")
MAX_MAGNITUDE = (1 << 15) - 1
DENSITY = 13
"""A byte of a range coding holds fewer than 2¹³ numbers: a decision costs at least 1/700 of a bit."""
STREAM = 1 << 19
"""Numbers in a stream; threads code streams in parallel."""


@lru_cache(maxsize=256)
def max_integer_bytes(size: int, max_magnitude: int) -> int:
    """Return the largest number of bytes that ``size`` numbers up to ``max_magnitude`` can take."""
    return 3 + max(packed_bytes(size, width) for width in range(_width(max_magnitude) + 1)) if size else 1


def encode_integers(q: Integers, coding: str) -> bytes:
    """Return the shorter of ``coding`` and fixed width."""
    from qafel.coding import rans_digits

    q = np.ascontiguousarray(q, np.int16)
    magnitude = int(rans_digits.largest(q))
    limit = 3 + packed_bytes(q.size, _width(magnitude))
    if coding == "range" and q.size:
        coded = _range(q, limit)
    elif coding == "rans" and q.size:
        coded = _rans(q, limit)
    else:
        coded = None
    return coded if coded is not None and len(coded) < limit else _fixed(q, magnitude)


def check_integers(data: bytes | memoryview, size: int, max_magnitude: int) -> None:
    """Raise FrameError if ``len(data)`` is impossible for so many numbers. Allocates nothing."""
    length = len(data)
    if not 0 < length <= max_integer_bytes(size, max_magnitude):
        raise FrameError(f"{length} bytes cannot hold {size} numbers up to {max_magnitude}")
    if data[0] >= len(CODINGS):
        raise FrameError(f"unknown coding of numbers: {data[0]}; known are 0 to {len(CODINGS) - 1}")
    if not size:
        possible = length == 1 and data[0] == FIXED
    elif data[0] == FIXED:
        magnitude = int.from_bytes(data[1:3], "little")
        possible = magnitude <= max_magnitude and length == 3 + packed_bytes(size, _width(magnitude))
    elif data[0] == RANGE:
        possible = length > size >> DENSITY
    else:
        possible = length > 4 * -(-size // STREAM)
    if not possible:
        raise FrameError(f"these {length} bytes are not a coding of {size} numbers up to {max_magnitude}")


def decode_integers(data: bytes | memoryview, size: int, max_magnitude: int) -> Integers:
    """Return the ``size`` numbers up to ``max_magnitude`` that ``encode_integers`` wrote.

    Raises FrameError if ``data`` is not such a coding.
    """
    check_integers(data, size, max_magnitude)
    body, q = np.frombuffer(data, np.uint8, offset=1), np.empty(size, np.int16)
    read = {FIXED: _read_fixed, RANGE: _read_range, RANS: _read_rans}[data[0]]
    if not read(body, max_magnitude, q):
        raise FrameError(
            f"these bytes are not a {CODINGS[data[0]]} coding of {size} numbers up to {max_magnitude}"
        )
    return q


def _width(max_magnitude: int) -> int:
    return (2 * max_magnitude).bit_length()


def _fixed(q: Integers, magnitude: int) -> bytes:
    from qafel.coding import bitplanes_kernels

    if not q.size:
        return bytes([FIXED])
    width = _width(magnitude)
    out = np.empty(3 + packed_bytes(q.size, width), np.uint8)
    out[0] = FIXED
    out[1:3].view(np.uint16)[0] = magnitude
    bitplanes_kernels.pack_integers(q, magnitude, width, out[3:])
    return out.tobytes()


def _read_fixed(body: Bytes, max_magnitude: int, q: Integers) -> bool:
    from qafel.coding import bitplanes_kernels

    del max_magnitude  # ``check_integers`` compared it with the one in the payload
    if not q.size:
        return True
    magnitude = int(body[:2].copy().view(np.uint16)[0])
    return not bitplanes_kernels.unpack_integers(body[2:], magnitude, _width(magnitude), q)


def _range(q: Integers, limit: int) -> bytes | None:
    """Return None if the coding is longer than ``limit``."""
    from qafel.coding import range_coder

    out = np.empty(limit + range_coder.MAX_NUMBER_BYTES, np.uint8)
    count = range_coder.encode(q, out[1:])
    if count < 0:
        return None
    out[0] = RANGE
    return out[: 1 + count].tobytes()


def _read_range(body: Bytes, max_magnitude: int, q: Integers) -> bool:
    from qafel.coding import range_coder

    return not range_coder.decode(body, max_magnitude, q)


def _rans(q: Integers, limit: int) -> bytes | None:
    """Return None if the coding is longer than ``limit``."""
    parts = over_parts(lambda start: _rans_stream(q[start : start + STREAM]), q.size, STREAM)
    if not all(parts) or sum(map(len, parts)) > limit:
        return None
    sizes = np.array([len(part) for part in parts], np.uint32)
    return b"".join([bytes([RANS]), sizes.tobytes(), *parts])


def _rans_stream(q: Integers) -> bytes:
    """Return the stream, empty if it would be longer than the numbers are as int16."""
    from qafel.coding import rans

    room = scratch(rans.scratch_bytes(q.size))
    start, end = rans.encode(q, room)
    return room[start:end].tobytes()


def _read_rans(body: Bytes, max_magnitude: int, q: Integers) -> bool:
    from qafel.coding import rans

    head = 4 * -(-q.size // STREAM)
    ends = list(accumulate(np.frombuffer(body[:head].tobytes(), np.uint32).tolist(), initial=head))
    if ends[-1] != len(body):
        return False

    def read(start: int) -> bool:
        k, part = start // STREAM, q[start : start + STREAM]
        room = scratch(rans.scratch_bytes(part.size))
        return not rans.decode(body[ends[k] : ends[k + 1]], max_magnitude, room, part)

    return all(over_parts(read, q.size, STREAM))
