"""Frames in flight: in memory up to a budget, then in a file.

A place in the file whose frame was removed is used again only after the next ``commit``: until then a
checkpoint may still refer to it.
"""

import errno
import os
import tempfile
from pathlib import Path

import msgspec

from qafel.errors import QafelError, StateError

PAGE = 4096
BUDGET = 256 << 20


class State(msgspec.Struct, array_like=True):
    """Frames in flight, as part of a checkpoint."""

    memory: dict[int, bytes]
    places: dict[int, tuple[int, int]]
    """(place, length) by serial number."""
    free: list[tuple[int, int]]
    """(size, place)."""
    end: int


class Frames:
    """A dictionary of frames, by the serial number of the task."""

    def __init__(self, path: Path | None = None, budget: int = BUDGET) -> None:
        self._path, self._budget, self._used = path, budget, 0
        self._memory: dict[int, bytes] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._free: dict[int, list[int]] = {}
        self._freed: list[tuple[int, int]] = []
        self._end = 0
        self._file: int | None = None

    def __len__(self) -> int:
        return len(self._memory) + len(self._places)

    @property
    def spilled(self) -> int:
        """Bytes of the file."""
        return self._end

    def put(self, serial: int, frame: bytes) -> None:
        """Add a frame."""
        if self._used + len(frame) <= self._budget:
            self._memory[serial] = frame
            self._used += len(frame)
            return
        size = -(-len(frame) // PAGE) * PAGE
        free = self._free.get(size)
        place = free.pop() if free else self._end
        if place == self._end:
            self._end += size
        try:
            written = os.pwrite(self._open(), frame, place)
            if written != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise QafelError(
                f"cannot write frames in flight to the disk: {error.strerror}; make room and resume"
            ) from error
        self._places[serial] = place, len(frame)

    def pop(self, serial: int) -> bytes:
        """Remove a frame and return it."""
        frame = self._memory.pop(serial, None)
        if frame is not None:
            self._used -= len(frame)
            return frame
        place, length = self._places.pop(serial)
        self._freed.append((-(-length // PAGE) * PAGE, place))
        frame = os.pread(self._open(), length, place)
        if len(frame) != length:
            raise StateError(f"{self._path} has changed since the run was saved; start the run again")
        return frame

    def size(self, serial: int) -> int:
        """The length of a frame."""
        return len(self._memory[serial]) if serial in self._memory else self._places[serial][1]

    def commit(self) -> None:
        """Let the places of removed frames be used again."""
        for size, place in self._freed:
            self._free.setdefault(size, []).append(place)
        self._freed.clear()

    def state(self) -> State:
        """The frames in memory and the places in the file, which is synced to the disk."""
        if self._file is not None:
            os.fsync(self._file)
        free = [(size, place) for size, places in self._free.items() for place in places]
        return State(dict(self._memory), dict(self._places), [*free, *self._freed], self._end)

    def restore(self, state: State) -> None:
        """Continue from ``state``; frames that were added to the file since then are dropped."""
        self._memory, self._places, self._end = dict(state.memory), dict(state.places), state.end
        self._used = sum(map(len, self._memory.values()))
        self._free, self._freed = {}, list(state.free)
        self.commit()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            if self._path is None:
                descriptor, name = tempfile.mkstemp(prefix="qafel-frames-")
                Path(name).unlink()
                self._file = descriptor
            else:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        return self._file
