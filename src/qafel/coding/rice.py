"""Sorted positions as bytes: a bitmap or Rice-coded gaps, whichever is shorter.

The first byte is 255 for the bitmap (bit i of the little-endian bit string is position i), otherwise the Rice
parameter r of the gaps, the numbers of positions skipped since the last one (``rice_kernels``). Encoder and
decoder know the number of positions; the decoder accepts exactly one coding of each set of gaps.
"""

import numpy as np
import numpy.typing as npt

from qafel.errors import FrameError
from qafel.lazy import Lazy

Indices = npt.NDArray[np.int64]

BITMAP = 255
MAX_RICE = 30

kernels = Lazy("qafel.coding.rice_kernels")


def max_index_bytes(size: int, count: int) -> int:
    """Return the largest number of bytes that ``count`` positions below ``size`` can take.

    With parameter r, their gaps need at most count·(r + 1) + (size − count)/2ʳ bits.
    """
    bits = min(count * (rice + 1) + ((size - count) >> rice) for rice in range(MAX_RICE + 1))
    return 1 + -(-min(size, bits) // 8)


def _bitmap_bytes(size: int) -> int:
    return -(-size // 8)


def encode_indices(indices: Indices, size: int) -> bytes:
    """Return the shorter of the two codings of sorted, distinct ``indices`` below ``size``."""
    gaps = np.diff(indices, prepend=-1) - 1
    rice, bits = _best_rice(gaps)
    gap_bytes = -(-bits // 8)
    if gap_bytes >= _bitmap_bytes(size):
        mask = np.zeros(size, np.bool_)
        mask[indices] = True
        return bytes([BITMAP]) + np.packbits(mask, bitorder="little").tobytes()
    out = np.empty(gap_bytes + kernels.PADDING, np.uint8)
    kernels.write(gaps, rice, out)
    return bytes([rice]) + out[:gap_bytes].tobytes()


def decode_indices(data: bytes | memoryview, size: int, count: int) -> Indices:
    """Return the ``count`` positions below ``size`` that ``encode_indices`` wrote, or raise FrameError."""
    if not 0 < len(data) <= max_index_bytes(size, count):
        raise FrameError(f"{len(data)} bytes cannot hold {count} positions below {size}")
    kind, body = data[0], np.frombuffer(data, np.uint8, offset=1)
    if kind == BITMAP:
        if len(body) != _bitmap_bytes(size):
            raise FrameError(
                f"a bitmap of {size} positions takes {_bitmap_bytes(size)} bytes, got {len(body)}"
            )
        if int(np.bitwise_count(body).sum()) != count:
            raise FrameError(f"the bitmap does not mark {count} positions")
        indices = np.flatnonzero(np.unpackbits(body, bitorder="little"))
        if count and indices[-1] >= size:
            raise FrameError(f"the bitmap does not mark {count} positions below {size}")
        return indices
    if kind > MAX_RICE:
        raise FrameError(f"unknown coding of positions: {kind}; known are 0 to {MAX_RICE} and {BITMAP}")
    gaps = np.empty(count, np.int64)
    padded = np.frombuffer(bytes(data[1:]) + bytes(kernels.PADDING), np.uint8)
    end = kernels.read(padded, 0, kind, size - 1, gaps)
    indices = np.cumsum(gaps + 1) - 1
    if end != len(body) or (count and indices[-1] >= size):
        raise FrameError(f"the gaps are not a coding of {count} positions below {size}")
    return indices


def _best_rice(gaps: Indices) -> tuple[int, int]:
    """Return the Rice parameter that needs the fewest bits for the gaps, and that number of bits."""
    if not len(gaps):
        return 0, 0
    costs = [
        len(gaps) * (rice + 1) + int((gaps >> rice).sum()) for rice in range(int(gaps.max()).bit_length() + 1)
    ]
    best = int(np.argmin(costs))
    return best, costs[best]
