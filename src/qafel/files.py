"""Files that are written whole or not at all, and the one format of JSON files."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import ConfigError


def write(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a file atomically, with these permissions; ``sync`` waits until it is on the disk.

    The bytes go to ``NAME.part`` beside the file, which then replaces it: a reader sees the old file or the
    new one, never a part. A link stays a link, and what is no file, such as /dev/stdout, is written to.
    """
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        with path.open("ab") as device:
            device.write(data)
        return
    path = path.resolve()
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path, remedy: str = "choose another folder") -> Iterator[None]:
    """Turn an OSError into a ConfigError that says what cannot be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write to {path} ({error.strerror or error}); {remedy}") from error


def to_json(value: Any) -> bytes:
    """Indented JSON; numbers that JSON does not have become null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write(path, to_json(value), sync=False)
