"""Samples in arrays, and the partitions that assign them to clients.

Partitions by name:

    natural       one client per user of the data; iid if the data has no users
    iid           shuffled, equal shares
    consecutive   equal shares in the order of the data
    dirichlet:a   each class is divided in proportions drawn from a Dirichlet(a) distribution
    shards:s      sorted by label and cut into shards; each client gets s shards
    celeba        shuffled, with CelebA's shares of 5 to 35 samples
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qafel.coding.lazy import Lazy
from qafel.errors import ConfigError
from qafel.streams import generator
from qafel.vectors import Vector

Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
PARTITIONS = ("natural", "iid", "consecutive", "dirichlet:a", "shards:s", "celeba")
DEFAULT_SHARE = 20
"""The number of samples per client if neither the data nor the settings have a number of clients."""
MAX_CLASSES = 1_000_000

kernels = Lazy("qafel.tasks.data.kernels")


class Population(Protocol):
    """Clients and their samples: ``x`` is float32, one row per sample; labels are from 0 to classes − 1."""

    clients: int
    shape: tuple[int, ...]
    classes: int

    def count(self, client: int) -> int:
        """The number of samples of a client."""

    def samples(self, client: int) -> tuple[Vector, Labels]:
        """(x, labels) of a client."""

    def held_out(self, max_samples: int) -> tuple[Vector, Labels]:
        """(x, labels) of at most ``max_samples`` samples that no client trains on."""


class Table:
    """Labelled samples; ConfigError if the arrays do not fit together or have impossible values.

    uint8 arrays of shape [n, height, width(, colours)] are images, whose pixels are normalised. Other numbers
    are used unchanged.
    """

    def __init__(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        users: npt.NDArray[Any] | None = None,
        held: npt.NDArray[np.bool_] | None = None,
        source: str = "the data",
    ) -> None:
        if x.ndim < 1 or y.ndim != 1:
            raise ConfigError(
                f"{source} must have a row of x and a label in y per sample, got {x.shape} and {y.shape}"
            )
        if len(x) != len(y) or not len(x):
            raise ConfigError(
                f"{source} must have one label per sample, got {len(x)} samples and {len(y)} labels"
            )
        if x.ndim < 2:
            raise ConfigError(f"{source} must have a row of x per sample, got an array of shape {x.shape}")
        if x.dtype.kind not in "buif":
            raise ConfigError(f"the samples of {source} must be numbers, got {x.dtype}")
        for name, column in (("users", users), ("held", held)):
            if column is not None and column.shape != y.shape:
                raise ConfigError(
                    f"{name} of {source} must have one entry per sample ({len(y)}), got {column.shape}"
                )
        if x.dtype == np.uint8 and x.ndim > 4:
            raise ConfigError(
                f"the images of {source} must have 2 dimensions, or 3 with colours, got {x.ndim - 1}"
            )
        if x.dtype.kind == "f":
            for k in range(0, len(x), 4096):
                bad = np.flatnonzero(~np.isfinite(x[k : k + 4096]).all(tuple(range(1, x.ndim))))
                if bad.size:
                    raise ConfigError(f"sample {k + bad[0]} of {source} has a number that is not finite")
        self.x, self.users, self.held, self.source = np.require(x, requirements="C"), users, held, source
        self.y = check_labels(y, source)
        self.classes = max(2, int(self.y.max()) + 1)
        self.images = x.dtype == np.uint8 and x.ndim >= 3
        self.shape: tuple[int, ...] = self.rows(np.arange(1)).shape[1:]

    def rows(self, chosen: Rows) -> Vector:
        """Samples as float32; pixels are mapped to numbers from −1 to 1, with the colours in front."""
        if not self.images:
            return np.ascontiguousarray(self.x[chosen], np.float32)
        count, height, width, *colours = self.x.shape
        channels = colours[0] if colours else 1
        out = np.empty((len(chosen), channels * height * width), np.float32)
        kernels.normalise(self.x.reshape(count, height * width, channels), chosen, out)
        return out.reshape(-1, channels, height, width)


def check_labels(y: npt.NDArray[Any], source: str, classes: int = MAX_CLASSES) -> Labels:
    """The labels as int64; ConfigError if one is not an integer from 0 to classes − 1."""
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "buif":
        raise ConfigError(
            f"the labels of {source} must be one number per sample, got {y.dtype} of shape {y.shape}"
        )
    bad = np.flatnonzero(~((y >= 0) & (y < classes) & (y == np.floor(y))))
    if bad.size:
        raise ConfigError(
            f"label {y[bad[0]]} of sample {bad[0]} in {source} is out of range; labels must be integers "
            f"from 0 to {classes - 1}"
        )
    return y.astype(np.int64)


class PartitionedTable:
    """A table whose samples are divided among clients; some samples are held out."""

    def __init__(self, table: Table, partition: str, clients: int | None, held_out: float, seed: int) -> None:
        self.table, self.shape, self.classes = table, table.shape, table.classes
        natural = partition == "natural" and table.users is not None
        held = table.held if table.held is not None else _hold_out(table, natural, held_out, seed)
        self._held = np.flatnonzero(held)
        rows = np.flatnonzero(~held)
        if not len(rows) or not len(self._held):
            raise ConfigError(
                f"{table.source} must have samples to train on and samples to hold out, got {len(rows)} and "
                f"{len(self._held)}; change held_out"
            )
        kind = "iid" if partition == "natural" and not natural else partition
        parts = _partition(kind, table, rows, clients, seed)
        self._order = np.concatenate(parts)
        self._bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.clients = len(parts)
        empty = np.flatnonzero(np.diff(self._bounds) == 0)
        if empty.size:
            raise ConfigError(
                f"client {empty[0]} has no samples under the partition {partition} "
                f"({empty.size} of {self.clients} clients have none); use fewer clients or a more even "
                "partition"
            )

    def count(self, client: int) -> int:
        """The number of samples of a client."""
        return int(self._bounds[client + 1] - self._bounds[client])

    def samples(self, client: int) -> tuple[Vector, Labels]:
        """(x, labels) of a client."""
        rows = self._order[self._bounds[client] : self._bounds[client + 1]]
        return self.table.rows(rows), self.table.y[rows]

    def held_out(self, max_samples: int) -> tuple[Vector, Labels]:
        """(x, labels) of at most ``max_samples`` held-out samples, at even distances."""
        rows = self._held
        if len(rows) > max_samples:
            rows = rows[np.linspace(0, len(rows) - 1, max_samples).astype(np.int64)]
        return self.table.rows(rows), self.table.y[rows]


def _hold_out(table: Table, natural: bool, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """A mask of the samples to hold out: whole users in the natural partition, else single samples."""
    owners = table.users if natural and table.users is not None else np.arange(len(table.y))
    units = np.unique(owners)
    order = generator(seed, "held out").permutation(len(units))
    return np.isin(owners, units[order[: round(fraction * len(units))]])


def _partition(partition: str, table: Table, rows: Rows, clients: int | None, seed: int) -> list[Rows]:
    """The rows of each client."""
    kind, _, argument = partition.partition(":")
    rng, labels = generator(seed, "partition"), table.y[rows]
    if kind == "natural" and not argument and table.users is not None:
        by_user = rows[np.argsort(table.users[rows], kind="stable")]
        parts = np.split(by_user, np.flatnonzero(np.diff(table.users[by_user])) + 1)
        if clients is not None and clients > len(parts):
            raise ConfigError(
                f"clients must be at most {len(parts)}, the number of users of {table.source}, got {clients}"
            )
        return parts[:clients]
    if kind == "celeba" and not argument:
        sizes = celeba_sizes(rng.random(len(rows) // 5 + 1))
        ends = np.cumsum(sizes)
        count = int(np.searchsorted(ends, len(rows), "right"))
        if clients is not None and clients > count:
            raise ConfigError(
                f"{table.source} has samples for at most {count} clients of CelebA's sizes, got {clients}"
            )
        return np.split(rng.permutation(rows)[: ends[count - 1]], ends[: count - 1])[:clients]
    count = max(1, len(rows) // DEFAULT_SHARE) if clients is None else clients
    if count > len(rows):
        raise ConfigError(
            f"{count} clients cannot share {len(rows)} samples, because each needs one; use fewer clients"
        )
    if kind == "iid" and not argument:
        return np.array_split(rng.permutation(rows), count)
    if kind == "consecutive" and not argument:
        return np.array_split(rows, count)
    if kind == "dirichlet" and (alpha := _positive(argument)):
        return _dirichlet(rows, labels, count, alpha, rng)
    if kind == "shards" and argument.isdigit() and int(argument):
        per_client = int(argument)
        shards = np.array_split(rows[np.argsort(labels, kind="stable")], count * per_client)
        order = rng.permutation(len(shards)).reshape(count, per_client)
        return [np.concatenate([shards[k] for k in numbers]) for numbers in order]
    raise ConfigError(f"unknown partition {partition!r}; known are {', '.join(PARTITIONS)}")


def _dirichlet(rows: Rows, labels: Labels, count: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(count)]
    for label in np.unique(labels):
        members = rng.permutation(rows[labels == label])
        cuts = np.cumsum(rng.dirichlet(np.full(count, alpha)))[:-1] * len(members)
        for part, share in zip(parts, np.split(members, np.round(cuts).astype(np.int64)), strict=True):
            part.append(share)
    return [np.concatenate(part) for part in parts]


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < np.inf else None


def celeba_sizes(uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Numbers of samples from 5 to 35 with CelebA's mean of 21.4, from uniform numbers in [0, 1)."""
    return (5 + np.floor(31 * uniform**0.8)).astype(np.int64)
