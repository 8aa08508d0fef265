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
from qafel.tasks.data import arrays
from qafel.tasks.data.arrays import Arrays

Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
PARTITIONS = ("natural", "iid", "consecutive", "dirichlet:a", "shards:s", "celeba")
DEFAULT_SHARE = 20
"""The number of samples per client if neither the data nor the settings have a number of clients."""
MAX_CLASSES = 1_000_000

kernels = Lazy("qafel.tasks.data.kernels")


class Population(Protocol):
    """Clients and their samples: inputs and targets, one row per sample (see ``arrays``).

    ``classes`` is 0 if the targets are not labels; labels are integers from 0 to classes − 1.
    """

    clients: int
    shape: Any
    classes: int

    def count(self, client: int) -> int:
        """The number of samples of a client."""

    def samples(self, client: int) -> tuple[Any, Any]:
        """(inputs, targets) of a client."""

    def held_out(self, max_samples: int) -> tuple[Any, Any]:
        """(inputs, targets) of at most ``max_samples`` samples that no client trains on."""


class Table:
    """Samples with targets; ConfigError if the arrays do not fit together or have impossible values.

    uint8 arrays of shape [n, height, width(, colours)] are images, whose pixels are normalised. Integers stay
    integers, and other numbers are float32. Targets that are integers are labels; with ``whole_numbers``,
    so is one whole number per sample of any type.
    """

    def __init__(
        self,
        x: Arrays,
        y: Arrays,
        users: npt.NDArray[Any] | None = None,
        held: npt.NDArray[np.bool_] | None = None,
        source: str = "the data",
        *,
        classes: int | None = None,
        vocabulary: int | None = None,
        whole_numbers: bool = True,
    ) -> None:
        arrays.check(x, f"the samples of {source}")
        arrays.check(y, f"the targets of {source}")
        if arrays.count(x) != arrays.count(y) or not arrays.count(x):
            raise ConfigError(
                f"{source} must have one target per sample, got {arrays.count(x)} samples and "
                f"{arrays.count(y)} targets"
            )
        if whole_numbers and not isinstance(x, dict) and x.ndim < 2:
            raise ConfigError(f"{source} must have a row of x per sample, got an array of shape {x.shape}")
        for name, column in (("users", users), ("held", held)):
            if column is not None and column.shape != (arrays.count(y),):
                raise ConfigError(
                    f"{name} of {source} must have one entry per sample ({arrays.count(y)}), got "
                    f"{column.shape}"
                )
        if any(part.dtype == np.uint8 and part.ndim > 4 for part in arrays.leaves(x)):
            raise ConfigError(f"the images of {source} must have 2 dimensions, or 3 with colours")
        self.x: Any = arrays.each(lambda part: np.require(_colours_last(part), requirements="C"), x)
        self.users, self.held, self.source = users, held, source
        self.y: Any = arrays.each(arrays.numbers, y)
        self.classes = 0
        if not isinstance(y, dict) and _are_labels(y, whole_numbers):
            self.y = check_labels(y, source, classes or MAX_CLASSES)
            self.classes = classes or max(2, int(self.y.max()) + 1)
        self.vocabulary = vocabulary or _vocabulary(x)
        """One more than the largest integer in the inputs; 0 if they are not integers."""
        self.shape: Any = arrays.shapes(self.rows(np.arange(1)))

    def __len__(self) -> int:
        return arrays.count(self.y)

    def rows(self, chosen: Rows) -> Any:
        """Inputs; pixels are mapped to numbers from −1 to 1, with the colours in front."""
        return arrays.each(lambda part: _rows(part, chosen), self.x)

    def targets(self, chosen: Rows) -> Any:
        """Targets."""
        return arrays.rows(self.y, chosen)


def _colours_last(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Images with the colours in front, as PyTorch has them, in the order of image files."""
    front = _is_images(x) and x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    return np.moveaxis(x, 1, -1) if front else x


def _is_images(x: npt.NDArray[Any]) -> bool:
    return x.dtype == np.uint8 and x.ndim >= 3


def _vocabulary(x: Arrays) -> int:
    integers = not isinstance(x, dict) and x.dtype.kind in "iu" and not _is_images(x)
    return int(x.max()) + 1 if integers else 0  # type: ignore[union-attr]


def _rows(x: npt.NDArray[Any], chosen: Rows) -> npt.NDArray[Any]:
    if not _is_images(x):
        return arrays.numbers(x[chosen])
    total, height, width, *colours = x.shape
    channels = colours[0] if colours else 1
    out = np.empty((len(chosen), channels * height * width), np.float32)
    kernels.normalise(x.reshape(total, height * width, channels), chosen, out)
    return out.reshape(-1, channels, height, width)


def _are_labels(y: npt.NDArray[Any], whole_numbers: bool) -> bool:
    if y.dtype.kind in "iu":
        return True
    return whole_numbers and y.ndim == 1 and bool((y == np.floor(y)).all())


def check_labels(y: npt.NDArray[Any], source: str, classes: int = MAX_CLASSES) -> Labels:
    """The labels as int64; ConfigError if one is not an integer from 0 to classes − 1."""
    bad = np.argwhere(~((y >= 0) & (y < classes) & (y == np.floor(y))))
    if bad.size:
        raise ConfigError(
            f"label {y[tuple(bad[0])]} of sample {bad[0][0]} in {source} is out of range; labels must be "
            f"integers from 0 to {classes - 1}"
        )
    return y.astype(np.int64)


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
        self.names: list[str] | None = None
        """The names of the clients, where the data has them."""
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


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < np.inf else None


def celeba_sizes(uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Numbers of samples from 5 to 35 with CelebA's mean of 21.4, from uniform numbers in [0, 1)."""
    return (5 + np.floor(31 * uniform**0.8)).astype(np.int64)
