"""Vectors of small integers as bytes. No coding takes more than fixed width does.

The first byte names the coding:

    FIXED   the largest magnitude m (uint16), then q + m, packed by ``bitplanes``
    RANGE   the range coder with an adaptive model (``integers_kernels``), in streams of 2¹⁹ numbers: the
            lengths of all streams but the last (uint32), then the streams

Encoder and decoder know the number of integers, the largest magnitude that is allowed, and the ``rows``: the
matrices, if any, that the numbers are.
"""

from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from qafel.coding.bitplanes import packed_bytes
from qafel.coding.threads import over_parts, scratch
from qafel.errors import FrameError
from qafel.lazy import Lazy

Integers = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
"""(end, width) of consecutive matrices that cover all numbers; width 0 for what is no matrix."""

FIXED, RANGE = range(2)
CODINGS = ("fixed", "range")
MAX_MAGNITUDE = (1 << 15) - 1
DENSITY = 13
"""A byte of a range coding holds fewer than 2¹³ numbers: a decision costs at least 1/700 of a bit."""
STREAM = 1 << 19
"""Numbers in a stream; threads code streams in parallel."""

bitplanes_kernels = Lazy("qafel.coding.bitplanes_kernels")
kernels = Lazy("qafel.coding.integers_kernels")


@lru_cache(maxsize=256)
def max_integer_bytes(size: int, max_magnitude: int) -> int:
    """Return the largest number of bytes that ``size`` numbers up to ``max_magnitude`` can take."""
    return 3 + max(packed_bytes(size, width) for width in range(_width(max_magnitude) + 1)) if size else 1


def encode_integers(q: Integers, rows: Rows | None = None) -> bytes:
    """Return the shorter of the two codings."""
    q = np.ascontiguousarray(q, np.int16)
    magnitude = int(kernels.largest(q))
    limit = 3 + packed_bytes(q.size, _width(magnitude))
    coded = _range(q, _all_rows(q.size, rows)) if q.size else None
    return coded if coded is not None and len(coded) < limit else _fixed(q, magnitude)


def check_integers(data: bytes | memoryview, size: int, max_magnitude: int) -> None:
    """Raise FrameError if ``len(data)`` is impossible for ``size`` numbers. Allocates nothing."""
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
    else:
        possible = length > max(size >> DENSITY, 4 * (-(-size // STREAM) - 1))
    if not possible:
        raise FrameError(f"these {length} bytes are not a coding of {size} numbers up to {max_magnitude}")


def decode_integers(
    data: bytes | memoryview, size: int, max_magnitude: int, rows: Rows | None = None
) -> Integers:
    """Return the ``size`` numbers up to ``max_magnitude`` that ``encode_integers`` wrote.

    Raises FrameError if ``data`` is not such a coding.
    """
    check_integers(data, size, max_magnitude)
    body, q = np.frombuffer(data, np.uint8, offset=1), np.empty(size, np.int16)
    if not (
        _read_fixed(body, q)
        if data[0] == FIXED
        else _read_range(body, max_magnitude, _all_rows(size, rows), q)
    ):
        raise FrameError(
            f"these bytes are not a {CODINGS[data[0]]} coding of {size} numbers up to {max_magnitude}"
        )
    return q


def write_streams(streams: list[bytes]) -> bytes:
    """Return the lengths of all streams but the last, then the streams."""
    lengths = np.array([len(stream) for stream in streams[:-1]], np.uint32)
    return b"".join([lengths.tobytes(), *streams])


def read_streams(body: Bytes, count: int) -> list[Bytes] | None:
    """The inverse of ``write_streams``; None if these are not ``count`` streams of words."""
    if count == 1:
        return [body] if len(body) and len(body) % 2 == 0 else None
    head = 4 * (count - 1)
    ends = list(accumulate(np.frombuffer(body[:head].tobytes(), np.uint32).tolist(), initial=head))
    pairs = list(pairwise([*ends, len(body)]))
    if any(end <= start or (end - start) % 2 or end > len(body) for start, end in pairs):
        return None
    return [body[start:end] for start, end in pairs]


def _all_rows(size: int, rows: Rows | None) -> Rows:
    return np.array([[size, 0]]) if rows is None else rows


def _width(max_magnitude: int) -> int:
    return (2 * max_magnitude).bit_length()


def _fixed(q: Integers, magnitude: int) -> bytes:
    if not q.size:
        return bytes([FIXED])
    width = _width(magnitude)
    out = np.empty(3 + packed_bytes(q.size, width), np.uint8)
    out[0] = FIXED
    out[1:3].view(np.uint16)[0] = magnitude
    bitplanes_kernels.pack_integers(q, magnitude, width, out[3:])
    return out.tobytes()


def _read_fixed(body: Bytes, q: Integers) -> bool:
    if not q.size:
        return True
    magnitude = int(body[:2].copy().view(np.uint16)[0])
    return not bitplanes_kernels.unpack_integers(body[2:], magnitude, _width(magnitude), q)


def _range(q: Integers, rows: Rows) -> bytes | None:
    """Return None if a stream is longer than its numbers are as int16."""

    def stream(start: int) -> bytes:
        part = q[start : start + STREAM]
        out = scratch(2 * (part.size + 2 * kernels.PADDING)).view(np.uint16)
        count = kernels.encode(part, start, rows, out)
        return out[: max(count, 0)].tobytes()

    streams = over_parts(stream, q.size, STREAM)
    return bytes([RANGE]) + write_streams(streams) if all(streams) else None


def _read_range(body: Bytes, max_magnitude: int, rows: Rows, q: Integers) -> bool:
    streams = read_streams(body, -(-q.size // STREAM))
    if streams is None:
        return False

    def read(start: int) -> bool:
        part = q[start : start + STREAM]
        return not kernels.decode(streams[start // STREAM], start, rows, max_magnitude, part)

    return all(over_parts(read, q.size, STREAM))
