"""The folder of a run.

    config.toml         every setting that was used, resolved
    metrics.jsonl       a line per evaluation; without wall-clock time, so equal runs have equal bytes
    live.json           while it runs: its size, its clients, and how many updates had each staleness so far
    events.jsonl        a line per event, if they were asked for (``qafel.runs.events``)
    checkpoint.bin      the state to resume from; frames.bin beside it: frames in flight that exceed memory
    summary.json        totals, staleness, time split, provenance: written last, when the run has ended
    model.safetensors   the model
    curves.png, staleness.png

A folder without summary.json belongs to a run that has not ended: it can be resumed, and is not a result.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from qafel import files
from qafel.errors import ConfigError, QafelError, StateError
from qafel.runs.events import EVENTS

METRICS = "metrics.jsonl"
LIVE = "live.json"


class RunFolder:
    """A folder that one run writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appended: dict[str, IO[bytes]] = {}
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: str) -> "RunFolder":
        """Make a new folder with its config.toml; ConfigError if it exists and is not empty."""
        if path.exists() and (not path.is_dir() or any(one.suffix != ".part" for one in path.iterdir())):
            raise ConfigError(
                f"{path} exists and is not an empty folder; choose another folder, or resume it"
            )
        folder = cls(path)
        with files.writing(path):
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            files.write(path / "config.toml", config.encode())
            files.write(path / METRICS, b"")
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open a folder to resume its run; ConfigError if there is nothing to resume."""
        if not (path / "config.toml").is_file():
            raise ConfigError(f"{path} is not the folder of a run: it has no config.toml")
        if (path / "summary.json").exists():
            raise ConfigError(f"the run in {path} has ended: there is nothing to resume")
        folder = cls(path)
        folder.lock()
        return folder

    @property
    def frames(self) -> Path:
        """The path of frames.bin."""
        return self.path / "frames.bin"

    @property
    def has_events(self) -> bool:
        """Whether the events of the run are written."""
        return (self.path / EVENTS).exists()

    def size(self, name: str) -> int:
        """The length of a file, with everything that was appended; 0 if there is none."""
        if name in self._appended:
            with self.writing():
                self._appended[name].flush()
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def lock(self) -> None:
        """Lock the folder against other processes, until this one closes it."""
        try:
            import fcntl
        except ImportError:
            return
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(
                f"another process is running in {self.path}; wait for it, or choose another folder"
            ) from None

    def append(self, point: msgspec.Struct) -> None:
        """Append an evaluation to metrics.jsonl: the whole line, or nothing and an error."""
        line, end = msgspec.json.encode(point) + b"\n", self.size(METRICS)
        with self.writing():
            try:
                if self._open(METRICS, 0).write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.truncate(self.path / METRICS, end)
                raise

    def note(self, *event: Any) -> None:
        """Append an event to events.jsonl; it is written with the next checkpoint at the latest."""
        with self.writing():
            self._open(EVENTS).write(msgspec.json.encode(event) + b"\n")

    def _open(self, name: str, buffering: int = -1) -> IO[bytes]:
        if name not in self._appended:
            self._appended[name] = (self.path / name).open("ab", buffering)
        return self._appended[name]

    def truncate(self, size: int, events: int = 0) -> None:
        """Cut metrics.jsonl and events.jsonl to their lengths at a checkpoint: the rest is run again."""
        sizes = {METRICS: size} | ({EVENTS: events} if self.has_events else {})
        with self.writing():
            for name, length in sizes.items():
                path = self.path / name
                if self.size(name) < length:
                    remedy = "start the run anew" if name == METRICS else "delete it to go on without events"
                    raise StateError(f"{path} is shorter than when the checkpoint was made; {remedy}")
                os.truncate(path, length)

    def save(self, checkpoint: bytes) -> None:
        """Replace the checkpoint atomically; it may hold secrets."""
        self.write("checkpoint.bin", checkpoint, mode=0o600)

    def checkpoint(self) -> bytes | None:
        """The last checkpoint."""
        path = self.path / "checkpoint.bin"
        return path.read_bytes() if path.exists() else None

    def write(self, name: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file of the folder atomically."""
        with self.writing():
            files.write(self.path / name, data, mode=mode)

    def write_live(self, values: Mapping[str, Any]) -> None:
        """Replace what is known of a run that has not ended."""
        with self.writing():
            files.write_json(self.path / LIVE, values)

    def finish(self, summary: Any) -> None:
        """Write the summary, which makes the folder a result, and remove what was needed until then."""
        self.write("summary.json", files.to_json(summary))
        for path in (self.path / "checkpoint.bin", self.path / LIVE, self.frames):
            path.unlink(missing_ok=True)
        self.close()

    def remove(self) -> None:
        """Delete the folder."""
        with suppress(QafelError):
            self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Close the files and release the lock."""
        try:
            with self.writing():
                while self._appended:
                    self._appended.popitem()[1].close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError into a QafelError that says how to go on."""
        try:
            yield
        except OSError as error:
            raise QafelError(
                f"cannot write to {self.path}: {error.strerror or error}; "
                "the run did not end, and can be resumed from its last checkpoint"
            ) from error


def new_folder(root: Path, name: str) -> Path:
    """``root/name-1``, or the next number that is not taken."""
    taken = {path.name for path in root.glob(f"{name}-*")} if root.exists() else set()
    return next(root / f"{name}-{k}" for k in range(1, len(taken) + 2) if f"{name}-{k}" not in taken)
