"""Threads that share the work on one long vector. The result does not depend on their number.

Kernels release the GIL and work on ranges of coordinates, so that any thread can process any range. The
number of threads is ``set_threads``, else the environment variable ``QAFEL_THREADS``, else ``cores()``.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.machine import cores

T = TypeVar("T")
Number = TypeVar("Number", int, float)

CHUNK = 1 << 21
"""Shorter ranges are not divided between threads."""

_workers: list["_Worker"] = []
_count: int | None = None
_local = threading.local()


def thread_count() -> int:
    """Return the number of threads that share the coding of one vector."""
    if _count is None:
        text = os.environ.get("QAFEL_THREADS") or str(cores())
        if not text.isdecimal():
            raise ConfigError(f"QAFEL_THREADS must be a whole number of at least 1, got {text!r}")
        set_threads(int(text))
    return _count or 1


def set_threads(count: int) -> None:
    """Set the number of threads that share the coding of one vector; 1 means the calling thread only."""
    global _count
    if count < 1:
        raise ConfigError(f"the number of threads must be at least 1, got {count}")
    _count = count


def over_ranges(kernel: Callable[[int, int], Number], size: int, unit: int) -> Number:
    """Call ``kernel(start, stop)`` on ranges that cover ``size`` and start at multiples of ``unit``.

    Returns the largest value that a call returned: kernels return 0 for success, more for an error.
    """
    if size <= CHUNK or thread_count() == 1:
        return kernel(0, size) if size else 0
    length = max(-(-size // (thread_count() * unit)), -(-CHUNK // unit)) * unit
    return max(over_parts(lambda start: kernel(start, min(start + length, size)), size, length))


def over_parts(part: Callable[[int], T], size: int, length: int) -> list[T]:
    """Return ``[part(start), …]`` for every ``length`` of ``size``, computed by several threads."""
    starts = range(0, size, length)
    if len(starts) < 2 or thread_count() == 1:
        return [part(start) for start in starts]
    queue, results = deque(enumerate(starts)), dict[int, T]()
    ended = SimpleQueue[BaseException | None]()

    def work() -> None:
        error = None
        try:
            while queue:
                try:
                    k, start = queue.popleft()
                except IndexError:  # another thread took the last part
                    break
                results[k] = part(start)
        except BaseException as raised:
            queue.clear()
            error = raised
        ended.put(error)

    others = min(thread_count(), len(starts)) - 1
    while len(_workers) < others:
        _workers.append(_Worker())
    for worker in _workers[:others]:
        worker.jobs.put(work)
    work()
    errors = [ended.get() for _ in range(others + 1)]
    for error in errors:
        if error is not None:
            raise error
    return [results[k] for k in range(len(starts))]


class _Worker(threading.Thread):
    """A daemon thread that runs jobs from its queue. Handing one over is much cheaper than an executor's."""

    def __init__(self) -> None:
        super().__init__(name="qafel", daemon=True)
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.start()

    def run(self) -> None:
        """Run jobs until the process ends."""
        while True:
            self.jobs.get()()


def scratch(length: int) -> npt.NDArray[np.uint8]:
    """Return uninitialised bytes that this thread reuses: page faults of fresh memory cost as much as
    encoding.

    The next call in the same thread returns the same memory.
    """
    kept: npt.NDArray[np.uint8] | None = getattr(_local, "bytes", None)
    if kept is None or kept.size < length:
        kept = _local.bytes = np.empty(length, np.uint8)
    return kept[:length]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.clear)
