"""``faces``: a generated data set with the structure of CelebA.

Every user has a style (head, hair, colours, a resting mouth, a share of smiles) and 5 to 35 pictures that
differ in pose, light and noise. The label is 1 if the face smiles. A user's pictures are generated on demand
from the seed and the user's number, so that a million users need no memory.
"""

import functools

import numpy as np

from qafel.errors import ConfigError
from qafel.lazy import Lazy
from qafel.streams import derive, generator, keys
from qafel.tasks.data.partitions import celeba_sizes
from qafel.tasks.data.table import Labels
from qafel.vectors import Vector

USERS = 9_343
"""The default number of users, as in CelebA with at least five images: 80 % train, 20 % are held out."""
SIDE = 32

kernels = Lazy("qafel.tasks.data.kernels")


class Faces:
    """Users whose pictures are generated on demand; held-out users have the numbers after the clients."""

    def __init__(self, clients: int | None = None, held_out: float = 0.2, seed: int = 0) -> None:
        self.clients = USERS - round(held_out * USERS) if clients is None else clients
        self.held = max(1, round(self.clients * held_out / (1 - held_out)))
        if self.clients + self.held >= 1 << 40:
            raise ConfigError(f"clients and held-out users must be below 2⁴⁰, got {self.clients + self.held}")
        self.shape: tuple[int, ...] = (3, SIDE, SIDE)
        self.classes = 2
        self.held_out_from = f"the pictures of {self.held:,} users who do not train"
        self._seed = derive(seed, "faces")

    def count(self, client: int) -> int:
        """The number of pictures of a user."""
        return _size(self._seed, client)

    def samples(self, client: int) -> tuple[Vector, Labels]:
        """The pictures and labels of a user."""
        rng, count = generator(self._seed, "user", client), self.count(client)
        u, labels = rng.random(kernels.STYLES + kernels.POSES * count), np.empty(count, np.int64)
        out = np.empty((count, 3, SIDE, SIDE), np.float32)
        kernels.faces(u, *keys(derive(self._seed, "grain", client)), labels, out)
        return out, labels

    def held_out(self, max_samples: int) -> tuple[Vector, Labels]:
        """At most ``max_samples`` pictures of held-out users, and their labels."""
        parts, count = [], 0
        for user in range(self.clients, self.clients + self.held):
            parts.append(self.samples(user))
            count += len(parts[-1][1])
            if count >= max_samples:
                break
        x, labels = (np.concatenate(column)[:max_samples] for column in zip(*parts, strict=True))
        return x, labels


@functools.lru_cache(1 << 16)
def _size(seed: int, user: int) -> int:
    return int(celeba_sizes(np.array([derive(seed, "size", user) / 2.0**64]))[0])
