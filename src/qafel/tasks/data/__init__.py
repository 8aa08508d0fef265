"""Data by name: generated, from scikit-learn, from files, or from a function of yours.

faces            generated (see ``faces``); the default
digits           scikit-learn's 8×8 digits
breast-cancer    scikit-learn's breast-cancer measurements
PATH             .npz · LIBSVM text (.gz) · LEAF's .json · a folder: IDX, CIFAR-10 (binary), LEAF, raw CelebA,
                 or images in folders named by class
module:factory   a function that returns a Population, a Table, or (x, labels) or (x, labels, users)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qafel.errors import ConfigError, MissingExtraError
from qafel.tasks.data import cache, files, images
from qafel.tasks.data.faces import Faces
from qafel.tasks.data.table import PartitionedTable, Population, Table

Source = str | Callable[..., Any]


def population(
    source: Source,
    *,
    partition: str = "natural",
    clients: int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Population:
    """The clients of a data set and their samples, and the samples that are held out for evaluation."""
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out must be between 0 and 1, got {held_out}")
    if clients is not None and clients < 1:
        raise ConfigError(f"clients must be at least 1, got {clients}")
    if source == "faces":
        if partition != "natural":
            raise ConfigError(f"the data faces has users, so its partition is natural, got {partition}")
        return Faces(clients, held_out, seed)
    data = _from_factory(source) if callable(source) or _is_factory(source) else load(source)
    if isinstance(data, Table):
        return PartitionedTable(data, partition, clients, held_out, seed)
    return data


def _is_factory(source: str) -> bool:
    return ":" in source and not Path(source).exists()


def _from_factory(source: Source) -> Table | Population:
    from qafel.tasks.models import call_factory, import_factory

    name = source if isinstance(source, str) else "the data factory"
    factory = import_factory(source, "data") if isinstance(source, str) else source
    data = call_factory(factory, "data")
    required = ("clients", "shape", "classes", "count", "samples", "held_out")
    if isinstance(data, Table) or all(hasattr(data, attribute) for attribute in required):
        return data  # type: ignore[no-any-return]
    if isinstance(data, tuple) and len(data) in (2, 3):
        users = np.unique(data[2], return_inverse=True)[1] if len(data) == 3 else None
        return Table(np.asarray(data[0]), np.asarray(data[1]), users, source=name)
    raise ConfigError(
        f"{name} must return (x, labels), (x, labels, users) or a Population, got {type(data).__name__}"
    )


def load(name: str) -> Table:
    """A data set of scikit-learn or a file, as a table."""
    if name in ("digits", "breast-cancer"):
        return _bundled(name)
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
        return suffixes.get(path.suffix.lower(), files.libsvm)
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
    try:
        from sklearn.datasets import load_breast_cancer, load_digits
    except ImportError as error:
        raise MissingExtraError(f"the data {name}", "data") from error
    if name == "digits":
        digits = load_digits()
        return Table((digits.images[:, None] / 16).astype(np.float32), digits.target, source=name)
    cancer = load_breast_cancer()
    x = (cancer.data - cancer.data.mean(0)) / cancer.data.std(0)
    return Table(x.astype(np.float32), cancer.target, source=name)
