"""Readers of files of samples: npz, LIBSVM, IDX, CIFAR-10. Each gives a Table, or one sentence."""

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.tasks.data.table import Table, check_labels

CIFAR_ROW = 1 + 3 * 32 * 32
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX_NAMES = {False: "train", True: "t10k"}
MOST_COLUMNS = 10_000_000
MOST_NUMBERS = 1 << 30
DAMAGED = (OSError, EOFError, zlib.error)


def npz(path: Path) -> Table:
    """Arrays ``x`` and ``y``, and ``users`` and ``held`` where there are."""
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in ("x", "y", "users", "held") if name in file}
    except (*DAMAGED, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise broken(path, error) from error
    if not {"x", "y"} <= set(columns):
        raise ConfigError(
            f"{path} must have the arrays x (samples) and y (labels); np.savez({path.name!r}, x=…, y=…)"
        )
    if "users" in columns:
        columns["users"] = np.unique(columns["users"], return_inverse=True)[1].astype(np.int32)
    held = columns.get("held")
    return Table(
        columns["x"],
        columns["y"],
        columns.get("users"),
        None if held is None else held.astype(bool),
        str(path),
    )


def libsvm(path: Path) -> Table:
    """Lines of ``label index:value …``, plain or gzipped; the labels, in order, become 0, 1, …"""
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                words = line.partition("#")[0].split()
                if not words:
                    continue
                try:
                    label, pairs = float(words[0]), [word.split(":") for word in words[1:]]
                    found = [(int(column), float(value)) for column, value in pairs]
                except ValueError:
                    raise ConfigError(f"line {number} of {path} is not 'label index:value …'") from None
                if not math.isfinite(label) or any(not 1 <= k <= MOST_COLUMNS for k, _ in found):
                    raise ConfigError(
                        f"line {number} of {path} has a label or an index out of range; indices start at 1"
                    )
                columns += [column - 1 for column, _ in found]
                values += [value for _, value in found]
                rows += [len(labels)] * len(found)
                labels.append(label)
    except (*DAMAGED, UnicodeDecodeError) as error:
        raise broken(path, error) from error
    if not columns:
        raise ConfigError(f"{path} has no samples; a LIBSVM file has lines of 'label index:value …'")
    if len(labels) * (max(columns) + 1) > MOST_NUMBERS:
        raise ConfigError(f"{path} has {len(labels)} samples of {max(columns) + 1} columns: too many to hold")
    x = np.zeros((len(labels), max(columns) + 1), np.float32)
    x[rows, columns] = values
    return Table(x, np.unique(labels, return_inverse=True)[1], source=str(path))


def idx(folder: Path) -> Table:
    """The four files of MNIST and its kin: train-images-idx3-ubyte, …, plain or gzipped."""
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for test in (False, True):
        images = _idx_file(_idx_path(folder, f"{IDX_NAMES[test]}-images-idx3-ubyte"))
        labels = _idx_file(_idx_path(folder, f"{IDX_NAMES[test]}-labels-idx1-ubyte"))
        if len(images) != len(labels) or images.shape[1:] != (parts[0][0] if parts else images).shape[1:]:
            raise ConfigError(f"the {IDX_NAMES[test]} files of {folder} do not fit together; get them again")
        parts.append((images, labels, np.full(len(labels), test)))
    x, y, held = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Table(x, y, held=held, source=str(folder))


def _idx_path(folder: Path, name: str) -> Path:
    spellings = [
        folder / f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")
    ]
    for path in spellings:
        if path.exists():
            return path
    raise ConfigError(
        f"{folder} has no {name} (or {name}.gz); IDX data is four files, train and t10k, images and labels"
    )


def _idx_file(path: Path) -> npt.NDArray[Any]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except DAMAGED as error:
        raise broken(path, error) from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or not 1 <= data[3] <= 4:
        raise ConfigError(f"{path} is not an IDX file: it does not start with its magic number")
    dtype, start = np.dtype(IDX_TYPES[data[2]]), 4 + 4 * data[3]
    shape = [int(side) for side in np.frombuffer(data[4:start].ljust(start - 4, b"\0"), ">u4")]
    if len(data) != start + dtype.itemsize * math.prod(shape):
        raise ConfigError(
            f"{path} is cut off or damaged: it says {shape} and has {len(data) - start} bytes of data"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def cifar(folder: Path) -> Table:
    """The binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin."""
    parts = []
    for path in [*sorted(folder.glob("data_batch_*.bin")), folder / "test_batch.bin"]:
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as error:
            raise broken(path, error) from error
        if not data.size or data.size % CIFAR_ROW:
            raise ConfigError(
                f"{path} is cut off or damaged: {data.size} bytes are no multiple of {CIFAR_ROW}"
            )
        rows = data.reshape(-1, CIFAR_ROW)
        check_labels(rows[:, 0], str(path), 10)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts.append((images, rows[:, 0], np.full(len(rows), path.name.startswith("test"))))
    x, y, held = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Table(x, y, held=held, source=str(folder))


def broken(path: Path, error: Exception) -> ConfigError:
    """The sentence about a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"there is no {path}; check the path")
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return ConfigError(f"cannot read {path}: {reason}")
