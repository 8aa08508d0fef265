"""What the scenarios of ``chaos`` are made of: a small job, and processes that can be killed."""

import asyncio
import ctypes
import faulthandler
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chaos_history import History, Told, check, events, ledger, link, told
from parties import SECRET
from qafel import vectors
from qafel.client import Task
from qafel.errors import FencedError, QafelError, UsageError
from qafel.federation import Broker, Plan, join, serve
from qafel.federation.connection import retry
from qafel.federation.entries import Decision, Stop
from qafel.streams import generator
from qafel.vectors import Vector

SIZE, CLIENTS, BUFFER = 2000, 6, 5
FENCED, GAVE_UP = 3, 2
"""Exit codes: another server has taken over; an error that a restart does not repair, as in the docs."""
ENDLESS = 1 << 30
PATIENCE = 150.0
"""The longest wait for anything, in seconds: a busy machine takes its time."""
fork = multiprocessing.get_context("fork")


def plan(uploads: int = ENDLESS, **changes: Any) -> Plan:
    """A small job that saves itself often; without a number of uploads it goes on until it is stopped."""
    chosen = {
        "name": "chaos",
        "uploads": uploads,
        "buffer_size": BUFFER,
        "evaluate_every": 1 << 39,
        "checkpoint_seconds": 0.03,
        "momentum": 0.3,
        "lease_seconds": 2.0,
    }
    return Plan(**{**chosen, **changes})


def start(size: int = SIZE) -> Vector:
    """x⁰."""
    x = vectors.zeros(size)
    x[:] = generator(0, "chaos").standard_normal(size, dtype=np.float32)
    return x


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


def spawn(target: Callable[..., None], *arguments: Any) -> Any:
    """A process of its own."""
    process = fork.Process(target=_quietly, args=(target, *arguments), daemon=True)
    process.start()
    return process


def _quietly(target: Callable[..., None], *arguments: Any) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends with its parent
    log = os.environ.get("QAFEL_CHAOS_LOG", os.devnull)
    sys.stderr = Path(log).open("a", encoding="utf-8")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, sys.stderr)
    code = 0
    try:
        target(*arguments)
    except (QafelError, OSError) as error:
        sys.stderr.write(f"{os.getpid()} {target.__name__}: {type(error).__name__}: {error}\n")
        code = FENCED if isinstance(error, FencedError) else GAVE_UP if isinstance(error, UsageError) else 1
    sys.stderr.flush()
    os._exit(code)


def run_server(
    url: str, folder: Path, history: Path, chosen: Plan, options: dict[str, Any], size: int = SIZE
) -> None:
    """The server, until it has ended."""
    note = History(history)

    def notice(event: str, **fields: Any) -> None:
        note(event, **fields)
        sys.stderr.write(f"{time.monotonic():.2f} server {os.getpid()} {event} {fields}\n")
        sys.stderr.flush()

    serve(chosen, url, folder, x=start(size), secret=SECRET, notice=notice, **options)


def train(x: Vector, task: Task) -> Vector:
    """Pulls the model towards a point of the client's own, and takes its time."""
    time.sleep(float(task.generator("pause").uniform(0.002, 0.03)))
    goal = generator(2, "goal", task.client).standard_normal(x.size, dtype=np.float32)
    return np.float32(0.05) * (goal - x)


def cheap(x: Vector, task: Task) -> Vector:
    """As little work as possible for a large model."""
    return np.float32(-0.001 * (1 + task.client)) * x


def run_client(
    url: str, name: str, folder: Path, history: Path, number: int, options: dict[str, Any]
) -> None:
    """A client that writes its history."""
    note = History(history)

    def notice(event: str, **fields: Any) -> None:
        note(event, **fields)
        sys.stderr.write(f"{time.monotonic():.2f} client {number} {event} {fields}\n")
        sys.stderr.flush()

    done = join(name, url, client=number, state=folder, notice=notice, **options)
    note("left", version=done.version, digest=done.digest, reason=done.reason)


def last_version(url: str, keys: Path | None = None) -> int:
    """The newest version in the broker; −1 if it does not answer."""

    async def look() -> int:
        async with await link(url, "chaos", keys) as one:
            stream = await one.stream(one.subjects.increments)
            return int(stream["state"]["last_seq"]) if stream else 0

    try:
        return asyncio.run(look())
    except QafelError:
        return -1


async def stop(url: str, keys: Path | None = None) -> None:
    """End the training, as an operator does."""
    async with await link(url, "chaos", keys) as one:
        data = Decision(Stop("enough")).to_bytes()
        await retry(lambda: one.publish(one.subjects.entry("server"), data))


def summary_of(folder: Path) -> dict[str, Any]:
    """summary.json, or nothing."""
    path = folder / "summary.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


class Crew:
    """A server and its clients; what fails is started again, as a service manager does (docs/federation.md).

    A process ends in failure by a signal or an error; one that gives up (exit code 2) stays down.
    ``down`` has those that are to stay down for now: client numbers, and "server".
    """

    def __init__(
        self,
        folder: Path,
        chosen: Plan,
        url: str,
        *,
        clients: int = CLIENTS,
        size: int = SIZE,
        keys: Path | None = None,
        trainer: Callable[[Vector, Task], Vector] = train,
        watch: str | None = None,
    ) -> None:
        self.folder, self.plan, self.url, self.size, self.keys = folder, chosen, url, size, keys
        self.watch, self.trainer, self.clients = watch or url, trainer, range(clients)
        self.leader = "server"
        """The server that is tended; any other is left alone."""
        self.down: set[int | str] = set()
        self.processes: dict[int | str, Any] = {}
        self.restarts = 0
        self.dead: list[Told] = []
        self.at: Callable[[str], None] = never
        self.tend()

    def path(self, who: int | str) -> Path:
        """The folder of a process."""
        return self.folder / (who if isinstance(who, str) else f"client-{who}")

    def history(self, who: int | str) -> Path:
        """The history of a process."""
        return self.folder / f"{who}.history"

    def noted(self, who: int | str, kind: str) -> int:
        """How often something was noted in a history."""
        return len(events(self.history(who), kind))

    def run(self, who: int | str, **options: Any) -> None:
        """Start a process."""
        if isinstance(who, str):
            options |= {"at": self.at} | ({"keys": self.keys / "chaos" / "server.key"} if self.keys else {})
            arguments = (self.url, self.path(who), self.history(who), self.plan, options, self.size)
            self.processes[who] = spawn(run_server, *arguments)
        else:
            options |= {"train": self.trainer}
            if self.keys:
                options["keys"] = self.keys / "chaos" / f"client-{who}.key"
            arguments = (self.url, self.plan.name, self.path(who), self.history(who), who, options)  # type: ignore[assignment]
            self.processes[who] = spawn(run_client, *arguments)

    def kill(self, *whom: int | str) -> None:
        """Kill with SIGKILL; ``tend`` starts them again."""
        for who in whom:
            self.processes[who].kill()
        for who in whom:
            self.processes[who].join()

    def tend(self) -> None:
        """Start what has not run yet, and again what has failed."""
        for who in (self.leader, *self.clients):
            process = self.processes.get(who)
            if who in self.down or (process is not None and process.is_alive()):
                continue
            if process is None:
                self.run(who)
            elif process.exitcode not in (0, GAVE_UP):
                self.restarts += 1
                self.run(who)

    @property
    def version(self) -> int:
        """The newest version in the broker."""
        return last_version(self.watch, self.keys)

    @property
    def serving(self) -> bool:
        """Whether the server has not ended."""
        process = self.processes[self.leader]
        return process.is_alive() or process.exitcode not in (0, GAVE_UP)

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Tend until a condition holds; False if it does not in time, or the server has ended."""
        end = time.monotonic() + seconds
        while not condition():
            self.tend()
            if time.monotonic() > end or (not self.serving and self.leader not in self.down):
                return condition()
            time.sleep(0.05)
        return True

    def progress(self, versions: int = 1) -> bool:
        """Tend until the version has advanced."""
        goal = max(0, self.version) + versions
        return self.until(lambda: self.version >= goal)

    def pause(self, low: float = 0.05, high: float = 0.4) -> None:
        """Tend for a moment."""
        end = time.monotonic() + random.uniform(low, high)
        self.until(lambda: time.monotonic() > end)

    def wipe_client(self, who: int) -> None:
        """Kill a client and delete its folder; its history so far is that of a dead one."""
        self.kill(who)
        shutil.rmtree(self.path(who))
        self.dead.append(told(self.history(who), who))
        self.history(who).rename(self.folder / f"{who}.dead-{len(self.dead)}")

    def finish(self, **options: Any) -> dict[str, Any]:
        """End the training, wait until all have ended, and check the histories."""
        self.down.clear()
        asyncio.run(stop(self.watch, self.keys))

        def running() -> list[int | str]:
            return [
                who
                for who, one in self.processes.items()
                if one.is_alive() or one.exitcode not in (0, GAVE_UP)
            ]

        self.until(lambda: not self.serving)
        end = time.monotonic() + PATIENCE / 2
        while running() and time.monotonic() < end:
            self.tend()
            time.sleep(0.02)
        stuck = running()
        for who in stuck:
            if self.processes[who].is_alive():
                os.kill(self.processes[who].pid, signal.SIGUSR1)  # it writes its stack to the log
                self.processes[who].join(1)
        self.kill(*stuck)
        summary = summary_of(self.path(self.leader))
        gave_up = [str(who) for who, one in self.processes.items() if one.exitcode == GAVE_UP]
        facts: dict[str, Any] = {"restarts": self.restarts, "gave up": gave_up}
        if not summary:
            return facts | {"stuck": len(stuck), "held": False}
        state, unread = asyncio.run(ledger(self.watch, self.plan, self.size, self.keys))
        histories = [told(self.history(who), who) for who in self.clients]
        checks = check(state, unread, summary, histories, dead=self.dead, stuck=len(stuck), **options)
        return facts | checks | {"held": checks["held"] and not gave_up}


def stop_and_copy(broker: Broker, copy: Path) -> None:
    """Copy a broker's store as a crash would leave it: the broker is stopped meanwhile."""
    assert broker.process is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        shutil.copytree(broker.folder / "store", copy)
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
