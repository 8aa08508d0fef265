"""The counter-based generator: 16 random bits per coordinate, in any order.

Word k of a stream is a hash of k under two keys. Coordinate i owns half ``i mod 2`` of word ``i div 2`` (low
half first). The second key enters between the two multiplications: with a single key, ``hash(k + key)``, the
streams of neighbouring keys would be shifts of each other.
"""

import numpy as np
from numba import njit

U32 = np.uint32
U64 = np.uint64


@njit(nogil=True, cache=True)
def fill(words, first, key0, key1):
    """Write words ``first, first + 1, …`` of the stream into ``words``."""
    for k in range(np.uintp(words.size)):
        h = U32(U32(first + U32(k)) + key0)
        h = U32(h ^ (h >> U32(16)))
        h = U32(h * U32(0x21F0AAAD))
        h = U32(h ^ key1)
        h = U32(h ^ (h >> U32(15)))
        h = U32(h * U32(0x735A2D97))
        words[k] = U32(h ^ (h >> U32(15)))


@njit(nogil=True, cache=True)
def subset(indices, size, key0, key1):
    """Write a uniformly random sorted subset of ``range(size)`` into ``indices``.

    This is Knuth's selection sampling: position i is selected with probability (still needed) / (still
    available), from 53 random bits of its own.
    """
    words = np.empty(4096, U32)
    needed = indices.size
    selected = 0
    for start in range(0, size, 2048):
        fill(words, U32(2 * start), key0, key1)
        for j in range(min(2048, size - start)):
            if selected == needed:
                return
            bits = (U64(words[2 * j]) << U64(21)) ^ (U64(words[2 * j + 1]) >> U64(11))
            if np.float64(bits) * 2.0**-53 * (size - start - j) < needed - selected:
                indices[selected] = start + j
                selected += 1
