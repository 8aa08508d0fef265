"""Sharing the work on long vectors between threads, without a trace in the result.

The kernels release the GIL and work on ranges of coordinates, so threads only decide who does a range, never
what comes out of it. ``set_threads(1)`` turns it off; the default is ``QAFEL_THREADS`` or the cores of this
process.
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

T = TypeVar("T")
Number = TypeVar("Number", int, float)

CHUNK = 1 << 21
"""A range shorter than this is not worth another thread."""

_helpers: list["_Helper"] = []
_threads: int | None = None
_kept = threading.local()


def threads() -> int:
    """How many threads share the coding of one vector."""
    if _threads is None:
        wanted = os.environ.get("QAFEL_THREADS") or str(_cores())
        if not wanted.isdecimal():
            raise ConfigError(f"QAFEL_THREADS must be a whole number, not {wanted!r}")
        set_threads(int(wanted))
    return _threads or 1


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Let ``count`` threads share the coding of one vector from now on."""
    global _threads
    if count < 1:
        raise ConfigError(f"threads must be at least 1, not {count}")
    _threads = count


def over_ranges(kernel: Callable[[int, int], Number], size: int, unit: int) -> Number:
    """Call ``kernel(start, stop)`` on ranges that cover ``size`` and start at multiples of ``unit``.

    Returns the largest value that a call returned: kernels report 0 for "fine" and more for what is wrong.
    """
    if size <= CHUNK or threads() == 1:
        return kernel(0, size) if size else 0
    length = max(-(-size // (threads() * unit)), -(-CHUNK // unit)) * unit
    return max(over_parts(lambda start: kernel(start, min(start + length, size)), size, length))


def over_parts(part: Callable[[int], T], size: int, length: int) -> list[T]:
    """``part(start)`` for every ``length`` of ``size``, by this thread and its helpers, in order."""
    starts = range(0, size, length)
    if len(starts) < 2 or threads() == 1:
        return [part(start) for start in starts]
    todo, found, ended = deque(enumerate(starts)), dict[int, T](), SimpleQueue[BaseException | None]()

    def work() -> None:
        error = None
        try:
            while todo:
                try:
                    k, start = todo.popleft()
                except IndexError:  # another thread was faster
                    break
                found[k] = part(start)
        except BaseException as wrong:
            todo.clear()
            error = wrong
        ended.put(error)

    helpers = min(threads(), len(starts)) - 1
    while len(_helpers) < helpers:
        _helpers.append(_Helper())
    for helper in _helpers[:helpers]:
        helper.todo.put(work)
    work()
    errors = [ended.get() for _ in range(helpers + 1)]
    for error in errors:
        if error is not None:
            raise error
    return [found[k] for k in range(len(starts))]


class _Helper(threading.Thread):
    """A thread that does what it is handed: a hand-over costs a fraction of an executor's."""

    def __init__(self) -> None:
        super().__init__(name="qafel", daemon=True)
        self.todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.start()

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self.todo.get()()


def scratch(length: int) -> npt.NDArray[np.uint8]:
    """A thread's own bytes to write into: touching fresh memory would cost as much as encoding."""
    kept: npt.NDArray[np.uint8] | None = getattr(_kept, "bytes", None)
    if kept is None or kept.size < length:
        kept = _kept.bytes = np.empty(length, np.uint8)
    return kept[:length]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.clear)
