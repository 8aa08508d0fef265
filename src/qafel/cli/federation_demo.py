"""A federation on this machine: a broker, a server and eight clients of different speeds, as processes.

One client is killed during training and one joins late; the others end with the server's x̂.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel.client import Task
from qafel.config import Job
from qafel.errors import QafelError
from qafel.federation import Broker, Joined, Plan, join, serve, watch
from qafel.federation.client.trainer import plan_training
from qafel.files import write_json
from qafel.runs.result import Result, load
from qafel.vectors import Vector

CLIENTS, KILLED, LATE = 8, 3, 7
PAUSE = 0.01
"""Seconds; client k pauses k + 1 times as long before every task."""
_fork = multiprocessing.get_context("fork")


def plan(uploads: int = 1500, seed: int = 0) -> Plan:
    """Handwritten digits on eight clients, each with a share of its own."""
    return Plan(
        name="demo",
        data="digits",
        model="mlp",
        partition="dirichlet:1",
        clients=CLIENTS,
        uploads=uploads,
        buffer_size=4,
        local_rate=0.1,
        batch_size=16,
        evaluate_every=max(1, uploads // 30),
        concurrency=CLIENTS,
        seed=seed,
    )


def _server(chosen: Plan, url: str, folder: Path) -> None:
    with contextlib.suppress(QafelError):
        serve(chosen, url, folder)
    os._exit(0)


def _client(chosen: Plan, url: str, folder: Path, number: int) -> None:
    learned: list[Any] = []

    def train(x: Vector, task: Task) -> Vector:
        if not learned:
            job = Job(size=x.size)
            learned.append(plan_training(chosen.to_toml(), job, number, {}).train)
        time.sleep(PAUSE * (number + 1))
        delta: Vector = learned[0](x, task)
        return delta

    done = join(chosen.name, url, client=number, train=train, state=folder / f"client-{number}")
    write_json(folder / f"client-{number}.json", done)
    os._exit(0)


def demo(
    folder: Path,
    uploads: int = 1500,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda what, share: None,  # noqa: ARG005
) -> tuple[Result, dict[int, Joined | None]]:
    """Run the demo; return the server's result and the summary of every client, None if it was killed."""
    import torch

    torch.set_num_threads(1)
    chosen = plan(uploads, seed)
    progress("starting a broker", 0.0)
    with Broker(folder / "broker") as broker:

        def start(target: Callable[..., None], *arguments: Any) -> Any:
            process = _fork.Process(target=target, args=(chosen, broker.url, *arguments), daemon=True)
            process.start()
            return process

        server = start(_server, folder / "server")
        clients = {k: start(_client, folder, k) for k in range(CLIENTS) if k != LATE}
        progress("starting a server and seven clients", 0.0)
        with contextlib.suppress(QafelError):
            for seen in watch(chosen.name, broker.url):
                share = seen["uploads"] / uploads
                progress(f"version {seen['version']}, {seen['leases'][0]} in training", share)
                if share > 0.3 and clients[KILLED].is_alive():
                    clients[KILLED].kill()
                    progress(f"client {KILLED} was killed", share)
                if share > 0.5 and LATE not in clients:
                    clients[LATE] = start(_client, folder, LATE)
        server.join()
        for process in clients.values():
            process.join(20)
    done: dict[int, Joined | None] = {}
    for number in sorted(clients):
        path = folder / f"client-{number}.json"
        done[number] = msgspec.json.decode(path.read_bytes(), type=Joined) if path.exists() else None
    return load(folder / "server"), done
