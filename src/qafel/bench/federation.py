"""Speed of a federation over a real broker, in units of the raw broker with the same bytes in the same run.

updates    from the publisher's acknowledgement through validation into the buffer and a checkpoint, with
           the default quantizers and with 4-bit QSGD
synced     the same with a broker that syncs every message to disk
fan-out    increments, stored and fenced, to many connections
loop       the whole loop of many clients at once: upload, acknowledgement, receipt with the next lease
latency    from an upload to its acknowledgement, at half load
flood      from a request to its answer, without and with another client that floods an open broker
clients    many connected clients that follow and ask; the memory of the server
"""

import asyncio
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel import vectors, wire
from qafel.bench.federation_flood import flooded
from qafel.bench.federation_load import (
    SIZE,
    consume,
    counter,
    loop_clients,
    milliseconds,
    moment,
    plan,
    publish,
    receive,
    run_clients,
    run_server,
    spawn,
    upload_rate,
    uploads,
    wait_for,
)
from qafel.bench.memory import kilobytes
from qafel.config import DEFAULT_QUANTIZER, SERVER_QUANTIZER
from qafel.errors import QafelWarning
from qafel.federation import Broker, Subjects
from qafel.federation.connection import Connection
from qafel.federation.server.increments import Increments
from qafel.federation.server.streams import open_keys
from qafel.quantizers import quantizer
from qafel.server import Server
from qafel.streams import derive, generator


class Scale(msgspec.Struct, frozen=True):
    """Sizes and durations of the parts."""

    uploads: int = 12_000
    synced: int = 1500
    increments: int = 400
    connections: int = 100
    rounds_of_loop: int = 12
    latency_seconds: float = 5.0
    clients: int = 1000
    held_seconds: float = 60.0
    rounds: int = 3
    flood_seconds: float = 5.0


DEFAULTS: dict[str, str] = {}
FOUR_BITS = {"client_quantizer": DEFAULT_QUANTIZER, "server_quantizer": DEFAULT_QUANTIZER}
PARTS = (
    "updates",
    "synced",
    f"fan-out {SERVER_QUANTIZER}",
    f"fan-out {DEFAULT_QUANTIZER}",
    "loop",
    "latency",
    "flood",
    "clients",
)
QUICK = Scale(600, 60, 20, 20, 2, 1.0, 40, 2.0, 1, 0.5)


def updates(
    folder: Path, count: int, rounds: int, kinds: Mapping[str, Mapping[str, str]], *, sync_always: bool
) -> dict[str, dict[str, Any]]:
    """Federations and the raw broker in turn, each with a store of its own; by name of the quantizers."""
    plans = {name: plan(count, **quantizers) for name, quantizers in kinds.items()}
    made = {name: uploads(chosen.job(SIZE), count) for name, chosen in plans.items()}
    rates: dict[str, dict[str, list[float]]] = {name: {"raw": [], "ours": []} for name in kinds}
    for k in range(rounds):
        for name, kind in itertools.product(kinds, ("raw", "ours")):
            where = folder / f"{name}-{kind}-{k}"
            with Broker(where / "broker", sync_always=sync_always) as broker:
                if kind == "raw":
                    consumer = partial(consume, broker.url, count)
                else:
                    consumer = partial(run_server, broker.url, where / "server", plans[name])
                rates[name][kind].append(upload_rate(consumer, broker.url, made[name], raw=kind == "raw"))
    return {
        name: {
            "uploads": count,
            "bytes": statistics.median(len(data) for _, data in made[name]),
            "sync": "always" if sync_always else "the broker's default",
            "updates_per_second": statistics.median(mine["ours"]),
            **_against_raw(mine),
        }
        for name, mine in rates.items()
    }


def fan_out(folder: Path, spec: str, count: int, connections: int, rounds: int) -> dict[str, Any]:
    """Increments (stored, fenced, republished), and bare messages of the same bytes."""
    payload = quantizer(spec).encode(
        generator(0, "bench").standard_normal(SIZE, dtype=np.float32), derive(0, "bench")
    )
    frame = wire.encode(wire.Increment(1 << 63, 1, 1 << 63, False, payload))

    async def ours(url: str) -> float:
        async with await Connection.open(url, Subjects("bench"), "server") as connection:
            increments = Increments(connection, 1)
            await open_keys(connection, 1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QafelWarning)
                await increments.open(1, Server(plan(1).job(SIZE), vectors.zeros(SIZE)))
            began = time.monotonic()
            for version in range(1, count + 1):
                await increments.publish({version: frame})
            return began

    async def bare(url: str) -> float:
        async with await Connection.open(url, Subjects("bench"), "server") as connection:
            began = time.monotonic()
            for _ in range(count):
                await connection.nc.publish("raw.live", frame)
            await connection.nc.flush()
            return began

    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    for k in range(rounds):
        for kind, work, subject in (("raw", bare, "raw.live"), ("ours", ours, Subjects("bench").live)):
            with Broker(folder / f"{kind}-{k}") as broker:
                ready, done = moment(), moment()
                receivers = spawn(receive, broker.url, connections, count, subject, ready, done)
                wait_for(ready, receivers)
                began = asyncio.run(work(broker.url))
                wait_for(done, receivers)
                receivers.join()
                rates[kind].append(count * connections / (done.value - began))
    return {
        "increments": count,
        "connections": connections,
        "bytes": len(frame),
        "deliveries_per_second": statistics.median(rates["ours"]),
        **_against_raw(rates),
    }


def _against_raw(rates: dict[str, list[float]]) -> dict[str, float]:
    """The raw broker's rate, and ours in units of it: medians over the rounds."""
    return {
        "raw_per_second": statistics.median(rates["raw"]),
        "ratio": statistics.median(a / b for a, b in zip(rates["ours"], rates["raw"], strict=True)),
    }


def loop(folder: Path, clients: int, turns: int, rounds: int) -> dict[str, Any]:
    """Clients that upload, wait for the receipt and the next lease, and upload again; and bare messages."""
    count = clients * turns
    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    slowest: dict[str, list[float]] = {"ours": [], "raw": []}
    half = clients // 2
    for k, kind in itertools.product(range(rounds), ("raw", "ours")):
        with Broker(folder / f"{kind}-{k}" / "broker") as broker:
            ready, done, began, ended, slow = (moment() for _ in range(5))
            where = folder / f"{kind}-{k}" / "server"
            if kind == "raw":
                server = spawn(consume, broker.url, count, ready, done, True)
            else:
                server = spawn(run_server, broker.url, where, plan(count), ready, done)
            wait_for(ready, server)
            connected = counter()
            groups = [
                spawn(loop_clients, broker.url, numbers, turns, kind == "raw", connected, began, ended, slow)
                for numbers in (range(half), range(half, clients))
            ]
            while connected.value < clients and all(group.is_alive() for group in groups):
                time.sleep(0.02)
            began.value = time.monotonic()
            wait_for(done, server, 300)
            for process in (*groups, server):
                process.join()
            rates[kind].append(count / (ended.value - began.value))
            slowest[kind].append(1000 * slow.value)
    return {
        "clients": clients,
        "uploads": count,
        "bytes": len(uploads(plan(1).job(SIZE), 1)[0][1]),
        "updates_per_second": statistics.median(rates["ours"]),
        **_against_raw(rates),
        "p99_ms": statistics.median(slowest["ours"]),
        "raw_p99_ms": statistics.median(slowest["raw"]),
    }


def latency(folder: Path, per_second: float, seconds: float) -> dict[str, Any]:
    """Time from an upload to its acknowledgement while the server processes the uploads."""
    count = int(per_second * seconds)
    chosen = plan(count)
    made = uploads(chosen.job(SIZE), count)
    with Broker(folder / "broker") as broker:
        ready, done = moment(), moment()
        server = spawn(run_server, broker.url, folder / "server", chosen, ready, done)
        wait_for(ready, server)

        async def work() -> list[float]:
            async with await Connection.open(broker.url, Subjects("bench"), "publisher") as connection:
                named = [(connection.subjects.upload(client), data) for client, data in made]
                return await publish(connection, named, pace=1 / per_second)

        took = asyncio.run(work())
        wait_for(done, server)
        server.join()
    return {"updates_per_second": per_second, "uploads": count, **milliseconds(took)}


def crowd(folder: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Connected clients held for a while: the memory of the server and of the broker."""
    with Broker(folder / "broker") as broker:
        began, done = moment(), moment()
        server = spawn(run_server, broker.url, folder / "server", plan(1 << 30), began, done)
        wait_for(began, server)
        ready, heard = counter(), counter()
        half = clients // 2
        groups = [
            spawn(run_clients, broker.url, first, count, seconds, ready, heard)
            for first, count in ((0, half), (half, clients - half))
        ]
        until = time.monotonic() + 120
        while ready.value < clients and time.monotonic() < until:
            time.sleep(0.05)
        held = time.monotonic()
        time.sleep(seconds)
        result = {
            "clients": clients,
            "connected": int(ready.value),
            "held_seconds": round(time.monotonic() - held, 1),
            "server_mb": kilobytes(server.pid, "status", "VmHWM:") / 1000,
            "broker_mb": kilobytes(broker.process.pid, "status", "VmHWM:") / 1000 if broker.process else 0.0,
            "deliveries": int(heard.value),
            "alive": server.is_alive() and all(group.is_alive() for group in groups),
        }
        for process in (*groups, server):
            process.kill()
            process.join()
    return result


def bench(scale: Scale) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run all parts; yields (name, numbers) of each."""
    with tempfile.TemporaryDirectory(prefix="qafel-bench-") as name:
        folder = Path(name)
        kinds = {"defaults": DEFAULTS, "4-bit QSGD": FOUR_BITS}
        measured = updates(folder / "updates", scale.uploads, scale.rounds, kinds, sync_always=False)
        yield "updates", measured
        kinds = {"defaults": DEFAULTS}
        yield "synced", updates(folder / "synced", scale.synced, scale.rounds, kinds, sync_always=True)
        for spec in (SERVER_QUANTIZER, DEFAULT_QUANTIZER):
            where = folder / f"fan-{spec[:4]}"
            yield (
                f"fan-out {spec}",
                fan_out(where, spec, scale.increments, scale.connections, scale.rounds),
            )
        yield "loop", loop(folder / "loop", scale.clients, scale.rounds_of_loop, scale.rounds)
        yield (
            "latency",
            latency(
                folder / "latency", measured["defaults"]["updates_per_second"] / 2, scale.latency_seconds
            ),
        )
        yield "flood", flooded(folder / "flood", scale.flood_seconds)
        yield "clients", crowd(folder / "crowd", scale.clients, scale.held_seconds)
