"""A cache of data files: each file is read once and stored as arrays that can be memory-mapped.

The cache is in the folder ``QAFEL_CACHE``, or in the user's cache folder. The name of an entry depends on the
path, size and modification time of the file, so a file that was changed is read again.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from qafel.errors import ConfigError
from qafel.tasks.data.table import Table

FORMAT = 2
COLUMNS = ("x", "y", "users", "held", "classes", "vocabulary")


def folder() -> Path:
    """The folder of the cache."""
    chosen = os.environ.get("QAFEL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "qafel"


def cached(path: Path, read: Callable[[], Table]) -> Table:
    """The table of ``path`` from the cache; if it is not there, call ``read`` and store its table first."""
    entry = folder() / _key(path)
    if not (entry / "y.npy").exists():
        _store(read(), entry)
    columns: dict[str, Any] = {
        name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in COLUMNS
        if (entry / f"{name}.npy").exists()
    }
    columns |= {name: int(columns[name]) or None for name in ("classes", "vocabulary")}
    return Table(**columns, source=str(path))


def _store(table: Table, entry: Path) -> None:
    """Write an entry atomically."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=entry.parent, prefix="partial-"))
        try:
            for name in COLUMNS:
                if getattr(table, name) is not None:
                    np.save(partial / f"{name}.npy", getattr(table, name), allow_pickle=False)
            partial.rename(entry)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            if not (entry / "y.npy").exists():  # otherwise another process has written the entry
                raise
    except OSError as error:
        raise ConfigError(
            f"cannot store {table.source} in the cache {entry.parent} ({error.strerror or error}); "
            "set QAFEL_CACHE to a folder with enough space"
        ) from error


def _key(path: Path) -> str:
    digest = xxhash.xxh3_64(f"{FORMAT} {path.resolve()}".encode())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}".encode())
    return f"{path.name[:40]}-{digest.hexdigest()}"
