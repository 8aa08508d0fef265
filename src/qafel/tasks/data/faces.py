"""``faces``: a data set shaped like CelebA that is drawn, not downloaded.

Every user has a style (head, hair, colours, a resting mouth, a share of smiles) and 5 to 35 pictures in
different poses, light and noise; the label says whether the face smiles. A user's pictures are drawn when
they are asked for, from the seed and the user's number, so a million users cost nothing.
"""

import functools

import numpy as np

from qafel.errors import ConfigError
from qafel.streams import derive, generator, keys
from qafel.tasks.data.table import Labels, celeba_sizes
from qafel.vectors import Vector

USERS = 9_343
"""Users of CelebA with at least five images: the default, 80 % to train on and 20 % held out."""
SIDE = 32


class Faces:
    """Users who are drawn on demand; the held-out ones are numbered after those who train."""

    def __init__(self, clients: int | None = None, held_out: float = 0.2, seed: int = 0) -> None:
        self.clients = USERS - round(held_out * USERS) if clients is None else clients
        self.held = max(1, round(self.clients * held_out / (1 - held_out)))
        if self.clients + self.held >= 1 << 40:
            raise ConfigError(f"{self.clients} clients are too many to number")
        self.shape: tuple[int, ...] = (3, SIDE, SIDE)
        self.classes = 2
        self._seed = derive(seed, "faces")

    def count(self, client: int) -> int:
        """How many pictures a user has."""
        return _size(self._seed, client)

    def samples(self, client: int) -> tuple[Vector, Labels]:
        """Pictures and smiles of a user."""
        from qafel.tasks.data import kernels

        rng, count = generator(self._seed, "user", client), self.count(client)
        u, labels = rng.random(kernels.STYLES + kernels.POSES * count), np.empty(count, np.int64)
        out = np.empty((count, 3, SIDE, SIDE), np.float32)
        kernels.faces(u, *keys(derive(self._seed, "grain", client)), labels, out)
        return out, labels

    def held_out(self, most: int) -> tuple[Vector, Labels]:
        """Pictures of users who do not train."""
        parts, found = [], 0
        for user in range(self.clients, self.clients + self.held):
            parts.append(self.samples(user))
            found += len(parts[-1][1])
            if found >= most:
                break
        return np.concatenate([x for x, _ in parts])[:most], np.concatenate([y for _, y in parts])[:most]


@functools.lru_cache(1 << 16)
def _size(seed: int, user: int) -> int:
    return int(celeba_sizes(np.array([derive(seed, "size", user) / 2.0**64]))[0])
