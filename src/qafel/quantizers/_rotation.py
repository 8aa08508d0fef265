"""The random rotation of ``eden`` and ``rotated``: random signs and a Hadamard transform, twice, in blocks.

It makes the coordinates of every block look normally distributed. The last block is filled up with zeros. A
payload begins with the seed of the signs (uint32).
"""

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.coding.gaps import BLOCK as BLOCK
from qafel.errors import FrameError
from qafel.quantizers import _scaled
from qafel.streams import derive, keys
from qafel.vectors import Vector

SIDE = 32
HEAD = 6
"""Bytes of the seed, and of the power of two that normalised x (int16, mostly 0)."""
MAX_FACTOR = 2.0**60


def blocks(size: int) -> int:
    """Return the number of blocks of a vector."""
    return -(-size // BLOCK)


def draw_seed(seed: int) -> int:
    """Return the seed of the signs, 32 bits."""
    return derive(seed, "rotation") & 0xFFFFFFFF


def forward(x: Vector, seed: int) -> tuple[Vector, bytes]:
    """Return the rotated vector and the head of its payload; ``x`` is not empty."""
    from qafel.quantizers import _rotation_kernels as kernels

    normalised, signs = _scaled.normalise(x), draw_seed(seed)
    y = vectors.zeros(blocks(x.size) * BLOCK)
    y[: x.size] = normalised.x
    kernels.rotate_blocks(y, keys(signs))
    return y, np.uint32(signs).tobytes() + np.int16(normalised.exponent).tobytes()


def add_back(y: Vector, head: bytes, weight: float, out: Vector) -> None:
    """Rotate ``y`` back, in place, and do ``out += weight · y``."""
    from qafel.quantizers import _rotation_kernels as kernels

    kernels.rotate_blocks_back(y, keys(int.from_bytes(head[:4], "little")))
    value, exponent = y[: out.size], _exponent(head)
    out += np.float32(weight) * (_scaled.rescale(value, exponent) if exponent else value)


def check(head: bytes, factors: npt.NDArray[np.float32], spec: str) -> None:
    """Raise FrameError if no vector has this head or these factors."""
    if abs(_exponent(head)) > _scaled.MAX_EXPONENT or not ((factors >= 0) & (factors <= MAX_FACTOR)).all():
        raise FrameError(f"{spec}: impossible exponent or factor")


def _exponent(head: bytes) -> int:
    return int.from_bytes(head[4:HEAD], "little", signed=True)
