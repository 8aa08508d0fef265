"""Waiting: for work to end, also inside a running event loop; for an event; and between two attempts."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
AGAIN = 0.5
"""A task that goes on after it was cancelled is cancelled again after this many seconds."""


class Backoff:
    """Pauses that double up to ``longest`` seconds, each with jitter."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.reset()

    def reset(self) -> None:
        """Begin with the first pause again."""
        self.seconds = self._first

    async def pause(self) -> None:
        """Sleep between one half and the whole of the next pause."""
        seconds, self.seconds = self.seconds, min(2 * self.seconds, self._longest)
        await asyncio.sleep(seconds * random.uniform(0.5, 1))


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; a caller that is cancelled still waits until the function has returned.

    So no other task sees a half-finished change, and no two threads write the same file.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):  # it may be cancelled more than once
                await asyncio.wait([work])
        raise


async def give_up(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    Once is not enough: ``asyncio.wait_for`` of Python 3.11 forgets a cancellation that comes together with
    what it waits for.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` until it ends or ``event`` is set, which cancels it; return whether it ended."""
    task, stop = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        done = task.done()
        await give_up((task, stop))
    if done:
        task.result()
    return done


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end: in this thread, or in one of its own where a loop is running, as in a notebook."""
    if not _running():
        return asyncio.run(work)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        started.append((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, cancellable())
        try:
            return result.result()
        except KeyboardInterrupt:
            for loop, task in started:
                loop.call_soon_threadsafe(task.cancel)
            raise


class Loop:
    """A loop that is run piece by piece, in a thread of its own where another one is running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1) if _running() else None

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end of one piece."""
        if self._thread is None:
            return self._loop.run_until_complete(work)
        return self._thread.submit(self._loop.run_until_complete, work).result()

    def close(self) -> None:
        """Close it."""
        if self._thread is not None:
            self._thread.shutdown()
        self._loop.close()


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
