"""Work that may be given up: in threads whose end is waited for, and unless something else happens first."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; who is cancelled meanwhile still waits until it has returned.

    So nobody sees what a thread has half changed, and no two threads write the same file.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do something; False if it was given up because the event was set."""
    task, stop = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    done = task.done()
    for one in (task, stop):
        one.cancel()
    await asyncio.gather(task, stop, return_exceptions=True)
    if done:
        task.result()
    return done
