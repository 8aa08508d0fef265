"""The part ``flood`` of the federation benchmark: how long clients wait while another one floods."""

import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any

from qafel.bench.federation_load import (
    SIZE,
    counter,
    milliseconds,
    moment,
    plan,
    run_server,
    spawn,
    upload,
    uploads,
    wait_for,
)
from qafel.federation import Broker, Subjects
from qafel.federation.client import MIN_WAIT
from qafel.federation.connection import Connection
from qafel.federation.entries import Upload
from qafel.federation.messages import Ask, Lease
from qafel.federation.objects import Manifest

ASKING = 10
"""Clients that ask."""
PAUSE = 0.02
"""Mean seconds between an answer and the next request of a client."""


def flooded(folder: Path, seconds: float) -> dict[str, Any]:
    """Time from a request to its answer: without a flood, then while one client sends all that it may."""
    with Broker(folder / "broker") as broker:
        ready, sent = moment(), counter()
        server = spawn(run_server, broker.url, folder / "server", plan(1 << 30), ready, moment())
        wait_for(ready, server)
        quiet = asyncio.run(_ask(broker.url, seconds))
        hostile = spawn(_flood, broker.url, ASKING, sent)
        wait_for(sent, hostile)
        began, before = time.monotonic(), sent.value
        loud = asyncio.run(_ask(broker.url, seconds))
        rate = (sent.value - before) / (time.monotonic() - began)
        alive = server.is_alive() and hostile.is_alive()
        for process in (hostile, server):
            process.kill()
            process.join()
    return {
        "clients": ASKING,
        "flood_per_second": rate,
        "alive": alive,
        "without": {"requests": len(quiet), **milliseconds(quiet)},
        "with": {"requests": len(loud), **milliseconds(loud)},
    }


async def _ask(url: str, seconds: float) -> list[float]:
    """Seconds from request to answer, of clients that ask again and again."""
    until, took = time.monotonic() + seconds, list[float]()

    async def one(number: int) -> None:
        request = Ask(number.to_bytes(16, "little")).to_bytes()
        async with await Connection.open(url, Subjects("bench"), number) as connection:
            answered = asyncio.Event()

            async def hear(message: Any) -> None:
                del message
                answered.set()

            await connection.subscribe(connection.subjects.answer(number), hear)
            await connection.nc.flush()
            while time.monotonic() < until:
                answered.clear()
                began = time.monotonic()
                async with asyncio.timeout(60):
                    while not answered.is_set():  # a client that hears nothing asks again
                        await connection.send(connection.subjects.ask(number), request)
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(answered.wait(), MIN_WAIT)
                took.append(time.monotonic() - began)
                await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))

    await asyncio.gather(*(one(number) for number in range(ASKING)))
    return took


def _flood(url: str, number: int, sent: Any) -> None:
    """A client that sends all that it may, as fast as it can: requests, pieces, uploads without a lease."""
    job, subjects = plan(1).job(SIZE), Subjects("bench")
    no_lease = upload(job, number, Lease((1 << 40) - 1, 0, bytes(16)), bytes(2000))
    no_pieces = Upload(0, 0, bytes(16), Manifest("0" * 32, 500, [1, 2, 3]).to_bytes()).to_bytes()
    messages = []
    for data in (b"noise" * 20, uploads(job, 1)[0][1], no_lease, no_pieces):
        messages += [(subjects.upload(number), data), (subjects.piece(number), bytes(1000))]
        messages += [(subjects.ask(number), Ask(bytes([k]) * 16).to_bytes()) for k in range(20)]

    async def work() -> None:
        async with await Connection.open(url, subjects, number) as connection:
            while True:
                for _ in range(100):
                    for subject, data in messages:
                        await connection.send(subject, data)
                    await asyncio.sleep(0)
                await connection.nc.flush(timeout=60)  # what the client still holds is not counted
                sent.value += 100 * len(messages)

    asyncio.run(work())
