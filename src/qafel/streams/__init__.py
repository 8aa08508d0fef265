"""Random streams: every random number comes from a named stream, never from global state.

``derive(seed, "train", client, task)`` returns the seed of a stream. The same names give the same numbers on
every machine and in any order of execution. ``keys`` turns a seed into the two keys of the counter-based
generator in ``streams.kernels``, which computes the 16 random bits of coordinate i from i alone.
"""

import numpy as np
import xxhash

MASK = (1 << 64) - 1


def derive(seed: int, *names: int | str) -> int:
    """The 64-bit seed of the stream called ``names`` under ``seed``."""
    text = str(int(seed) & MASK)
    for name in names:
        text += f"/{len(name)}:{name}" if isinstance(name, str) else f"/#{int(name)}"
    return xxhash.xxh3_64_intdigest(text.encode())


def keys(seed: int) -> tuple[np.uint32, np.uint32]:
    """Two 32-bit keys from a seed, through splitmix64: consecutive seeds give unrelated pairs."""
    z = ((int(seed) & MASK) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return np.uint32(z & 0xFFFFFFFF), np.uint32(z >> 32)


def generator(seed: int, *names: int | str) -> np.random.Generator:
    """A numpy generator of the stream called ``names`` under ``seed``; quantizers use ``keys`` instead."""
    return np.random.Generator(np.random.Philox(key=derive(seed, *names)))
