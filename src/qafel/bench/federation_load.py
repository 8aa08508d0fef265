"""The processes of the federation benchmark: a server, publishers, consumers and connected clients."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.config import Job
from qafel.federation import Plan, Subjects, serve
from qafel.federation.leases import Ask
from qafel.federation.nats import Connection
from qafel.federation.reader import Reader
from qafel.streams import derive, generator

SIZE = 29_282
WINDOW = 256
"""Uploads that may wait for their acknowledgement at a time."""
OWNERS = 1000
"""Clients that the uploads belong to."""
_fork = multiprocessing.get_context("fork")


def plan(uploads: int, **quantizers: Any) -> Plan:
    """A federation whose model has the size of the paper's CNN; the quantizers are the defaults."""
    return Plan(
        name="bench",
        uploads=uploads,
        **quantizers,
        evaluate_every=1 << 39,
        checkpoint_seconds=0.5,
        max_pending=1 << 20,
        concurrency=1 << 20,
    )


def frames(job: Job, count: int) -> list[tuple[int, bytes]]:
    """(client, update frame), in the order in which they are published."""
    make = _frame_maker(job)
    return [(k % OWNERS, make(k % OWNERS, k // OWNERS, derive(job.seed, k))) for k in range(count)]


def _frame_maker(job: Job) -> Callable[[int, int, int], bytes]:
    """A function from (client, task, seed) to an update frame."""
    coder = job.quantizers()[0]
    delta = generator(0, "bench").standard_normal(job.size, dtype=np.float32)

    def frame(client: int, task: int, seed: int) -> bytes:
        return wire.encode(wire.Update(job.id, client, task, 0, coder.encode(delta, seed)))

    return frame


def spawn(target: Callable[..., None], *arguments: Any) -> Any:
    """Call ``target`` in a new process."""
    process = _fork.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def moment() -> Any:
    """A time shared between processes; zero until it is set."""
    return _fork.Value("d", 0.0)


def counter() -> Any:
    """An integer shared between processes."""
    return _fork.Value("q", 0)


def run_server(url: str, folder: Path, chosen: Plan, ready: Any, done: Any) -> None:
    """A server that notes when it is ready and when its training has ended."""

    def journal(event: str, **fields: Any) -> None:
        del fields
        if event == "ready":
            ready.value = time.monotonic()
        if event == "done":
            done.value = time.monotonic()

    serve(chosen, url, folder, x=vectors.zeros(SIZE), journal=journal)


async def publish(
    connection: Connection, uploads: list[tuple[str, bytes]], pace: float | None = None
) -> list[float]:
    """Publish in order, at most WINDOW unacknowledged; return the seconds to each acknowledgement."""
    inbox = f"{connection.inbox}.acks"
    sent: dict[str, float] = {}
    took: list[float] = []
    room = asyncio.Semaphore(WINDOW)

    async def acknowledged(message: Any) -> None:
        if b'"error"' in message.data:
            raise RuntimeError(message.data)
        took.append(time.monotonic() - sent.pop(message.subject))
        room.release()

    subscription = await connection.nc.subscribe(f"{inbox}.*", cb=acknowledged)
    began = time.monotonic()
    for k, (subject, data) in enumerate(uploads):
        await room.acquire()
        if pace is not None and (ahead := began + k * pace - time.monotonic()) > 0:
            await asyncio.sleep(ahead)
        reply = f"{inbox}.{k}"
        sent[reply] = time.monotonic()
        await connection.nc.publish(subject, data, reply=reply)
    while sent:
        await asyncio.sleep(0.001)
    await subscription.unsubscribe()
    return took


def _publisher(url: str, uploads: list[tuple[int, bytes]], raw: bool, began: Any, ended: Any) -> None:
    async def work() -> None:
        async with await Connection.open(url, Subjects("bench"), "publisher") as connection:
            subject = (lambda client: f"raw.{client}") if raw else connection.subjects.upload
            began.value = time.monotonic()
            await publish(connection, [(subject(client), frame) for client, frame in uploads])
            ended.value = time.monotonic()

    asyncio.run(work())


def consume(url: str, count: int, ready: Any, done: Any) -> None:
    """Read ``count`` raw messages from a stream."""

    async def work() -> None:
        async with await Connection.open(url, Subjects("bench"), "consumer") as connection:
            await connection.ensure("RAW", {"subjects": ["raw.*"], "allow_direct": True, "num_replicas": 1})
            reader = Reader(connection, "RAW", 0)
            ready.value = time.monotonic()
            seen = 0
            while seen < count:
                seen += len(await reader.next(1.0))
            done.value = time.monotonic()

    asyncio.run(work())


def upload_rate(
    consumer: Callable[[Any, Any], None], url: str, uploads: list[tuple[int, bytes]], *, raw: bool
) -> float:
    """Uploads/s from the first publish until ``consumer``, in a process of its own, has all of them."""
    ready, done, began, ended = (moment() for _ in range(4))
    process = spawn(consumer, ready, done)
    wait_for(ready, process)
    publisher = spawn(_publisher, url, uploads, raw, began, ended)
    wait_for(done, process)
    publisher.join()
    process.join()
    return float(len(uploads) / (done.value - began.value))


def wait_for(moment: Any, process: Any, seconds: float = 120) -> None:
    """Wait until ``process`` has set ``moment``."""
    until = time.monotonic() + seconds
    while not moment.value:
        if time.monotonic() > until or (not process.is_alive() and not moment.value):
            raise RuntimeError(
                f"a process of the benchmark died, or did not get ready within {seconds:.0f} s"
            )
        time.sleep(0.005)


def receive(url: str, count: int, wanted: int, subject: str, ready: Any, done: Any) -> None:
    """``count`` connections that each wait for ``wanted`` messages."""

    async def work() -> None:
        seen = 0

        async def heard(message: Any) -> None:
            nonlocal seen
            del message
            seen += 1

        links = [await Connection.open(url, Subjects("bench"), k) for k in range(count)]
        for connection in links:
            await connection.nc.subscribe(subject, cb=heard)
            await connection.nc.flush()
        ready.value = time.monotonic()
        while seen < count * wanted:
            await asyncio.sleep(0.002)
        done.value = time.monotonic()
        for connection in links:
            await connection.close()

    asyncio.run(work())


def run_clients(url: str, first: int, count: int, seconds: float, ready: Any, heard: Any) -> None:
    """Connected clients: each follows the model, and asks for a lease and uploads every few seconds."""
    job = plan(1 << 30).job(SIZE)
    frame = _frame_maker(job)

    async def one(number: int) -> None:
        connection = await Connection.open(url, Subjects("bench"), number, patience=60)

        async def news(message: Any) -> None:
            del message
            heard.value += 1

        subjects = connection.subjects
        await connection.subscribe(subjects.live, news)
        with ready.get_lock():
            ready.value += 1
        until = time.monotonic() + seconds + 20
        task = 0
        while time.monotonic() < until:
            await asyncio.sleep(5 + number % 50 / 10)
            await connection.request(connection.subjects.ask(number), msgspec.msgpack.encode(Ask(task)))
            await connection.publish(
                connection.subjects.upload(number), frame(number, task, derive(job.seed, number, task))
            )
            task += 1

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(first, first + count)))

    asyncio.run(work())
