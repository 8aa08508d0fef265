"""A cosine transform of the 3 × 3 kernels of convolutions, for quantizers with a layout.

Neighbouring weights of a kernel move together. The orthonormal transform collects what they have in common in
few coordinates, so that more integers are zero at the same step; squared errors and means do not change. The
frequencies of a tensor are stored one after the other, each for all kernels.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.coding.threads import CHUNK, over_parts
from qafel.lazy import Lazy
from qafel.vectors import Layout, Tensor, Vector

KERNEL = (3, 3)
PART = 1 << 15
"""Kernels that a thread transforms at a time."""

kernels = Lazy("qafel.quantizers._spatial_kernels")


@lru_cache(maxsize=64)
def places(layout: Layout) -> tuple[slice, ...]:
    """Return where the 3 × 3 kernels are."""
    return tuple(
        place for tensor, place in layout.slices() if len(tensor.shape) == 4 and tensor.shape[2:] == KERNEL
    )


@lru_cache(maxsize=64)
def rows(layout: Layout) -> npt.NDArray[np.int64]:
    """Return (end, width) of every tensor, after the transform: the width of its rows, 0 for a vector."""
    widths = [0 if len(tensor.shape) < 2 else _width(tensor) for tensor in layout.tensors]
    return np.stack([np.cumsum([tensor.size for tensor in layout.tensors]), widths], axis=1)


def _width(tensor: Tensor) -> int:
    kernels = len(tensor.shape) == 4 and tensor.shape[2:] == KERNEL
    return tensor.shape[1] if kernels else tensor.size // tensor.shape[0]


@lru_cache(maxsize=64)
def _parts(layout: Layout) -> npt.NDArray[np.int64]:
    """Return (place of the tensor, its kernels, first, last) of parts that threads can share.

    Without kernels, first and last are coordinates; with them, kernels.
    """
    parts, end = [], 0
    for place in (*places(layout), slice(layout.size, layout.size)):
        parts += [(0, 0, a, min(a + 9 * PART, place.start)) for a in range(end, place.start, 9 * PART)]
        count, end = (place.stop - place.start) // 9, place.stop
        parts += [(place.start, count, a, min(a + PART, count)) for a in range(0, count, PART)]
    return np.array(parts, np.int64).reshape(-1, 4)


def _over(kernel: Callable[[npt.NDArray[np.int64]], None], layout: Layout) -> None:
    """Call ``kernel`` on all parts: at once, or in threads where the vector is long."""
    parts = _parts(layout)
    if layout.size <= CHUNK:
        kernel(parts)
    else:
        over_parts(lambda k: kernel(parts[k : k + 1]), len(parts), 1)


def forward(x: Vector, layout: Layout) -> Vector:
    """Return ``x`` with its kernels transformed to frequencies."""
    out, flat = vectors.zeros(x.size), vectors.read_only(x)
    _over(lambda parts: kernels.to_frequencies(flat, parts, out), layout)
    return out


def add_back(values: Vector, layout: Layout, weight: np.float32, out: Vector) -> None:
    """Do ``out += weight · values`` with the frequencies of ``values`` transformed to kernels."""
    _over(lambda parts: kernels.add_back(values, parts, weight, out), layout)
