"""What a layout is good for: the 3 × 3 kernels of convolutions, as frequencies.

Neighbouring weights of a kernel move together. An orthonormal cosine transform of every kernel gathers what
they have in common, so that more numbers become zero at the same step; nothing else changes, neither errors
nor means. Frequencies are laid out one after the other, each for all kernels of a tensor.
"""

from functools import lru_cache

import numpy as np

from qafel import vectors
from qafel.vectors import Layout, Vector

KERNEL = (3, 3)


@lru_cache(maxsize=64)
def places(layout: Layout) -> tuple[slice, ...]:
    """Where the 3 × 3 kernels are."""
    return tuple(
        place for tensor, place in layout.slices() if len(tensor.shape) == 4 and tensor.shape[2:] == KERNEL
    )


@lru_cache(maxsize=1)
def matrix() -> Vector:
    """The cosine transform of a kernel, 9 × 9."""
    third, half, sixth = np.sqrt(1 / 3), np.sqrt(1 / 2), np.sqrt(1 / 6)
    line = np.array([[third, third, third], [half, 0, -half], [sixth, -2 * sixth, sixth]])
    return np.kron(line, line).astype(np.float32)


def forward(x: Vector, layout: Layout) -> Vector:
    """Kernels to frequencies."""
    from qafel.quantizers import dither_kernels

    out = vectors.copy(x)
    for place in places(layout):
        dither_kernels.to_frequencies(vectors.read_only(x[place]), matrix(), out[place])
    return out


def inverse(y: Vector, layout: Layout) -> Vector:
    """Frequencies to kernels."""
    from qafel.quantizers import dither_kernels

    out = vectors.copy(y)
    for place in places(layout):
        dither_kernels.from_frequencies(vectors.read_only(y[place]), matrix(), out[place])
    return out
