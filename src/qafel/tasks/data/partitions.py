"""Partitions: which client trains on which samples.

natural       one client per user of the data; iid if the data has no users
iid           shuffled, equal shares
consecutive   equal shares in the order of the data
dirichlet:a   each class is divided in proportions drawn from a Dirichlet(a) distribution
shards:s      sorted by label and cut into shards; each client gets s shards
celeba        shuffled, with CelebA's shares of 5 to 35 samples
skewed:a      clients of 5 to 35 samples, each with shares of the classes from a Dirichlet(a) distribution
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.streams import generator
from qafel.tasks.data import arrays
from qafel.tasks.data.table import Labels, Rows, Table

PARTITIONS = ("natural", "iid", "consecutive", "dirichlet:a", "shards:s", "celeba", "skewed:a")
DEFAULT_SHARE = 20
"""The number of samples per client if neither the data nor the settings have a number of clients."""
DRAWN = ("celeba", "skewed")
"""The partitions that draw the size of each client: the seed decides how many clients there are."""
SIZES = (5, 35)
"""The smallest and the largest number of samples of a client in ``celeba`` and ``skewed``."""


class PartitionedTable:
    """A table whose samples are divided among clients; some samples are held out, or ``test`` is."""

    def __init__(
        self,
        table: Table,
        partition: str,
        clients: int | None,
        held_out: float,
        seed: int,
        test: Table | None = None,
    ) -> None:
        self.table, self.shape, self.classes = table, table.shape, table.classes
        self.vocabulary, self.target_shape = table.vocabulary, arrays.shapes(table.y)
        natural = partition == "natural" and table.users is not None
        if test is not None:
            self._check_test(test)
            held = np.zeros(len(table), bool)
            self._test, self._held, what = test, np.arange(len(test)), "the samples of test"
        else:
            held, what = _held_mask(table, natural, held_out, seed)
            self._test, self._held = table, np.flatnonzero(held)
        self.held_out_from = f"{len(self._held):,} samples: {what}"
        """Which samples are held out."""
        rows = np.flatnonzero(~held)
        if not len(rows) or (held_out and not len(self._held)):
            raise ConfigError(
                f"{table.source} must have samples to train on and samples to hold out, got {len(rows)} and "
                f"{len(self._held)}; change held_out"
            )
        kind = "iid" if partition == "natural" and not natural else partition
        parts = _partition(kind, table, rows, clients, seed)
        self._order = np.concatenate(parts)
        self._bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        self.clients = len(parts)
        self.drawn = kind.partition(":")[0] in DRAWN
        """Whether the seed decides how many clients there are."""
        empty = np.flatnonzero(np.diff(self._bounds) == 0)
        if empty.size:
            raise ConfigError(
                f"client {empty[0]} has no samples under the partition {partition} "
                f"({empty.size} of {self.clients} clients have none); use fewer clients or a more even "
                "partition"
            )

    def _check_test(self, test: Table) -> None:
        """Refuse a test set of another kind than the samples that are trained on."""
        for what, mine, other in (
            ("inputs", self.shape, test.shape),
            ("targets", self.target_shape, arrays.shapes(test.y)),
        ):
            if mine != other:
                raise ConfigError(f"the {what} of test have the shape {other}, those of the data {mine}")
        if bool(test.classes) != bool(self.classes):
            kinds = ("real numbers", "labels (integers)")
            raise ConfigError(
                f"the targets of test are {kinds[bool(test.classes)]}, those of the data "
                f"{kinds[bool(self.classes)]}; give both the same type"
            )
        self.classes = max(self.classes, test.classes)
        self.vocabulary = max(self.vocabulary, test.vocabulary)

    def count(self, client: int) -> int:
        """The number of samples of a client."""
        return int(self._bounds[client + 1] - self._bounds[client])

    def samples(self, client: int) -> tuple[Any, Any]:
        """(inputs, targets) of a client."""
        rows = self._order[self._bounds[client] : self._bounds[client + 1]]
        return self.table.rows(rows), self.table.targets(rows)

    def held_out(self, max_samples: int) -> tuple[Any, Any]:
        """(inputs, targets) of at most ``max_samples`` held-out samples, at even distances."""
        rows = self._held
        if len(rows) > max_samples:
            rows = rows[np.linspace(0, len(rows) - 1, max_samples).astype(np.int64)]
        return self._test.rows(rows), self._test.targets(rows)


def _held_mask(table: Table, natural: bool, fraction: float, seed: int) -> tuple[npt.NDArray[np.bool_], str]:
    """A mask of the samples to hold out, and which they are: whole users in the natural partition, else
    single samples.
    """
    if table.held is not None:
        return table.held, f"those that {table.source} holds out"
    owners = table.users if natural and table.users is not None else np.arange(len(table))
    units = np.unique(owners)
    order = generator(seed, "held out").permutation(len(units))
    chosen = units[order[: round(fraction * len(units))]]
    what = (
        f"those of {len(chosen):,} of {len(units):,} users" if natural else f"{fraction:.0%} of all samples"
    )
    return np.isin(owners, chosen), what


def held_within(users: npt.NDArray[Any], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """A mask that holds out a share of the samples of every user; of a user with one sample, none."""
    held = np.zeros(len(users), bool)
    ends = np.flatnonzero(np.diff(users)) + 1  # the samples of a user stand together
    for mine in np.split(np.arange(len(users)), ends):
        user = users[mine[0]]
        order = generator(seed, "held out", int(user)).permutation(len(mine))
        held[mine[order[: min(len(mine) - 1, round(fraction * len(mine)))]]] = True
    return held


def _partition(partition: str, table: Table, rows: Rows, clients: int | None, seed: int) -> list[Rows]:
    """The rows of each client."""
    kind, _, argument = partition.partition(":")
    rng = generator(seed, "partition")
    if kind == "natural" and not argument and table.users is not None:
        by_user = rows[np.argsort(table.users[rows], kind="stable")]
        parts = np.split(by_user, np.flatnonzero(np.diff(table.users[by_user])) + 1)
        if clients is not None and clients > len(parts):
            raise ConfigError(
                f"clients must be at most {len(parts)}, the number of users of {table.source}, got {clients}"
            )
        return parts[:clients]
    if kind == "celeba" and not argument:
        sizes = _fitting(celeba_sizes(rng.random(len(rows) // SIZES[0] + 1)), len(rows), clients, table)
        return np.split(rng.permutation(rows)[: sizes.sum()], np.cumsum(sizes)[:-1])
    if kind == "skewed" and (alpha := _positive(argument)):
        drawn = rng.integers(SIZES[0], SIZES[1] + 1, len(rows) // SIZES[0] + 1)
        sizes = _fitting(drawn, len(rows), clients, table)
        return _skewed(rows, _labels(table, rows, kind), sizes, alpha, rng)
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
        return _dirichlet(rows, _labels(table, rows, kind), count, alpha, rng)
    if kind == "shards" and argument.isdigit() and int(argument):
        per_client, labels = int(argument), _labels(table, rows, kind)
        shards = np.array_split(rows[np.argsort(labels, kind="stable")], count * per_client)
        order = rng.permutation(len(shards)).reshape(count, per_client)
        return [np.concatenate([shards[k] for k in numbers]) for numbers in order]
    raise ConfigError(f"unknown partition {partition!r}; known are {', '.join(PARTITIONS)}")


def _labels(table: Table, rows: Rows, partition: str) -> Labels:
    if not table.classes or isinstance(table.y, dict) or table.y.ndim > 1:
        raise ConfigError(f"the partition {partition} needs one label per sample; use iid or consecutive")
    labels: Labels = table.y[rows]
    return labels


def _dirichlet(rows: Rows, labels: Labels, count: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(count)]
    for label in np.unique(labels):
        members = rng.permutation(rows[labels == label])
        cuts = np.cumsum(rng.dirichlet(np.full(count, alpha)))[:-1] * len(members)
        for part, share in zip(parts, np.split(members, np.round(cuts).astype(np.int64)), strict=True):
            part.append(share)
    return [np.concatenate(part) for part in parts]


def _skewed(
    rows: Rows, labels: Labels, sizes: npt.NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> list[Rows]:
    """Clients of these sizes, each with its own shares of the classes.

    The shares are drawn from a Dirichlet distribution around those of the samples that are left, with alpha
    for a class of average share. Where a class has run out, the other classes fill its place.
    """
    pools = [list(rng.permutation(rows[labels == label])) for label in np.unique(labels)]
    parts = []
    for size in sizes:
        left = np.array([len(pool) for pool in pools])
        weights = np.maximum(alpha * len(pools) * left / left.sum(), 1e-9)
        counts = np.minimum(rng.multinomial(size, rng.dirichlet(weights)), left)
        counts += rng.multivariate_hypergeometric(left - counts, size - counts.sum())
        taken = [[pool.pop() for _ in range(count)] for pool, count in zip(pools, counts, strict=True)]
        parts.append(np.concatenate([np.array(some, np.int64) for some in taken]))
    return parts


def _fitting(
    sizes: npt.NDArray[np.int64], samples: int, clients: int | None, table: Table
) -> npt.NDArray[np.int64]:
    """The first of these sizes that the samples suffice for, at most ``clients`` of them."""
    count = int(np.searchsorted(np.cumsum(sizes), samples, "right"))
    if not count or (clients is not None and clients > count):
        wanted = "one" if clients is None else clients
        raise ConfigError(
            f"{table.source} has samples for at most {count} clients with {SIZES[0]} to {SIZES[1]} each, "
            f"but {wanted} should share them; use fewer clients or another partition"
        )
    return sizes[:clients] if clients is not None else sizes[:count]


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < np.inf else None


def celeba_sizes(uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Numbers of samples within SIZES with CelebA's mean of 21.4, from uniform numbers in [0, 1)."""
    low, high = SIZES
    return (low + np.floor((high - low + 1) * uniform**0.8)).astype(np.int64)
