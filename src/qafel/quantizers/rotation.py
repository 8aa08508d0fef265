"""The random rotation of ``eden`` and ``rotated``: signs and a Hadamard transform, twice, in blocks.

It makes the coordinates of any vector look normal, block by block. The last block is filled up with zeros.
The head of a payload says which rotation it was: the seed of the signs (uint32) and a power of two that
brought x to a normal size (int16, mostly 0).
"""

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.errors import FrameError
from qafel.quantizers import scaled
from qafel.streams import derive, keys
from qafel.vectors import Vector

BLOCK = 1024
HEAD = 6


def blocks(size: int) -> int:
    """How many blocks a vector has."""
    return -(-size // BLOCK)


def forward(x: Vector, seed: int) -> tuple[Vector, bytes]:
    """A vector that is not empty, rotated, and the head that says how."""
    from qafel.quantizers import eden_kernels as kernels

    found = scaled.normalise(x)
    drawn = derive(seed, "rotation") & 0xFFFFFFFF
    y = vectors.zeros(blocks(x.size) * BLOCK)
    y[: x.size] = found.x
    kernels.rotate(y, *keys(drawn))
    return y, np.uint32(drawn).tobytes() + np.int16(found.exponent).tobytes()


def add_back(y: Vector, head: bytes, weight: float, out: Vector) -> None:
    """``out += weight · y``, rotated back; ``y`` is used up."""
    from qafel.quantizers import eden_kernels as kernels

    kernels.rotate_back(y, *keys(int.from_bytes(head[:4], "little")))
    value, exponent = y[: out.size], _exponent(head)
    out += np.float32(weight) * (scaled.rescale(value, exponent) if exponent else value)


def check(head: bytes, factors: npt.NDArray[np.float32], spec: str) -> None:
    """FrameError where no vector has such a head or such factors."""
    if abs(_exponent(head)) > 160 or not ((factors >= 0) & (factors <= 2.0**60)).all():
        raise FrameError(f"{spec}: an impossible factor")


def _exponent(head: bytes) -> int:
    return int.from_bytes(head[4:HEAD], "little", signed=True)
