"""Event loops: the functions of this package return when they are done, also inside of a running loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


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
