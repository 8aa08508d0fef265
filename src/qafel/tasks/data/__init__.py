"""Data: generated, from scikit-learn, from files, or your own.

faces            generated (see ``faces``); the default
digits           scikit-learn's 8×8 digits
breast-cancer    scikit-learn's breast-cancer measurements
PATH             .npz · LIBSVM text (.gz) · LEAF's .json · a play, as text · a folder: IDX,
                 CIFAR-10 (binary), LEAF, raw CelebA, or images in folders named by class
module:factory   a function that returns a Population or any of these:

{name: samples}  the samples of every client by name, or a list of them; samples are a pair (inputs, targets)
                 or a torch Dataset
(x, y)           samples to be divided among clients; (x, y, users) has a client for every user
Dataset          a torch Dataset, to be divided among clients
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qafel.errors import ConfigError, MissingExtraError
from qafel.tasks.data import arrays, cache, files, images, text
from qafel.tasks.data.faces import Faces
from qafel.tasks.data.partitions import PartitionedTable, held_within
from qafel.tasks.data.table import Population, Table
from qafel.tasks.settings import MAX_CLIENTS

BUNDLED = ("digits", "breast-cancer")
"""The tables of scikit-learn."""
BUILT_IN = ("faces", *BUNDLED)
REQUIRED = ("clients", "shape", "classes", "count", "samples", "held_out")
"""What a Population of your own must have."""


def population(
    source: Any,
    *,
    test: Any = None,
    partition: str = "natural",
    clients: int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Population:
    """The clients of a data set and their samples, and the samples that are held out for evaluation.

    A share of 0 holds out nothing but what the data itself does.
    """
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out must be between 0 and 1, got {held_out}")
    if clients is not None and clients < 1:
        raise ConfigError(f"clients must be at least 1, got {clients}")
    if isinstance(source, str) and source == "faces":
        if partition != "natural":
            raise ConfigError(f"the data faces has users, so its partition is natural, got {partition}")
        return Faces(clients, held_out, seed)
    if source is None and test is not None:
        return OnlyTest(_test_table(test), clients)
    name = source if isinstance(source, str) else "the data"
    if isinstance(source, str) and not _is_factory(source):
        data: Any = load(source)
    else:
        data = _call(source) if callable(source) or isinstance(source, str) else source
    if all(hasattr(data, attribute) for attribute in REQUIRED):
        return data  # type: ignore[no-any-return]
    held = None if test is None else _test_table(test)
    if isinstance(data, Mapping | list):
        return _per_client(data, partition, clients, held_out, seed, held)
    made = callable(source) or isinstance(source, str)
    table = data if isinstance(data, Table) else _table(data, name, whole_numbers=made)
    return PartitionedTable(table, partition, clients, held_out, seed, held)


def _is_factory(source: str) -> bool:
    return ":" in source and not Path(source).exists()


def _call(source: Any) -> Any:
    from qafel.tasks.functions import call_factory, import_function

    return call_factory(import_function(source, "data"), "data")


def _table(data: Any, name: str, *, whole_numbers: bool) -> Table:
    """A table of (x, y), (x, y, users) or a Dataset."""
    users = None
    if isinstance(data, tuple) and len(data) == 3 and not arrays.is_dataset(data[0]):
        users = np.unique(np.asarray(data[2]), return_inverse=True)[1]
        data = data[:2]
    if not isinstance(data, tuple) and not arrays.is_dataset(data):
        raise ConfigError(
            f"{name} must be {{client: samples}}, a list of samples, (x, y), (x, y, users), a Dataset or a "
            f"Population, got {type(data).__name__}"
        )
    x, y = arrays.pair(data, name)
    return Table(x, y, users, source=name, whole_numbers=whole_numbers)


class OnlyTest:
    """The server's view of a federation whose clients bring their own samples: it has a test set only."""

    def __init__(self, table: Table, clients: int | None) -> None:
        self._table = PartitionedTable(table, "consecutive", 1, 0.0, 0, table)
        self.clients = clients or MAX_CLIENTS
        self.shape, self.classes, self.vocabulary = table.shape, table.classes, table.vocabulary
        self.held_out, self.held_out_from = self._table.held_out, self._table.held_out_from

    def count(self, client: int) -> int:
        """No samples to train on."""
        del client
        return 0

    def samples(self, client: int) -> tuple[Any, Any]:
        """The samples that the model is tried on before the training starts."""
        del client
        return self._table.held_out(32)


def _test_table(test: Any) -> Table:
    return Table(*arrays.pair(test, "test"), source="test", whole_numbers=False)


def _per_client(
    data: Any, partition: str, clients: int | None, held_out: float, seed: int, test: Table | None
) -> Population:
    """A client for each entry; a share of the samples of each client is held out, unless there is a test."""
    if partition != "natural":
        raise ConfigError(f"the data is given by client, so its partition is natural, got {partition}")
    named = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    if not named:
        raise ConfigError("the data has no clients")
    parts = {}
    for client, samples in named.items():
        try:
            parts[client] = arrays.pair(samples, f"client {client!r}")
            empty = not arrays.count(parts[client][1])
        except (IndexError, ConfigError) as error:
            empty = arrays.is_dataset(samples) and not len(samples)
            if not empty:
                raise ConfigError(str(error)) from error
        if empty:
            raise ConfigError(f"client {client!r} has no samples; leave it out")
    first, firsts = next(iter(parts.items()))
    for client, columns in parts.items():
        for one, other in zip(firsts, columns, strict=True):
            if arrays.shapes(one) != arrays.shapes(other):
                raise ConfigError(
                    f"the samples of client {client!r} have the shape {arrays.shapes(other)}, those of "
                    f"client {first!r} {arrays.shapes(one)}; all clients must have the same"
                )
    x, y = (arrays.concatenate(column) for column in zip(*parts.values(), strict=True))
    users = np.repeat(np.arange(len(parts)), [arrays.count(part[1]) for part in parts.values()])
    held = held_within(users, held_out, seed) if test is None and held_out else None
    if held is not None and not held.any():
        raise ConfigError(
            f"no client has enough samples to hold out {held_out:.0%} of them; pass test=(x, y), or raise "
            "held_out"
        )
    table = Table(x, y, users, held, whole_numbers=False)
    dealt = PartitionedTable(table, partition, clients, held_out, seed, test)
    if held is not None:
        share = f"{held_out:.0%} of each client's"
        dealt.held_out_from = f"{int(held.sum()):,} samples: {share}"
    return dealt


def load(name: str) -> Table:
    """A data set of scikit-learn or a file, as a table."""
    if name in BUNDLED:
        return _bundled(name)
    if name in BUILT_IN:
        raise ConfigError("faces are images that are generated, not a table; use digits or breast-cancer")
    path = Path(name).expanduser()
    if not path.exists():
        raise ConfigError(
            f"unknown data {name!r}; use faces, digits, breast-cancer, module:factory, or the path of a "
            "file or folder"
        )
    return cache.cached(path, lambda: _reader(path)(path))


def _reader(path: Path) -> Callable[[Path], Table]:
    """The function that reads this file or folder."""
    if path.is_file():
        suffixes = {".npz": files.npz, ".json": images.leaf}
        others = text.plays if text.is_play(path) else files.libsvm
        return suffixes.get(path.suffix.lower(), others)
    if (path / images.IDENTITIES).exists():
        return images.celeba
    if any(path.glob("*.json")) or any(path.glob("train/*.json")):
        return images.leaf
    if any(path.glob("*ubyte*")):
        return files.idx
    if any(path.glob("data_batch_*.bin")):
        return files.cifar
    return images.class_folders


def _bundled(name: str) -> Table:
    """The tables of scikit-learn, read without importing it, which takes longer than a short run."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtraError(f"the data {name}", "data")
    folder = Path(package.origin).parent / "datasets" / "data"
    if name == "digits":
        rows = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
        x = rows[:, :-1].reshape(-1, 1, 8, 8) / 16
    else:
        rows = np.loadtxt(folder / "breast_cancer.csv", delimiter=",", skiprows=1)
        x = np.ascontiguousarray(rows[:, :-1])
        x = (x - x.mean(0)) / x.std(0)
    return Table(x.astype(np.float32), rows[:, -1].astype(np.int64), source=name)
