"""What the scenarios of ``chaos`` are made of: a small job, its uploads, and processes that
can be killed.
"""

import asyncio
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qafel import vectors, wire
from qafel.client import Task
from qafel.config import Job
from qafel.errors import FencedError, QafelError
from qafel.federation import FederationClient, Plan, Subjects, join, serve
from qafel.federation.checkpoints import Checkpoints
from qafel.federation.nats import Connection, retry
from qafel.federation.state import FederationState
from qafel.runs.folder import RunFolder
from qafel.runs.tracker import model_digest
from qafel.server import Stepped
from qafel.streams import derive, generator
from qafel.vectors import Vector

SIZE, CLIENTS, BUFFER = 2000, 6, 5
STEPS = (
    "after read",
    "before publish",
    "after publish",
    "before checkpoint",
    "after checkpoint",
    "before purge",
    "after purge",
)
FENCED = 3
PATIENCE = 240.0
"""The longest wait for anything, in seconds: a busy machine takes its time."""
fork = multiprocessing.get_context("fork")


def plan(uploads: int, name: str = "chaos") -> Plan:
    """A small job that saves itself often."""
    return Plan(
        name=name,
        uploads=uploads,
        buffer_size=BUFFER,
        evaluate_every=1 << 39,
        checkpoint_seconds=0.03,
        momentum=0.3,
        lease_seconds=2.0,
    )


def start() -> Vector:
    """x⁰."""
    x = vectors.zeros(SIZE)
    x[:] = generator(0, "chaos").standard_normal(SIZE, dtype=np.float32)
    return x


def updates(job: Job, count: int) -> list[tuple[int, bytes]]:
    """(client, frame) of ``count`` updates, and here and there one that is damaged or repeated."""
    quantizer = job.quantizers()[0]
    found: list[tuple[int, bytes]] = []
    for k in range(count):
        client, task = k % CLIENTS, k // CLIENTS
        delta = generator(1, "delta", k).standard_normal(SIZE, dtype=np.float32) * np.float32(0.01)
        payload = quantizer.encode(delta, derive(job.seed, "chaos", k))
        version = max(0, k // BUFFER - k % 3)
        frame = wire.encode(wire.Update(job.id, client, task, version, payload))
        found.append((client, frame))
        if k % 10 == 5:
            found.append((client, frame[:-1] + bytes([frame[-1] ^ 1])))
        if k % 15 == 7:
            found.append(found[k // 2])
    return found


def untouched(
    job: Job, chosen: Plan, uploads: list[tuple[int, bytes]]
) -> tuple[FederationState, dict[int, bytes]]:
    """Where a run ends that nobody touched, and its increments."""
    state, increments = FederationState(chosen, job, start()), {}
    for sequence, (client, frame) in enumerate(uploads, 1):
        for event in state.take(sequence, client, frame):
            if isinstance(event, Stepped):
                increments[event.version] = event.frame
        if state.tracker.reason:
            break
    return state, increments


class Killed:
    """Dies at the n-th time that a step is reached."""

    def __init__(self, step: str, count: int) -> None:
        self.step, self.count = step, count

    def __call__(self, step: str) -> None:
        """A step of the commit sequence."""
        if step == self.step:
            self.count -= 1
            if self.count <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def never(step: str) -> None:
    """Nobody dies."""
    del step


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; RuntimeError if it never does."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("waited in vain")
        time.sleep(0.05)


def spawn(target: Callable[..., None], *arguments: Any) -> Any:
    """A process of its own."""
    process = fork.Process(target=_quietly, args=(target, *arguments), daemon=True)
    process.start()
    return process


def _quietly(target: Callable[..., None], *arguments: Any) -> None:
    log = os.environ.get("QAFEL_CHAOS_LOG", os.devnull)
    sys.stderr = Path(log).open("a", encoding="utf-8")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, sys.stderr)
    try:
        target(*arguments)
    except FencedError:
        os._exit(FENCED)
    except (QafelError, OSError) as error:
        sys.stderr.write(f"{target.__name__}: {error}\n")
        os._exit(1)
    os._exit(0)


def leave(members: list[Any]) -> int:
    """Wait for the clients to leave, a minute in all; how many did not and were killed."""
    until, stuck = time.monotonic() + 60, 0
    for member in members:
        member.join(max(0.0, until - time.monotonic()))
        if member.is_alive():
            stuck += 1
            os.kill(member.pid, signal.SIGUSR1)  # it writes its stack to the log
            member.join(1)
            member.kill()
    return stuck


def run_server(
    url: str, folder: Path, chosen: Plan, at: Callable[[str], None], standby: bool = False
) -> None:
    """The server, until it has ended."""

    def journal(event: str, **fields: Any) -> None:
        sys.stderr.write(f"{os.getpid()} {event} {fields}\n")
        sys.stderr.flush()

    serve(chosen, url, folder, x=start(), at=at, standby=standby, journal=journal)


def run_publisher(url: str, uploads: list[tuple[int, bytes]], allowed: Any, sent: Any) -> None:
    """Publishes uploads in order, as many as are allowed so far, each until it is acknowledged."""

    async def publish() -> None:
        link = await Connection.open(url, Subjects("chaos"), "publisher", patience=60)
        for k, (client, frame) in enumerate(uploads):
            while k >= allowed.value:
                await asyncio.sleep(0.005)
            subject = link.subjects.upload(client)
            await retry(lambda subject=subject, frame=frame: link.publish(subject, frame, timeout=2))  # type: ignore[misc]
            sent.value = k + 1
        await link.close()

    asyncio.run(publish())


def run_listener(url: str, until: int, answer: Path, job: Job, client: int) -> None:
    """Follows x̂ from the beginning to a version, and writes down its digest."""

    async def listen() -> None:
        link = await Connection.open(url, Subjects("chaos"), client, patience=60)
        member = FederationClient(link, job, client, lambda x, task: x)
        await link.nc.subscribe(link.subjects.live, cb=member._receive)
        follow = asyncio.create_task(member.follow())
        while member.core.version < until and not follow.done():
            await asyncio.sleep(0.02)
        answer.write_text(f"{member.core.version} {member.core.hidden.digest:016x}", encoding="utf-8")
        follow.cancel()
        await link.close()

    asyncio.run(listen())


async def stored_increments(url: str, name: str, last: int) -> dict[int, bytes]:
    """The increments that the broker still has."""
    link = await Connection.open(url, Subjects(name), "reader")
    found = {}
    for version in range(1, last + 1):
        message = await link.get(link.subjects.increments, version)
        if message is not None:
            found[version] = message.data
    await link.close()
    return found


def digest_of(state: FederationState) -> str:
    """Subjects x and x̂."""
    return model_digest(state.server)


def summary_of(folder: Path) -> dict[str, Any]:
    """summary.json, or nothing."""
    path = folder / "summary.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _train(x: Vector, task: Task) -> Vector:
    """Pulls the model towards a point of the client's own, and takes its time."""
    time.sleep(float(task.generator("pause").uniform(0.002, 0.03)))
    goal = generator(2, "goal", task.client).standard_normal(x.size, dtype=np.float32)
    return np.float32(0.05) * (goal - x)


def run_client(url: str, folder: Path, number: int) -> None:
    """A client that notes what was acknowledged, and where it ended."""
    log = os.open(folder / f"client-{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def journal(event: str, **fields: Any) -> None:
        if event == "acknowledged":
            os.write(log, f"{fields['task']}\n".encode())

    done = join("chaos", url, client=number, train=_train, state=folder / f"client-{number}", journal=journal)
    (folder / f"client-{number}.digest").write_text(f"{done.version} {done.digest}", encoding="utf-8")


async def ledger(url: str, chosen: Plan) -> tuple[FederationState, set[tuple[int, int]]]:
    """What the server counted, and the updates it did not read because it had ended."""
    link = await Connection.open(url, Subjects(chosen.name), "reader")
    with tempfile.TemporaryDirectory() as nothing:
        saved = await Checkpoints(link, RunFolder(Path(nothing))).load(limit=1 << 30)
    state = FederationState.from_state(chosen, chosen.job(SIZE), saved[0])
    found = await link.stream(link.subjects.uploads)
    unread = set()
    for sequence in range(state.sequence + 1, found["state"]["last_seq"] + 1 if found else 0):
        message = await link.get(link.subjects.uploads, sequence)
        update = wire.decode(message.data) if message else None
        if isinstance(update, wire.Update):
            unread.add((update.client, update.task))
    await link.close()
    return state, unread


def last_version(url: str) -> int:
    """The newest version in the broker."""

    async def look() -> int:
        link = await Connection.open(url, Subjects("chaos"), "watcher")
        found = await link.stream(link.subjects.increments)
        await link.close()
        return int(found["state"]["last_seq"]) if found else 0

    return asyncio.run(look())


async def first_version(url: str) -> int:
    """The oldest version in the broker."""
    link = await Connection.open(url, Subjects("chaos"), "watcher")
    found = await link.stream(link.subjects.increments)
    await link.close()
    return int(found["state"]["first_seq"]) if found else 0
