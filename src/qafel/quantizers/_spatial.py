"""A cosine transform of the 3 × 3 kernels of convolutions, for quantizers with a layout.

Neighbouring weights of a kernel move together. The orthonormal transform collects what they have in common in
few coordinates, so that more integers are zero at the same step; squared errors and means do not change. The
frequencies of a tensor are stored one after the other, each for all kernels.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from qafel import vectors
from qafel.vectors import Layout, Vector

KERNEL = (3, 3)


@lru_cache(maxsize=64)
def places(layout: Layout) -> tuple[slice, ...]:
    """Return where the 3 × 3 kernels are."""
    return tuple(
        place for tensor, place in layout.slices() if len(tensor.shape) == 4 and tensor.shape[2:] == KERNEL
    )


@lru_cache(maxsize=1)
def matrix() -> Vector:
    """Return the cosine transform of a kernel, 9 × 9."""
    third, half, sixth = np.sqrt(1 / 3), np.sqrt(1 / 2), np.sqrt(1 / 6)
    line = np.array([[third, third, third], [half, 0, -half], [sixth, -2 * sixth, sixth]])
    return np.kron(line, line).astype(np.float32)


def forward(x: Vector, layout: Layout) -> Vector:
    """Return ``x`` with its kernels transformed to frequencies."""
    from qafel.quantizers import _spatial_kernels

    return _transformed(x, layout, _spatial_kernels.to_frequencies)


def inverse(y: Vector, layout: Layout) -> Vector:
    """Return ``y`` with its frequencies transformed to kernels."""
    from qafel.quantizers import _spatial_kernels

    return _transformed(y, layout, _spatial_kernels.from_frequencies)


def _transformed(x: Vector, layout: Layout, kernel: Callable[[Vector, Vector, Vector], None]) -> Vector:
    out = vectors.copy(x)
    for place in places(layout):
        kernel(vectors.read_only(x[place]), matrix(), out[place])
    return out
