"""Sorted positions as bytes: a bitmap or Rice-coded gaps, whichever is shorter, never 32-bit indices.

The first byte says which: 255 for the bitmap (bit i of the little-endian bit string is position i), otherwise
the Rice parameter r of the gaps: each gap (positions skipped since the last one) is ``gap >> r`` ones, a
zero, then its r low bits, lowest first. Both ends know how many positions there are; a decoder accepts
exactly one valid coding of that many.
"""

import numpy as np
import numpy.typing as npt

from qafel.errors import FrameError

Indices = npt.NDArray[np.int64]

BITMAP = 255
MAX_RICE = 30


def max_index_bytes(size: int, count: int) -> int:
    """No ``count`` positions below ``size`` take more bytes than this.

    With parameter r, their gaps need at most count·(r + 1) + (size − count)/2ʳ bits.
    """
    bits = min(count * (rice + 1) + ((size - count) >> rice) for rice in range(MAX_RICE + 1))
    return 1 + -(-min(size, bits) // 8)


def _bitmap_bytes(size: int) -> int:
    return -(-size // 8)


def encode_indices(indices: Indices, size: int) -> bytes:
    """The shortest of the two codings of sorted, distinct ``indices`` below ``size``."""
    rice, bits = _best_rice(indices)
    gap_bytes = -(-bits // 8)
    if gap_bytes >= _bitmap_bytes(size):
        mask = np.zeros(size, np.bool_)
        mask[indices] = True
        return bytes([BITMAP]) + np.packbits(mask, bitorder="little").tobytes()
    from qafel.coding import kernels

    out = np.zeros(gap_bytes, np.uint8)
    kernels.write_gaps(indices, rice, out)
    return bytes([rice]) + out.tobytes()


def decode_indices(data: bytes | memoryview, size: int, count: int) -> Indices:
    """The ``count`` positions below ``size`` that ``encode_indices`` wrote."""
    if not 0 < len(data) <= max_index_bytes(size, count):
        raise FrameError(f"{len(data)} bytes cannot hold {count} positions below {size}")
    kind, body = data[0], np.frombuffer(data, np.uint8, offset=1)
    if kind == BITMAP:
        if len(body) != _bitmap_bytes(size):
            raise FrameError(
                f"a bitmap of {size} positions takes {_bitmap_bytes(size)} bytes, not {len(body)}"
            )
        if int(np.bitwise_count(body).sum()) != count:
            raise FrameError(f"the bitmap does not mark {count} positions")
        indices = np.flatnonzero(np.unpackbits(body, bitorder="little"))
        if count and indices[-1] >= size:
            raise FrameError(f"the bitmap does not mark {count} positions below {size}")
        return indices
    if kind > MAX_RICE:
        raise FrameError(f"unknown coding of positions: {kind}")
    from qafel.coding import kernels

    indices = np.empty(count, np.int64)
    if not kernels.read_gaps(body, kind, size, indices):
        raise FrameError(f"the gaps do not spell {count} positions below {size}")
    return indices


def _best_rice(indices: Indices) -> tuple[int, int]:
    """The Rice parameter that needs the fewest bits for the gaps, and that number of bits."""
    if not len(indices):
        return 0, 0
    gaps = np.diff(indices, prepend=-1) - 1
    costs = [
        len(gaps) * (rice + 1) + int((gaps >> rice).sum()) for rice in range(int(gaps.max()).bit_length() + 1)
    ]
    best = int(np.argmin(costs))
    return best, costs[best]
