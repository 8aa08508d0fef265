"""The processes of the federation benchmark: a server, publishers, consumers and connected clients."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qafel import vectors, wire
from qafel.config import Job
from qafel.errors import BrokerError, QafelError
from qafel.federation import Plan, Subjects, serve
from qafel.federation.connection import Connection
from qafel.federation.entries import Upload, token
from qafel.federation.messages import Answer, Ask, Lease
from qafel.federation.server.reader import LogReader
from qafel.streams import derive, generator

SIZE = 29_282
WINDOW = 256
"""Uploads that may wait for their acknowledgement at a time."""
OWNERS = 1000
"""Clients that the uploads belong to."""
SECRET = bytes(32)
"""Signs the leases, so that the benchmark can make uploads before the server runs."""
_fork = multiprocessing.get_context("fork")


def plan(uploads: int, **quantizers: Any) -> Plan:
    """A federation whose model has the size of the paper's CNN; the quantizers are the defaults."""
    return Plan(
        name="bench",
        uploads=uploads,
        **quantizers,
        evaluate_every=1 << 39,
        checkpoint_seconds=0.5,
        concurrency=1 << 20,
    )


def uploads(job: Job, count: int) -> list[tuple[int, bytes]]:
    """(client, upload), in the order in which they are published."""
    made = []
    for k in range(count):
        client, task = k % OWNERS, k // OWNERS
        lease = Lease(task, 0, token(SECRET, client, task, 0))
        made.append((client, upload(job, client, lease, _payload(job, derive(job.seed, k)))))
    return made


def _payload(job: Job, seed: int) -> bytes:
    delta = generator(0, "bench").standard_normal(job.size, dtype=np.float32)
    return job.quantizers()[0].encode(delta, seed)


def upload(job: Job, client: int, lease: Lease, payload: bytes) -> bytes:
    """The upload of a client for a lease."""
    frame = wire.encode(wire.Update(job.id, client, lease.task, lease.version, payload))
    return Upload(lease.task, lease.version, lease.token, frame).to_bytes()


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

    def notice(event: str, **fields: Any) -> None:
        del fields
        if event == "ready":
            ready.value = time.monotonic()
        if event == "done":
            done.value = time.monotonic()

    serve(chosen, url, folder, x=vectors.zeros(SIZE), secret=SECRET, notice=notice)


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
            raise BrokerError(f"the broker refused an upload: {message.data.decode(errors='replace')}")
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


def consume(url: str, count: int, ready: Any, done: Any, answer: bool = False) -> None:
    """The raw server: it reads ``count`` messages from a stream, and answers each if asked to."""

    async def work() -> None:
        async with await Connection.open(url, Subjects("bench"), "consumer") as connection:
            await connection.ensure("RAW", {"subjects": ["raw.*"], "allow_direct": True, "num_replicas": 1})
            reader = LogReader(connection, 0, "RAW")
            ready.value = time.monotonic()
            seen = 0
            while seen < count:
                messages = await reader.next(1.0)
                seen += len(messages)
                for message in messages if answer else ():
                    await connection.send(f"raw-answer.{message.subject[4:]}", bytes(64))
            await connection.nc.flush()
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
            raise QafelError(f"a process of the benchmark died, or did not get ready within {seconds:.0f} s")
        time.sleep(0.005)


def milliseconds(took: list[float]) -> dict[str, float]:
    """Percentiles of times in seconds."""
    took = sorted(took)
    return {
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[int(len(took) * 0.99)],
        "max_ms": 1000 * took[-1],
    }


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


class Looping:
    """One client of a closed loop: it sends an upload when the answer to the last one has come."""

    def __init__(self, connection: Connection, number: int, job: Job, payload: bytes, *, raw: bool) -> None:
        self._connection, self._number, self._job, self._payload = connection, number, job, payload
        self._raw, self.took = raw, list[float]()
        self._session = number.to_bytes(16, "little")
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._lease = Lease(0, 0, bytes(16)) if raw else None

    async def _hear(self, message: Any) -> None:
        self._answers.put_nowait(message.data)

    async def start(self) -> None:
        """Listen, and ask for the first lease."""
        connection, number = self._connection, self._number
        answers = f"raw-answer.{number}" if self._raw else connection.subjects.answer(number)
        await connection.subscribe(answers, self._hear)
        await connection.nc.flush()
        if not self._raw:
            await connection.send(connection.subjects.ask(number), Ask(self._session).to_bytes())

    async def run(self, count: int) -> None:
        """Make ``count`` turns: upload, receipt, next lease."""
        target = self._connection.subjects.upload(self._number)
        for _ in range(count):
            while self._lease is None:
                self._lease = Answer.from_bytes(await self._answers.get()).lease
            began = time.monotonic()
            data = upload(self._job, self._number, self._lease, self._payload)
            await self._connection.publish(f"raw.{self._number}" if self._raw else target, data, timeout=60)
            answer = await self._answers.get()
            if not self._raw:
                self._lease = Answer.from_bytes(answer).lease
            self.took.append(time.monotonic() - began)


def loop_clients(
    url: str, numbers: range, rounds: int, raw: bool, ready: Any, began: Any, ended: Any, slow: Any
) -> None:
    """Clients of a closed loop, each with a connection of its own; ``slow`` gets the 99th percentile."""
    job = plan(1 << 30).job(SIZE)
    payload = _payload(job, 0)

    async def work() -> None:
        clients = []
        for number in numbers:
            connection = await Connection.open(url, Subjects("bench"), number, patience=60)
            clients.append((connection, Looping(connection, number, job, payload, raw=raw)))
        with ready.get_lock():
            ready.value += len(clients)
        while not began.value:
            await asyncio.sleep(0.005)
        await asyncio.gather(*(client.start() for _, client in clients))
        await asyncio.gather(*(client.run(rounds) for _, client in clients))
        took = sorted(seconds for _, client in clients for seconds in client.took)
        with ended.get_lock():
            ended.value = max(ended.value, time.monotonic())
            slow.value = max(slow.value, took[int(0.99 * len(took))])
        for connection, _ in clients:
            await connection.close()

    asyncio.run(work())


def run_clients(url: str, first: int, count: int, seconds: float, ready: Any, heard: Any) -> None:
    """Connected clients: each follows the model, and uploads every few seconds when it has a lease."""
    job = plan(1 << 30).job(SIZE)
    payload = _payload(job, 0)

    async def one(number: int) -> None:
        connection = await Connection.open(url, Subjects("bench"), number, patience=60)

        async def news(message: Any) -> None:
            del message
            heard.value += 1

        await connection.subscribe(connection.subjects.live, news)
        client = Looping(connection, number, job, payload, raw=False)
        await client.start()
        with ready.get_lock():
            ready.value += 1
        until = time.monotonic() + seconds + 20
        await asyncio.sleep(5 + number % 50 / 10)
        while time.monotonic() < until:
            await client.run(1)
            await asyncio.sleep(5)

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(first, first + count)))

    asyncio.run(work())
