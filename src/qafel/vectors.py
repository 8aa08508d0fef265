"""Flat float32 vectors, and layouts: the position of each named tensor in such a vector.

Everything that is coded, added or sent is a contiguous one-dimensional float32 vector. Vectors that kernels
add into are aligned to the cache line (``zeros``), so that no SIMD store crosses two lines.
"""

import operator
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError, VectorError

Vector = npt.NDArray[np.float32]

MAX_SIZE = (1 << 30) - 1
"""The largest number of coordinates: in full precision a vector must fit into one message of 4 GB."""

ALIGNMENT = 64
BLOCK = 65536

if sys.byteorder != "little":
    raise ImportError(f"qafel runs on little-endian machines only, got a {sys.byteorder}-endian one")


def zeros(size: int) -> Vector:
    """A zero vector aligned to the cache line."""
    return _aligned(np.zeros(4 * size + ALIGNMENT, np.uint8))


def empty(size: int) -> Vector:
    """An uninitialised vector aligned to the cache line."""
    return _aligned(np.empty(4 * size + ALIGNMENT, np.uint8))


def _aligned(raw: npt.NDArray[np.uint8]) -> Vector:
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : raw.size + start - ALIGNMENT].view(np.float32)


def copy(x: Vector) -> Vector:
    """A copy of ``x`` aligned to the cache line."""
    out = empty(x.size)
    np.copyto(out, x)
    return out


def as_vector(x: npt.ArrayLike, size: int | None = None) -> Vector:
    """Return ``x`` as a flat contiguous float32 vector; VectorError if its type, shape or size is wrong.

    Other types are refused, not converted: rounding is the caller's decision. NaN and infinity are not
    checked here; the kernels that read the vector check them.
    """
    array = np.asarray(x)
    if array.dtype != np.float32 or array.ndim != 1:
        raise VectorError(
            f"expected a flat float32 vector, got {array.dtype} of shape {array.shape}; "
            "use x.astype('float32').ravel()"
        )
    if size is not None and array.size != size:
        raise VectorError(f"expected {size} coordinates, got {array.size}")
    if array.size > MAX_SIZE:
        raise VectorError(f"a vector must have at most {MAX_SIZE} coordinates, got {array.size}")
    return np.ascontiguousarray(array)


def read_only(x: Vector) -> Vector:
    """A read-only view of ``x``."""
    view = x.view()
    view.flags.writeable = False
    return view


def check_target(out: Vector) -> None:
    """Raise VectorError unless a kernel can add into ``out`` in place."""
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.ndim != 1 or not out.flags.carray:
        raise VectorError("the target must be a flat, contiguous and writable float32 vector")


def not_finite(x: Vector) -> VectorError:
    """The error for a vector with NaN or infinity; it names the first such coordinate."""
    bad = np.flatnonzero(~np.isfinite(x))
    return VectorError(
        f"coordinate {bad[0]} is {x[bad[0]]}; all coordinates must be finite ({bad.size} of {x.size} are not)"
    )


def is_finite(x: Vector) -> bool:
    """Whether every coordinate is finite; the temporary arrays are at most a block long."""
    return all(bool(np.isfinite(x[i : i + BLOCK]).all()) for i in range(0, x.size, BLOCK))


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A named tensor of a layout."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of coordinates."""
        size = 1
        for side in self.shape:
            size *= side
            if size > MAX_SIZE:
                raise ConfigError(
                    f"tensor {self.name!r} must have at most {MAX_SIZE} coordinates, got {self.shape}"
                )
        return size


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The named tensors of a flat vector, in order, without gaps."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise ConfigError(f"the tensor names of a layout must differ, got {names}")
        for tensor in self.tensors:
            if any(side < 1 for side in tensor.shape):
                raise ConfigError(
                    f"every side of tensor {tensor.name!r} must be at least 1, got {tensor.shape}"
                )

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> "Layout":
        """The layout of ``{name: shape}``, in that order."""
        return cls(tuple(Tensor(name, tuple(map(operator.index, shape))) for name, shape in shapes.items()))

    @property
    def size(self) -> int:
        """The number of coordinates of the flat vector."""
        return sum(tensor.size for tensor in self.tensors)

    def slices(self) -> list[tuple[Tensor, slice]]:
        """Each tensor with its slice of the flat vector."""
        slices, start = [], 0
        for tensor in self.tensors:
            slices.append((tensor, slice(start, start + tensor.size)))
            start += tensor.size
        return slices

    def flatten(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """The flat vector of named arrays; VectorError if a name or shape differs from the layout."""
        if set(arrays) != {tensor.name for tensor in self.tensors}:
            raise VectorError(f"expected the tensors {[t.name for t in self.tensors]}, got {list(arrays)}")
        out = zeros(self.size)
        for tensor, place in self.slices():
            if arrays[tensor.name].shape != tensor.shape:
                raise VectorError(
                    f"tensor {tensor.name!r} must have shape {tensor.shape}, got {arrays[tensor.name].shape}"
                )
            out[place] = arrays[tensor.name].ravel()
        return out

    def unflatten(self, x: Vector) -> dict[str, Vector]:
        """Views of the flat vector, by tensor name."""
        x = as_vector(x, self.size)
        return {tensor.name: x[place].reshape(tensor.shape) for tensor, place in self.slices()}
