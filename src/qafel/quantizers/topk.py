"""``topk``: the largest coordinates."""

from dataclasses import dataclass

import numpy as np

from qafel import vectors
from qafel.coding.rice import Indices, decode_indices, encode_indices, max_index_bytes
from qafel.quantizers._base import check_finite, register_quantizer
from qafel.quantizers._sparse import Sparse
from qafel.vectors import Vector


@register_quantizer
@dataclass(frozen=True)
class TopK(Sparse):
    """The k coordinates of largest magnitude; equal ones in the order of their positions. Biased.

    Payload: the positions (``qafel.coding.rice``), then the values (float32).
    """

    name = "topk"
    example = "topk:0.1"
    unbiased = False

    def max_bytes(self, size: int) -> int:
        """Return the length for the positions that take the most bytes."""
        return max_index_bytes(size, self.kept(size)) + 4 * self.kept(size)

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the positions, then the values."""
        del seed
        x = vectors.as_vector(x)
        check_finite(x)
        indices = largest(x, self.kept(x.size))
        return encode_indices(indices, x.size) + x[indices].tobytes()

    def positions(self, data: bytes, size: int) -> Indices:
        """Decode the positions."""
        return decode_indices(data, size, self.kept(size))


def largest(x: Vector, count: int) -> Indices:
    """Return the sorted positions of the ``count`` largest magnitudes; lower positions first among equals."""
    if count == 0:
        return np.empty(0, np.int64)
    magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitude, x.size - count)[x.size - count]
    chosen = magnitude > threshold
    ties = np.flatnonzero(magnitude == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
