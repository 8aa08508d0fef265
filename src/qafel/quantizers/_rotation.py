"""The random rotation of ``eden`` and ``rotated``: random signs and a Hadamard transform, twice, in blocks.

It makes the coordinates of every block look normally distributed. The last block is filled up with zeros. The
head of a payload holds the seed of the signs (uint32) and the power of two that normalised x (int16, mostly
0).
"""

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.errors import FrameError
from qafel.quantizers import _scaled
from qafel.streams import derive, keys
from qafel.vectors import Vector

BLOCK = 1024
HEAD = 6
MAX_FACTOR = 2.0**60


def blocks(size: int) -> int:
    """Return the number of blocks of a vector."""
    return -(-size // BLOCK)


def forward(x: Vector, seed: int) -> tuple[Vector, bytes]:
    """Return the rotated vector and the head of its payload; ``x`` is not empty."""
    from qafel.quantizers import _rotation_kernels as kernels

    normalised = _scaled.normalise(x)
    signs = derive(seed, "rotation") & 0xFFFFFFFF
    y = vectors.zeros(blocks(x.size) * BLOCK)
    y[: x.size] = normalised.x
    kernels.rotate(y, *keys(signs))
    return y, np.uint32(signs).tobytes() + np.int16(normalised.exponent).tobytes()


def add_back(y: Vector, head: bytes, weight: float, out: Vector) -> None:
    """Rotate ``y`` back, in place, and do ``out += weight · y``."""
    from qafel.quantizers import _rotation_kernels as kernels

    kernels.rotate_back(y, *keys(int.from_bytes(head[:4], "little")))
    value, exponent = y[: out.size], _exponent(head)
    out += np.float32(weight) * (_scaled.rescale(value, exponent) if exponent else value)


def check(head: bytes, factors: npt.NDArray[np.float32], spec: str) -> None:
    """Raise FrameError if no vector has this head or these factors."""
    if abs(_exponent(head)) > _scaled.MAX_EXPONENT or not ((factors >= 0) & (factors <= MAX_FACTOR)).all():
        raise FrameError(f"{spec}: impossible exponent or factor")


def _exponent(head: bytes) -> int:
    return int.from_bytes(head[4:HEAD], "little", signed=True)
