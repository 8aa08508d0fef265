"""How fast a federation is, over a real broker: beside the raw broker with the same bytes, in the same run.

updates    from the publisher's acknowledgement through validation into the buffer and a checkpoint
synced     the same with a broker that syncs every message to disk
fan-out    increments, stored and fenced, to many connections
latency    from an upload to its acknowledgement, at half load
clients    many connected clients that follow and ask; the memory of the server
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.config import DEFAULT_QUANTIZER, SERVER_QUANTIZER, Job
from qafel.errors import QafelWarning
from qafel.federation import Broker, Plan, Subjects, serve
from qafel.federation.increments import Increments
from qafel.federation.leases import Ask
from qafel.federation.nats import Connection
from qafel.federation.reader import Reader
from qafel.quantizers import quantizer
from qafel.server import Server
from qafel.streams import derive, generator

SIZE = 29_282
WINDOW = 256
"""Uploads on their way to the broker at a time."""
OWNERS = 1000
"""Clients the uploads are of."""
_fork = multiprocessing.get_context("fork")


class Scale(msgspec.Struct, frozen=True):
    """How much of everything."""

    uploads: int = 12_000
    synced: int = 1500
    increments: int = 400
    connections: int = 100
    latency_seconds: float = 5.0
    clients: int = 1000
    held_seconds: float = 60.0
    rounds: int = 3


PARTS = (
    "updates",
    "synced",
    f"fan-out {SERVER_QUANTIZER}",
    f"fan-out {DEFAULT_QUANTIZER}",
    "latency",
    "clients",
)
QUICK = Scale(600, 60, 20, 20, 1.0, 40, 2.0, 1)


def plan(uploads: int) -> Plan:
    """The paper's CNN in size."""
    return Plan(
        name="bench",
        uploads=uploads,
        client_quantizer=DEFAULT_QUANTIZER,
        server_quantizer=DEFAULT_QUANTIZER,
        evaluate_every=1 << 39,
        checkpoint_seconds=0.5,
        max_pending=1 << 20,
        concurrency=1 << 20,
    )


def frames(job: Job, count: int) -> list[tuple[int, bytes]]:
    """(client, update) of 15 kB each."""
    coder = job.quantizers()[0]
    delta = generator(0, "bench").standard_normal(job.size, dtype=np.float32)
    found = []
    for k in range(count):
        payload = coder.encode(delta, derive(job.seed, k))
        found.append((k % OWNERS, wire.encode(wire.Update(job.id, k % OWNERS, k // OWNERS, 0, payload))))
    return found


def spawn(target: Callable[..., None], *arguments: Any) -> Any:
    """A process of its own."""
    process = _fork.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _server(url: str, folder: Path, chosen: Plan, ready: Any, done: Any) -> None:
    def journal(event: str, **fields: Any) -> None:
        del fields
        if event == "ready":
            ready.value = time.monotonic()
        if event == "done":
            done.value = time.monotonic()

    serve(chosen, url, folder, x=vectors.zeros(SIZE), journal=journal)


async def publish(
    link: Connection, uploads: list[tuple[str, bytes]], pace: float | None = None
) -> list[float]:
    """Publish in order, a window at a time; how long each acknowledgement took."""
    inbox = f"{link.nc._inbox_prefix.decode()}.acks"
    sent: dict[str, float] = {}
    took: list[float] = []
    room = asyncio.Semaphore(WINDOW)

    async def acknowledged(message: Any) -> None:
        if b'"error"' in message.data:
            raise RuntimeError(message.data)
        took.append(time.monotonic() - sent.pop(message.subject))
        room.release()

    subscription = await link.nc.subscribe(f"{inbox}.*", cb=acknowledged)
    began = time.monotonic()
    for k, (subject, data) in enumerate(uploads):
        await room.acquire()
        if pace is not None and (ahead := began + k * pace - time.monotonic()) > 0:
            await asyncio.sleep(ahead)
        reply = f"{inbox}.{k}"
        sent[reply] = time.monotonic()
        await link.nc.publish(subject, data, reply=reply)
    while sent:
        await asyncio.sleep(0.001)
    await subscription.unsubscribe()
    return took


def _publisher(url: str, uploads: list[tuple[int, bytes]], raw: bool, began: Any, ended: Any) -> None:
    async def work() -> None:
        async with await Connection.open(url, Subjects("bench"), "publisher") as link:
            subject = (lambda client: f"raw.{client}") if raw else link.names.upload
            began.value = time.monotonic()
            await publish(link, [(subject(client), frame) for client, frame in uploads])
            ended.value = time.monotonic()

    asyncio.run(work())


def _consumer(url: str, count: int, ready: Any, done: Any) -> None:
    async def work() -> None:
        async with await Connection.open(url, Subjects("bench"), "consumer") as link:
            await link.ensure("RAW", {"subjects": ["raw.*"], "allow_direct": True, "num_replicas": 1})
            reader = Reader(link, "RAW", 0)
            ready.value = time.monotonic()
            seen = 0
            while seen < count:
                seen += len(await reader.next(1.0))
            done.value = time.monotonic()

    asyncio.run(work())


def _rate(
    target: Callable[..., None], arguments: tuple[Any, ...], url: str, uploads: Any, raw: bool
) -> float:
    """Uploads/s from the first publish until the other side has all of them."""
    ready, done, began, ended = (_fork.Value("d", 0.0) for _ in range(4))
    consumer = spawn(target, *arguments, ready, done)
    _await(ready, consumer)
    publisher = spawn(_publisher, url, uploads, raw, began, ended)
    _await(done, consumer)
    publisher.join()
    consumer.join()
    return float(len(uploads) / (done.value - began.value))


def _await(moment: Any, process: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not moment.value:
        if time.monotonic() > until or (not process.is_alive() and not moment.value):
            raise RuntimeError("a process of the bench has died or hangs")
        time.sleep(0.005)


def updates(folder: Path, count: int, rounds: int, *, sync_always: bool) -> dict[str, Any]:
    """Ours and the raw broker in turn, each with a store of its own."""
    chosen = plan(count)
    uploads = frames(chosen.job(SIZE), count)
    ours: list[float] = []
    raw: list[float] = []
    for k in range(rounds):
        for kind, found in (("raw", raw), ("ours", ours)):
            where = folder / f"{kind}-{k}"
            with Broker(where / "broker", sync_always=sync_always) as broker:
                if kind == "raw":
                    found.append(_rate(_consumer, (broker.url, count), broker.url, uploads, True))
                else:
                    arguments = (broker.url, where / "server", chosen)
                    found.append(_rate(_server, arguments, broker.url, uploads, False))
    return {
        "uploads": count,
        "bytes": statistics.median(len(frame) for _, frame in uploads),
        "sync": "always" if sync_always else "the broker's default",
        "updates_per_second": statistics.median(ours),
        "raw_per_second": statistics.median(raw),
        "ratio": statistics.median(a / b for a, b in zip(ours, raw, strict=True)),
    }


def _receivers(url: str, count: int, wanted: int, subject: str, ready: Any, done: Any) -> None:
    async def work() -> None:
        seen = 0

        async def heard(message: Any) -> None:
            nonlocal seen
            del message
            seen += 1

        links = [await Connection.open(url, Subjects("bench"), k) for k in range(count)]
        for link in links:
            await link.nc.subscribe(subject, cb=heard)
            await link.nc.flush()
        ready.value = time.monotonic()
        while seen < count * wanted:
            await asyncio.sleep(0.002)
        done.value = time.monotonic()
        for link in links:
            await link.close()

    asyncio.run(work())


def fan_out(folder: Path, spec: str, count: int, connections: int, rounds: int) -> dict[str, Any]:
    """Increments through the outlet (stored, fenced, republished), and bare messages of the same bytes."""
    payload = quantizer(spec).encode(
        generator(0, "bench").standard_normal(SIZE, dtype=np.float32), derive(0, "bench")
    )
    frame = wire.encode(wire.Increment(1 << 63, 1, 1 << 63, False, payload))

    async def ours(url: str) -> float:
        async with await Connection.open(url, Subjects("bench"), "server") as link:
            outlet = Increments(link, 1)
            kept = {"subjects": [link.names.public(), link.names.private()], "allow_direct": True}
            await link.ensure(link.names.objects, kept)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QafelWarning)
                await outlet.open(1, Server(plan(1).job(SIZE), vectors.zeros(SIZE)))
            began = time.monotonic()
            for version in range(1, count + 1):
                await outlet.publish(version, frame)
            return began

    async def bare(url: str) -> float:
        async with await Connection.open(url, Subjects("bench"), "server") as link:
            began = time.monotonic()
            for _ in range(count):
                await link.nc.publish("raw.live", frame)
            await link.nc.flush()
            return began

    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    for k in range(rounds):
        for kind, work, subject in (("raw", bare, "raw.live"), ("ours", ours, Subjects("bench").live)):
            with Broker(folder / f"{kind}-{k}") as broker:
                ready, done = _fork.Value("d", 0.0), _fork.Value("d", 0.0)
                receivers = spawn(_receivers, broker.url, connections, count, subject, ready, done)
                _await(ready, receivers)
                began = asyncio.run(work(broker.url))
                _await(done, receivers)
                receivers.join()
                rates[kind].append(count * connections / (done.value - began))
    return {
        "increments": count,
        "connections": connections,
        "bytes": len(frame),
        "deliveries_per_second": statistics.median(rates["ours"]),
        "raw_per_second": statistics.median(rates["raw"]),
        "ratio": statistics.median(a / b for a, b in zip(rates["ours"], rates["raw"], strict=True)),
    }


def latency(folder: Path, per_second: float, seconds: float) -> dict[str, Any]:
    """From an upload to its acknowledgement, while the server folds what arrives."""
    count = int(per_second * seconds)
    chosen = plan(count)
    uploads = frames(chosen.job(SIZE), count)
    with Broker(folder / "broker") as broker:
        ready, done = _fork.Value("d", 0.0), _fork.Value("d", 0.0)
        server = spawn(_server, broker.url, folder / "server", chosen, ready, done)
        _await(ready, server)

        async def work() -> list[float]:
            async with await Connection.open(broker.url, Subjects("bench"), "publisher") as link:
                named = [(link.names.upload(client), frame) for client, frame in uploads]
                return await publish(link, named, pace=1 / per_second)

        took = sorted(asyncio.run(work()))
        _await(done, server)
        server.join()
    return {
        "updates_per_second": per_second,
        "uploads": count,
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[int(len(took) * 0.99)],
        "max_ms": 1000 * took[-1],
    }


def _crowd(url: str, first: int, count: int, seconds: float, ready: Any, heard: Any) -> None:
    """Connected clients: each follows, and asks for a lease and sends an update every few seconds."""
    job = plan(1 << 30).job(SIZE)

    async def one(number: int) -> None:
        link = await Connection.open(url, Subjects("bench"), number, patience=60)

        async def news(message: Any) -> None:
            del message
            heard.value += 1

        await link.nc.subscribe(link.names.live, cb=news)
        with ready.get_lock():
            ready.value += 1
        frame = frames_of(job, number)
        until = time.monotonic() + seconds + 20
        task = 0
        while time.monotonic() < until:
            await asyncio.sleep(5 + number % 50 / 10)
            await link.request(link.names.ask(number), msgspec.msgpack.encode(Ask(task)))
            await link.publish(link.names.upload(number), frame(task))
            task += 1

    async def everybody() -> None:
        await asyncio.gather(*(one(number) for number in range(first, first + count)))

    asyncio.run(everybody())


def frames_of(job: Job, client: int) -> Callable[[int], bytes]:
    """A client's updates."""
    delta = generator(0, "bench").standard_normal(job.size, dtype=np.float32)

    def frame(task: int) -> bytes:
        payload = job.quantizers()[0].encode(delta, derive(job.seed, client, task))
        return wire.encode(wire.Update(job.id, client, task, 0, payload))

    return frame


def crowd(folder: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Connected clients held for a while: the memory of the server and of the broker."""
    with Broker(folder / "broker") as broker:
        began, done = _fork.Value("d", 0.0), _fork.Value("d", 0.0)
        server = spawn(_server, broker.url, folder / "server", plan(1 << 30), began, done)
        _await(began, server)
        ready, heard = _fork.Value("q", 0), _fork.Value("q", 0)
        half = clients // 2
        groups = [
            spawn(_crowd, broker.url, first, count, seconds, ready, heard)
            for first, count in ((0, half), (half, clients - half))
        ]
        until = time.monotonic() + 120
        while ready.value < clients and time.monotonic() < until:
            time.sleep(0.05)
        held = time.monotonic()
        time.sleep(seconds)
        found = {
            "clients": clients,
            "connected": int(ready.value),
            "held_seconds": round(time.monotonic() - held, 1),
            "server_mb": _peak(server.pid),
            "broker_mb": _peak(broker.process.pid if broker.process else 0),
            "deliveries": int(heard.value),
            "alive": server.is_alive() and all(group.is_alive() for group in groups),
        }
        for process in (*groups, server):
            process.kill()
            process.join()
    return found


def _peak(pid: int) -> float:
    """The most memory a process had, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    return 0.0


def bench(scale: Scale) -> Iterator[tuple[str, dict[str, Any]]]:
    """All of it, part by part."""
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name:
        folder = Path(name)
        found = updates(folder / "updates", scale.uploads, scale.rounds, sync_always=False)
        yield "updates", found
        yield "synced", updates(folder / "synced", scale.synced, scale.rounds, sync_always=True)
        for spec in (SERVER_QUANTIZER, DEFAULT_QUANTIZER):
            where = folder / f"fan-{spec[:4]}"
            yield (
                f"fan-out {spec}",
                fan_out(where, spec, scale.increments, scale.connections, scale.rounds),
            )
        yield "latency", latency(folder / "latency", found["updates_per_second"] / 2, scale.latency_seconds)
        yield "clients", crowd(folder / "crowd", scale.clients, scale.held_seconds)
