"""A quantizer of your own: every coordinate becomes its sign times the mean magnitude of its bucket.

python examples/own_quantizer.py
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from qafel import Quantizer, register_quantizer
from qafel.errors import FrameError
from shared import QUICK, compare

BUCKET = 128


@register_quantizer
@dataclass(frozen=True)
class BucketSign(Quantizer):
    """One bit per coordinate, and a float32 for every 128 of them. It is biased, so it is for the server."""

    name = "bucketsign"
    example = "bucketsign"
    unbiased = False

    @classmethod
    def from_arguments(cls, arguments) -> Self:
        arguments.expect(None, ())
        return cls()

    @property
    def spec(self) -> str:
        return self.name

    def omega(self, size: int) -> float:
        return 1 - 1 / BUCKET

    def max_bytes(self, size: int) -> int:
        return 4 * -(-size // BUCKET) + -(-size // 8)

    def encode(self, x, seed: int) -> bytes:
        buckets = np.pad(np.abs(x), (0, -x.size % BUCKET)).reshape(-1, BUCKET)
        return buckets.mean(1, dtype=np.float32).tobytes() + np.packbits(x < 0).tobytes()

    def decode(self, data: bytes, size: int):
        if len(data) != self.max_bytes(size):
            raise FrameError(f"bucketsign: {len(data)} bytes instead of {self.max_bytes(size)}")
        count = -(-size // BUCKET)
        means = np.repeat(np.frombuffer(data, np.float32, count), BUCKET)[:size]
        if not np.isfinite(means).all():
            raise FrameError("bucketsign: a mean is not finite")
        negative = np.unpackbits(np.frombuffer(data, np.uint8, offset=4 * count), count=size)
        return np.where(negative, -means, means)


if __name__ == "__main__":
    ours = {"server_quantizer": "bucketsign", "uploads": 100 if QUICK else 4000, "evaluate_every": 50}
    compare("own_quantizer", ("qafel",), data="digits", model="mlp", local_rate=0.1, clients=60, **ours)
