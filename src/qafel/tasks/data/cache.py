"""Files that take long to read are read once, and kept as memory-mapped arrays.

The cache lies in ``QAFEL_CACHE``, or in the user's cache folder. An entry is named after the file's path,
size and time of change, so a file that changes is read again.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from qafel.errors import ConfigError
from qafel.tasks.data.table import Table

FORMAT = 1
COLUMNS = ("x", "y", "users", "held")


def folder() -> Path:
    """Where the cache is."""
    named = os.environ.get("QAFEL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "qafel"


def cached(path: Path, read: Callable[[], Table]) -> Table:
    """The table of ``path``: from the cache, or read now and kept."""
    entry = folder() / _key(path)
    if not (entry / "y.npy").exists():
        _keep(read(), entry)
    columns = {
        name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in COLUMNS
        if (entry / f"{name}.npy").exists()
    }
    return Table(columns["x"], columns["y"], columns.get("users"), columns.get("held"), source=str(path))


def _keep(table: Table, entry: Path) -> None:
    """Write an entry whole or not at all."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=entry.parent, prefix="half-"))
        try:
            for name in COLUMNS:
                if getattr(table, name) is not None:
                    np.save(half / f"{name}.npy", getattr(table, name), allow_pickle=False)
            half.rename(entry)
        except OSError:
            shutil.rmtree(half, ignore_errors=True)
            if not (entry / "y.npy").exists():  # else another process was faster
                raise
    except OSError as error:
        raise ConfigError(
            f"cannot keep {table.source} in the cache {entry.parent} ({error.strerror or error}); "
            "set QAFEL_CACHE to a folder with room"
        ) from error


def _key(path: Path) -> str:
    digest = xxhash.xxh3_64(f"{FORMAT} {path.resolve()}".encode())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}".encode())
    return f"{path.name[:40]}-{digest.hexdigest()}"
