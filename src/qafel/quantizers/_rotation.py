"""The random rotation that ``eden`` and ``rotated`` share: of blocks, the last one filled up with zeros."""

import struct

from qafel.coding.gaps import BLOCK
from qafel.lazy import Lazy
from qafel.streams import derive

HEAD = struct.Struct("<Ih")
"""The seed of the signs, and a power of two."""

rotation_kernels = Lazy("qafel.quantizers._rotation_kernels")


def blocks(size: int) -> int:
    """Return the number of blocks of a vector."""
    return -(-size // BLOCK)


def draw_seed(seed: int) -> int:
    """Return the seed of the signs, 32 bits."""
    return derive(seed, "rotation") & 0xFFFFFFFF
