"""Servers and clients for tests: in threads of their own, over the real broker."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from qafel import vectors, wire
from qafel.config import Job
from qafel.errors import FrameError
from qafel.federation import FederationClient, Plan, Subjects, serve
from qafel.federation.connection import Connection
from qafel.federation.entries import Upload, token
from qafel.federation.keys import read
from qafel.runs.result import Result
from qafel.streams import derive, generator
from qafel.vectors import Vector

SIZE = 3000
SECRET = bytes(range(32))
"""The key under which the servers of these tests sign leases, so that tests can make leases, too."""


def plan(**changes: Any) -> Plan:
    chosen = {
        "name": "t",
        "uploads": 40,
        "buffer_size": 4,
        "checkpoint_seconds": 0.05,
        "evaluate_every": 1 << 39,
    }
    return Plan(**{**chosen, **changes})


def start(size: int = SIZE) -> Vector:
    x = vectors.zeros(size)
    x[:] = generator(0, "start").standard_normal(size, dtype=np.float32)
    return x


def update(job: Job, client: int, task: int, version: int = 0, scale: float = 0.01) -> bytes:
    delta = generator(1, client, task).standard_normal(job.size, dtype=np.float32) * np.float32(scale)
    payload = job.quantizers()[0].encode(delta, derive(job.seed, client, task))
    return wire.encode(wire.Update(job.id, client, task, version, payload))


def upload(client: int, frame: bytes, *, lease: int = 0, **fields: Any) -> bytes:
    """An entry of the log: a frame with the token of its lease, if it is an update."""
    task = 0
    try:
        message = wire.decode(frame)
        task = message.task if isinstance(message, wire.Update) else 0
    except FrameError:
        pass
    values = {"task": task, "version": lease, "token": token(SECRET, client, task, lease), "frame": frame}
    return Upload(**{**values, **fields}).to_bytes()


class Background:
    """A function in a thread: its result, or its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._result = call, None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 240) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it did not end in time"
        if self._error is not None:
            raise self._error
        return self._result


def server(chosen: Plan, url: str, folder: Path, **options: Any) -> Background:
    options.setdefault("x", start())
    options.setdefault("secret", SECRET)
    return Background(lambda: serve(chosen, url, folder, **options))


def run(work: Coroutine[Any, Any, Any], seconds: float = 240) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(limited())


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


async def until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Until a condition holds; the loop runs on meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


async def link(
    url: str, who: int | str = "test", name: str = "t", keys: Path | None = None, **options: Any
) -> Connection:
    key = read(keys) if keys else None
    return await Connection.open(url, Subjects(name), who, key=key, **options)


async def publish(url: str, uploads: list[tuple[int, bytes]]) -> None:
    """Uploads in order, once the server is there; frames get the token of a lease."""
    async with await link(url) as one:
        while await one.stream(one.subjects.log) is None:
            await asyncio.sleep(0.02)
        for client, frame in uploads:
            await one.publish(one.subjects.upload(client), upload(client, frame))


async def version(url: str, wanted: int) -> None:
    """Until the broker has this version."""
    async with await link(url) as one:
        while True:
            stream = await one.stream(one.subjects.increments)
            if stream is not None and stream["state"]["last_seq"] >= wanted:
                return
            await asyncio.sleep(0.02)


async def caught_up(url: str, job: Job, client: int, state: Path | None = None) -> FederationClient:
    """A client that has caught up, and its counts."""
    async with await link(url, client) as one:
        member = FederationClient(one, job, client, lambda x, task: x, state=state)
        await member.follower.catch_up()
        member.save(now=True)
        return member


def ended(background: Background) -> Result:
    result = background.result()
    assert isinstance(result, Result)
    return result
