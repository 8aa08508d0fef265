"""Work that may be given up: in threads whose end is waited for, and unless something else happens first."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
AGAIN = 0.5
"""A task that goes on after it was cancelled is cancelled again after this many seconds."""


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; who is cancelled meanwhile still waits until it has returned.

    So nobody sees what a thread has half changed, and no two threads write the same file.
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
    """Do something; False if it was given up because the event was set."""
    task, stop = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    done = task.done()
    await give_up((task, stop))
    if done:
        task.result()
    return done
