"""Frames in flight: in memory up to a budget, then in a file.

A place in the file whose frame was taken out is used again only after the next ``commit``: until then, a
checkpoint may still speak of it.
"""

import os
import tempfile
from pathlib import Path

from qafel.errors import QafelError

PAGE = 4096
BUDGET = 256 << 20


class Frames:
    """A dictionary of frames, by task."""

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

    def __contains__(self, task: int) -> bool:
        return task in self._memory or task in self._places

    @property
    def spilled(self) -> int:
        """Bytes of the file."""
        return self._end

    def put(self, task: int, frame: bytes) -> None:
        """Keep a frame."""
        if self._used + len(frame) <= self._budget:
            self._memory[task] = frame
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
                raise OSError(28, "no space left on the disk")
        except OSError as error:
            raise QafelError(
                f"cannot write frames in flight to the disk: {error.strerror}; make room and resume"
            ) from error
        self._places[task] = place, len(frame)

    def pop(self, task: int) -> bytes:
        """Take a frame out."""
        frame = self._memory.pop(task, None)
        if frame is not None:
            self._used -= len(frame)
            return frame
        place, length = self._places.pop(task)
        self._freed.append((-(-length // PAGE) * PAGE, place))
        return os.pread(self._open(), length, place)

    def size(self, task: int) -> int:
        """The length of a frame."""
        return len(self._memory[task]) if task in self._memory else self._places[task][1]

    def commit(self) -> None:
        """What was taken out is no longer needed."""
        for size, place in self._freed:
            self._free.setdefault(size, []).append(place)
        self._freed.clear()

    def state(self) -> tuple[list[tuple[int, bytes]], list[tuple[int, int, int]], int]:
        """Frames in memory; (task, place, length) of those in the file, which is on the disk now; its end."""
        if self._file is not None:
            os.fsync(self._file)
        return list(self._memory.items()), [(t, *place) for t, place in self._places.items()], self._end

    def restore(self, state: tuple[list[tuple[int, bytes]], list[tuple[int, int, int]], int]) -> None:
        """Continue from ``state``; places that nobody speaks of are free."""
        memory, places, self._end = state
        self._memory = dict(memory)
        self._used = sum(map(len, self._memory.values()))
        self._places = {task: (place, length) for task, place, length in places}

    def close(self) -> None:
        """Close the file, and remove it where it was only ours."""
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
