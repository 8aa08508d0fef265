"""Readers of data files: npz, LIBSVM, IDX, CIFAR-10. Each returns a Table or raises ConfigError."""

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError, one_line
from qafel.tasks.data.table import Table, check_labels

CIFAR_ROW = 1 + 3 * 32 * 32
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX_NAMES = {False: "train", True: "t10k"}
MAX_COLUMNS = 10_000_000
MAX_NUMBERS = 1 << 30


def npz(path: Path) -> Table:
    """The arrays ``x`` and ``y``, and optionally ``users`` and ``held``."""
    kinds = ValueError, TypeError, AttributeError, zipfile.BadZipFile
    with reading(path, *kinds), np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in ("x", "y", "users", "held") if name in file}
    if not {"x", "y"} <= set(columns):
        raise ConfigError(
            f"{path} must have the arrays x (samples) and y (labels); write it with "
            f"np.savez({path.name!r}, x=…, y=…)"
        )
    if "users" in columns:
        columns["users"] = np.unique(columns["users"], return_inverse=True)[1].astype(np.int32)
    if "held" in columns:
        columns["held"] = columns["held"].astype(bool)
    return Table(**columns, source=str(path))


def libsvm(path: Path) -> Table:
    """Lines of ``label index:value …``, plain or gzipped; the sorted labels become 0, 1, …"""
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    with (
        reading(path, UnicodeDecodeError),
        gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file,
    ):
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                label, pairs = float(words[0]), [word.split(":") for word in words[1:]]
                entries = [(int(column), float(value)) for column, value in pairs]
            except ValueError:
                raise ConfigError(f"line {number} of {path} is not 'label index:value …'") from None
            if not math.isfinite(label) or any(not 1 <= k <= MAX_COLUMNS for k, _ in entries):
                raise ConfigError(
                    f"line {number} of {path} has a label that is not finite, or an index out of range; "
                    f"indices start at 1 and end at {MAX_COLUMNS}"
                )
            columns += [column - 1 for column, _ in entries]
            values += [value for _, value in entries]
            rows += [len(labels)] * len(entries)
            labels.append(label)
    if not columns:
        raise ConfigError(f"{path} has no samples; a LIBSVM file has lines of 'label index:value …'")
    if len(labels) * (max(columns) + 1) > MAX_NUMBERS:
        raise ConfigError(
            f"{path} must have at most {MAX_NUMBERS} numbers, got {len(labels)} samples of "
            f"{max(columns) + 1} columns"
        )
    x = np.zeros((len(labels), max(columns) + 1), np.float32)
    x[rows, columns] = values
    return Table(x, np.unique(labels, return_inverse=True)[1], source=str(path))


def idx(folder: Path) -> Table:
    """The four files of MNIST or Fashion-MNIST: train-images-idx3-ubyte, …, plain or gzipped."""
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for test in (False, True):
        images = _idx_file(_idx_path(folder, f"{IDX_NAMES[test]}-images-idx3-ubyte"))
        labels = _idx_file(_idx_path(folder, f"{IDX_NAMES[test]}-labels-idx1-ubyte"))
        if len(images) != len(labels) or images.shape[1:] != (parts[0][0] if parts else images).shape[1:]:
            raise ConfigError(
                f"the {IDX_NAMES[test]} files of {folder} have different numbers or shapes of samples; "
                "download them again"
            )
        parts.append((images, labels, np.full(len(labels), test)))
    x, y, held = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Table(x, y, held=held, source=str(folder))


def _idx_path(folder: Path, name: str) -> Path:
    candidates = [
        folder / f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")
    ]
    for path in candidates:
        if path.exists():
            return path
    raise ConfigError(
        f"{folder} has no {name} (or {name}.gz); IDX data has four files: images and labels of train and t10k"
    )


def _idx_file(path: Path) -> npt.NDArray[Any]:
    with reading(path):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or not 1 <= data[3] <= 4:
        raise ConfigError(f"{path} is not an IDX file: it does not start with the magic number")
    dtype, start = np.dtype(IDX_TYPES[data[2]]), 4 + 4 * data[3]
    shape = [int(side) for side in np.frombuffer(data[4:start].ljust(start - 4, b"\0"), ">u4")]
    if len(data) != start + dtype.itemsize * math.prod(shape):
        raise ConfigError(
            f"{path} is cut off or damaged: its shape is {shape}, and its data has {len(data) - start} bytes"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def cifar(folder: Path) -> Table:
    """The binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin."""
    parts = []
    for path in [*sorted(folder.glob("data_batch_*.bin")), folder / "test_batch.bin"]:
        with reading(path):
            data = np.fromfile(path, np.uint8)
        if not data.size or data.size % CIFAR_ROW:
            raise ConfigError(
                f"{path} is cut off or damaged: its size must be a multiple of {CIFAR_ROW}, got {data.size}"
            )
        rows = data.reshape(-1, CIFAR_ROW)
        check_labels(rows[:, 0], str(path), 10)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts.append((images, rows[:, 0], np.full(len(rows), path.name.startswith("test"))))
    x, y, held = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Table(x, y, held=held, source=str(folder))


@contextmanager
def reading(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of the file system, of decompression and of these ``kinds`` become a ConfigError."""
    caught: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, *kinds)
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; check the path") from error
    except caught as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ConfigError(f"cannot read {path}: {reason}") from error
