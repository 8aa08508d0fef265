"""Scenarios in which processes are killed and started again."""

import asyncio
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from chaos_history import link
from chaos_parts import (
    BUFFER,
    CLIENTS,
    PATIENCE,
    SIZE,
    Crew,
    Killed,
    fork,
    never,
    plan,
    run_server,
    spawn,
    start,
    summary_of,
)
from parties import SECRET, upload
from qafel import wire
from qafel.client import Advanced
from qafel.config import Job
from qafel.errors import QafelError
from qafel.federation import Broker, FederationClient, Plan, Subjects
from qafel.federation.broker import free_port
from qafel.federation.connection import Connection, retry
from qafel.federation.keys import Keys
from qafel.federation.server.state import FederationState
from qafel.runs.tracker import model_digest
from qafel.server import Stepped
from qafel.streams import derive, generator

STEPS = (
    "after read",
    "before journal",
    "after journal",
    "before publish",
    "after publish",
    "before checkpoint",
    "after checkpoint",
    "before purge",
    "after purge",
)
Entry = tuple[int, bytes]


def updates(job: Job, count: int) -> list[Entry]:
    """``count`` uploads in order, and here and there one that is damaged or repeated."""
    quantizer = job.quantizers()[0]
    uploads: list[Entry] = []
    for k in range(count):
        client, task = k % CLIENTS, k // CLIENTS
        delta = generator(1, "delta", k).standard_normal(SIZE, dtype=np.float32) * np.float32(0.01)
        payload = quantizer.encode(delta, derive(job.seed, "chaos", k))
        version = max(0, k // BUFFER - k % 3)
        data = upload(client, wire.encode(wire.Update(job.id, client, task, version, payload)))
        uploads.append((client, data))
        if k % 10 == 5:
            uploads.append((client, data[:-1] + bytes([data[-1] ^ 1])))
        if k % 15 == 7:
            uploads.append(uploads[k // 2])
    return uploads


def untouched(job: Job, chosen: Plan, uploads: list[Entry]) -> tuple[FederationState, dict[int, bytes]]:
    """Where a run ends that nobody touched, and its increments."""
    state, increments = FederationState(chosen, job, start(), SECRET), {}
    for sequence, (client, data) in enumerate(uploads, 1):
        for event in state.take(sequence, data, client):
            if isinstance(event, Stepped):
                increments[event.version] = event.frame
        if state.tracker.reason:
            break
    return state, increments


def _run_publisher(url: str, uploads: list[Entry], allowed: Any) -> None:
    """Publishes uploads in order, as many as are allowed so far, each until it is acknowledged."""

    async def publish() -> None:
        one = await Connection.open(url, Subjects("chaos"), "publisher", patience=60)
        for k, (client, data) in enumerate(uploads):
            while k >= allowed.value:
                await asyncio.sleep(0.005)
            subject = one.subjects.upload(client)
            await retry(lambda subject=subject, data=data: one.publish(subject, data, timeout=2))  # type: ignore[misc]
        await one.close()

    asyncio.run(publish())


def _run_listener(url: str, until: int, answer: Path, job: Job, client: int) -> None:
    """Follows x̂ from the beginning to a version; writes down its digest and those of the increments."""

    async def listen() -> None:
        one = await Connection.open(url, Subjects("chaos"), client, patience=60)
        member = FederationClient(one, job, client, lambda x, task: x)
        heard, apply = dict[int, int](), member.follower._apply

        def note(frame: bytes) -> Any:
            event = apply(frame)
            if isinstance(event, Advanced):
                heard[member.core.version] = wire.fingerprint(frame)
            return event

        member.follower._apply = note  # type: ignore[method-assign]
        await member.follower.subscribe()
        follow = asyncio.create_task(member.follower.follow())
        while member.core.version < until and not follow.done():
            await asyncio.sleep(0.02)
        end = f"{member.core.version} {member.core.hidden.digest:016x}"
        answer.write_text(json.dumps([end, heard]), encoding="utf-8")
        follow.cancel()
        await one.close()

    asyncio.run(listen())


async def _stored_increments(url: str, last: int) -> dict[int, bytes]:
    """The increments that the broker still has."""
    stored = {}
    async with await link(url, "chaos") as one:
        for version in range(1, last + 1):
            message = await one.get(one.subjects.increments, version)
            if message is not None:
                stored[version] = message.data
    return stored


class _Ordered:
    """A server that is killed and started again while uploads come in one order."""

    def __init__(self, folder: Path, broker: Broker, chosen: Plan, uploads: list[Entry]) -> None:
        self.folder, self.broker, self.plan, self.uploads = folder, broker, chosen, uploads
        self.allowed = fork.Value("q", 30)
        self.at_steps = dict.fromkeys(STEPS, 0)
        self.at_random = self.brokers = self.early = 0
        self.publisher = spawn(_run_publisher, broker.url, uploads, self.allowed)

    def server(self, at: Any = never) -> Any:
        arguments = (self.broker.url, self.folder / "server", self.folder / "server.history", self.plan)
        return spawn(run_server, *arguments, {"at": at})

    def kill(self, k: int) -> None:
        """The k-th kill: at a step of the commit sequence, or at random."""
        step, planned = STEPS[k // 2 % len(STEPS)], k % 2 == 0
        server = self.server(Killed(step, random.randint(1, 3)) if planned else never)
        if not planned:
            server.join(random.uniform(0.01, 0.5))
            server.kill()
            self.at_random += 1
        end = time.monotonic() + PATIENCE
        while server.is_alive() and time.monotonic() < end:
            self.allowed.value = min(self.allowed.value + 1, len(self.uploads) - 20)
            server.join(0.01)
        self.early += server.exitcode != -signal.SIGKILL
        if planned and server.exitcode == -signal.SIGKILL:
            self.at_steps[step] += 1
        server.kill()
        server.join()
        if k % 10 == 9:
            self.broker.kill()
            self.broker.start()
            self.brokers += 1


def ordered(folder: Path, kills: int) -> dict[str, Any]:
    """The server is killed ``kills`` times, the broker every tenth time."""
    count = 60 + 20 * kills
    chosen = plan(count)
    job = chosen.job(SIZE)
    uploads = updates(job, count)
    state, increments = untouched(job, chosen, uploads)
    with Broker(folder / "broker") as broker:
        one = _Ordered(folder, broker, chosen, uploads)
        listener = spawn(_run_listener, broker.url, state.server.version, folder / "listener", job, 1000)
        for k in range(kills):
            one.kill(k)
        one.allowed.value = len(uploads)
        server = one.server()
        server.join(PATIENCE)
        listener.join(PATIENCE)
        stuck = server.is_alive() + listener.is_alive() + (server.exitcode != 0)
        for process in (server, listener, one.publisher):
            process.kill()
            process.join()
        stored = asyncio.run(_stored_increments(broker.url, state.server.version))
    summary = summary_of(folder / "server")
    path = folder / "listener"
    end, heard = json.loads(path.read_bytes()) if path.exists() else ("", {})
    marks = {str(version): wire.fingerprint(frame) for version, frame in increments.items()}
    accepted = summary.get("uploads", -1)
    facts = {
        "x and x̂ as untouched": summary.get("digest") == model_digest(state.server),
        "increments as untouched": bool(heard)
        and all(increments[v] == data for v, data in stored.items())
        and all(marks[v] == mark for v, mark in heard.items()),
        "listener's x̂ as untouched": end == f"{state.server.version} {state.server.hidden.digest:016x}",
    }
    return {
        "faults": {**one.at_steps, "at random": one.at_random, "broker": one.brokers},
        "accepted": accepted,
        "lost": max(0, count - accepted),
        "twice": max(0, accepted - count),
        "stuck": stuck,
        "ended before it was killed": one.early,
        "increments compared": len(heard.keys() | {str(version) for version in stored}),
        **facts,
        "held": all(facts.values()) and accepted == count and not stuck and not one.early,
    }


def clients(folder: Path, kills: int, keys: Path | None = None) -> dict[str, Any]:
    """Clients, the server and the broker are killed in turn, and now and then all at once."""
    counted = dict.fromkeys(("client", "server", "broker", "all"), 0)
    with Broker(folder / "broker", keys=keys) as broker:
        crew = Crew(folder, plan(), broker.url, keys=keys)
        for k in range(kills):
            crew.pause()
            who = ("client", "client", "server", "client", "broker", "client", "server", "all")[k % 8]
            counted[who] += 1
            if who in ("broker", "all"):
                broker.kill()
            if who in ("server", "all"):
                crew.kill("server")
            crew.kill(
                *crew.clients if who == "all" else [random.randrange(CLIENTS)] if who == "client" else []
            )
            if who in ("broker", "all"):
                broker.start()
        return {"faults": counted} | crew.finish()


def tls(folder: Path, kills: int) -> dict[str, Any]:
    """As ``clients``, with keys and TLS."""
    Keys(folder / "keys").new("chaos", range(CLIENTS))
    return clients(folder, kills, folder / "keys")


class Node(Broker):
    """One node of a cluster of brokers."""

    def __init__(self, folder: Path, number: int, ports: list[int]) -> None:
        super().__init__(folder)
        routes = [f"nats://{self.host}:{port}" for port in ports]
        place = f'name: "qafel", listen: "{self.host}:{ports[number]}", routes: {json.dumps(routes)}'
        own = self._text.replace('server_name: "qafel"', f'server_name: "node-{number}"')
        self._text = f"{own}cluster {{ {place} }}\n"


def _cluster_answers(url: str) -> bool:
    async def ask() -> bool:
        async with await link(url, "chaos") as one:
            answer = await one.call("$JS.API.INFO")
            return "error" not in answer

    try:
        return asyncio.run(ask())
    except QafelError:
        return False


def replicas(folder: Path, kills: int) -> dict[str, Any]:
    """Three brokers with three copies of everything; the nodes are killed in turn, one at a time."""
    ports = [free_port() for _ in range(3)]
    nodes = [Node(folder / f"node-{k}", k, ports) for k in range(3)]
    url = ",".join(node.url for node in nodes)
    try:
        for node in nodes:
            node.start()
        end = time.monotonic() + PATIENCE
        while not _cluster_answers(url) and time.monotonic() < end:
            time.sleep(0.1)
        crew = Crew(folder, plan(replicas=3), url)
        killed, went = 0, crew.progress(2)
        for k in range(kills):
            nodes[k % 3].kill()
            killed += 1
            went = went and crew.progress(2)
            crew.kill("server")
            went = went and crew.progress(2)
            nodes[k % 3].start()
            went = went and crew.progress(2)
        checks = crew.finish()
        faults = {"node": killed, "server": killed}
        return {"faults": faults, "went on": went} | checks | {"held": checks["held"] and went}
    finally:
        for node in nodes:
            node.stop()
