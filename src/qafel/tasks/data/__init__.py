"""Data by name: generated, bundled with scikit-learn, from files, or your own.

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
from qafel.tasks.data.table import Dealt, Population, Table

Source = str | Callable[..., Any]


def population(
    source: Source,
    *,
    partition: str = "natural",
    clients: int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Population:
    """The clients of a data set, and what is held out."""
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out must be between 0 and 1, not {held_out}")
    if clients is not None and clients < 1:
        raise ConfigError(f"clients must be at least 1, not {clients}")
    if source == "faces":
        if partition != "natural":
            raise ConfigError("the data faces comes with its users; its partition is natural")
        return Faces(clients, held_out, seed)
    found = _own(source) if callable(source) or _is_factory(source) else load(source)
    return Dealt(found, partition, clients, held_out, seed) if isinstance(found, Table) else found


def _is_factory(source: str) -> bool:
    return ":" in source and not Path(source).exists()


def _own(source: Source) -> Table | Population:
    from qafel.tasks.models import call, imported

    name = source if isinstance(source, str) else "the data factory"
    found = call(imported(source, "data") if isinstance(source, str) else source, "data")
    needed = ("clients", "shape", "classes", "count", "samples", "held_out")
    if isinstance(found, Table) or all(hasattr(found, name) for name in needed):
        return found  # type: ignore[no-any-return]
    if isinstance(found, tuple) and len(found) in (2, 3):
        users = np.unique(found[2], return_inverse=True)[1] if len(found) == 3 else None
        return Table(np.asarray(found[0]), np.asarray(found[1]), users, source=name)
    raise ConfigError(
        f"{name} returned {type(found).__name__}; return (x, labels), (x, labels, users) or a Population"
    )


def load(name: str) -> Table:
    """A bundled data set or a file, as a table."""
    if name in ("digits", "breast-cancer"):
        return _bundled(name)
    path = Path(name).expanduser()
    if not path.exists():
        raise ConfigError(
            f"unknown data {name!r}: neither faces, digits, breast-cancer or module:factory, nor a file "
            "that exists"
        )
    return cache.cached(path, lambda: _reader(path)(path))


def _reader(path: Path) -> Callable[[Path], Table]:
    """Who reads this file or folder."""
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
