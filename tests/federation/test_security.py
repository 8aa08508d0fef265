"""A hostile client beside honest ones: with keys and TLS, over the real broker."""

import asyncio
import contextlib
import functools
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parties import SECRET, SIZE, Background, ended, link, plan, publish, run, server, start, update, upload
from qafel import vectors, wire
from qafel.buffer import MAX_RATIO, BoundedBuffer
from qafel.config import Job
from qafel.errors import BrokerError, ConfigError
from qafel.federation import Broker, Plan, join
from qafel.federation.broker import configuration
from qafel.federation.client.trainer import check_allowed, parse_plan, plan_training
from qafel.federation.keys import Keys
from qafel.federation.messages import Ask
from qafel.federation.objects import Manifest
from qafel.federation.server.state import FederationState
from qafel.server import Accepted, Dropped, Server
from qafel.sim import Settings, Simulation
from qafel.wire import Rejected

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder).new("t", range(8))
    return folder


@pytest.fixture
def locked(tmp_path: Path, keys: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", keys=keys) as broker:
        yield broker


def train(x: Any, task: Any) -> Any:
    return np.float32(-0.05) * x


def test_a_federation_runs_over_tls_with_keys(locked: Broker, keys: Path, tmp_path: Path) -> None:
    assert locked.url.startswith("tls://")
    serving = server(plan(uploads=12), locked.url, tmp_path / "server", keys=keys / "t" / "server.key")
    mine = tmp_path / "client"
    done = join("t", locked.url, train=train, keys=keys / "t" / "client-1.key", state=mine)
    assert done.client == 1
    assert done.digest == ended(serving).summary.digest[16:]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (mine, tmp_path / "server")] == [0o700, 0o700]
    secrets = [*mine.iterdir(), tmp_path / "server" / "holder"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_a_key_of_another_party_gets_one_sentence(locked: Broker, keys: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is the key of client 1 of 't', not of client 2 of 't'"):
        join("t", locked.url, client=2, train=train, keys=keys / "t" / "client-1.key")
    with pytest.raises(ConfigError, match=r"is the key of client 1 of 't', not of client 1 of 'u'"):
        join("u", locked.url, client=1, train=train, keys=keys / "t" / "client-1.key")
    with pytest.raises(ConfigError, match=r"is the key of client 1 of 't', not of the server of 't'"):
        ended(server(plan(), locked.url, tmp_path / "server", keys=keys / "t" / "client-1.key"))
    with pytest.raises(BrokerError, match="certificate"):
        join("t", locked.url, client=1, train=train)


async def garbage(url: str, keys: Path, job: Any, seconds: float) -> int:
    """Client 7 floods everything that its key opens, for a while."""
    sent = 0
    async with await link(url, 7, keys=keys / "t" / "client-7.key") as one:
        subjects, until = one.subjects, time.monotonic() + seconds
        stolen = upload(6, update(job, 6, 0))
        entries = [
            b"noise" * 20,
            stolen,
            upload(7, update(job, 7, (1 << 40) - 1), token=bytes(16)),
            upload(7, Manifest("0" * 32, 500, [1, 2, 3]).to_bytes(), token=bytes(16)),
        ]
        while time.monotonic() < until:
            for data in entries:
                await one.nc.publish(subjects.upload(7), data)
                await one.nc.publish(subjects.piece(7), bytes(1000))
                for session in range(20):
                    await one.nc.publish(subjects.ask(7), Ask(bytes([session]) * 16).to_bytes())
                sent += 22
            with contextlib.suppress(Exception):
                await one.nc.flush(timeout=1)
            await asyncio.sleep(0)
    return sent


def test_a_flood_of_one_client_stops_none_of_the_others(locked: Broker, keys: Path, tmp_path: Path) -> None:
    chosen = plan(uploads=60)
    job = chosen.job(SIZE)
    key = functools.partial("t/client-{}.key".format)
    serving = server(chosen, locked.url, tmp_path / "server", keys=keys / "t" / "server.key")
    flood = Background(lambda: run(garbage(locked.url, keys, job, 3.0)))
    together, first = threading.Barrier(3), {0, 1, 2}

    def trained(x: Any, task: Any) -> Any:
        if task.client in first:  # nobody is done before everybody has begun
            first.discard(task.client)
            together.wait()
        return train(x, task)

    honest = [
        Background(functools.partial(join, "t", locked.url, train=trained, keys=keys / key(k)))
        for k in range(3)
    ]
    done = [background.result() for background in honest]
    summary = ended(serving).summary
    assert flood.result() > 100
    assert summary.uploads == 60 == sum(one.counted for one in done)
    assert min(one.counted for one in done) > 0
    assert {one.digest for one in done} == {summary.digest[16:]}
    told = [reason for one in done for reason in one.rejected.values()]
    assert all(reason.startswith("the training had ended") for reason in told)
    assert summary.bytes_up < 60 * 10_000, "garbage is not counted"


@pytest.mark.parametrize("headers", [b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0\r\nStatus: 503\r\n\r\n"])
def test_headers_that_a_client_invents_stop_nobody(
    locked: Broker, keys: Path, tmp_path: Path, headers: bytes
) -> None:
    chosen = plan(uploads=8)
    job = chosen.job(SIZE)
    serving = server(chosen, locked.url, tmp_path / "server", keys=keys / "t" / "server.key")

    async def attack() -> None:
        async with await link(locked.url, 0, keys=keys / "t" / "client-0.key") as one:
            subjects = one.subjects
            for subject, data in (
                (subjects.piece(0), bytes(300)),
                (subjects.upload(0), upload(0, update(job, 0, 0))),
                (subjects.ask(0), Ask(bytes(16)).to_bytes()),
            ):
                head = f"HPUB {subject} {len(headers)} {len(headers) + len(data)}\r\n".encode()
                await one.nc._send_command(head + headers + data + b"\r\n")
                await one.nc._flush_pending()
            await one.nc.flush()

    honest = Background(lambda: join("t", locked.url, train=train, keys=keys / "t" / "client-1.key"))
    run(attack())
    assert honest.result().reason == "uploads"
    assert ended(serving).summary.uploads == 8


def test_poison_is_refused_and_a_step_that_would_diverge_drops_its_buffer() -> None:
    chosen = plan(buffer_size=2, max_norm=3e38, client_quantizer="identity", server_quantizer="identity")
    job = chosen.job(SIZE)
    state = FederationState(chosen, job, start(), SECRET)
    before = state.server.x.copy()
    events = [event for k in range(2) for event in state.take(k + 1, upload(k, _huge(job, k)), k)]
    assert [type(event) for event in events] == [Rejected, Rejected], "‖Δ‖ is beyond any limit"
    state = FederationState(chosen, job, start(), SECRET)
    state.server.aggregator.max_norm = np.inf  # type: ignore[attr-defined]
    events = [event for k in range(4) for event in state.take(k + 1, upload(k, _huge(job, k)), k)]
    assert [type(event) for event in events] == [Accepted, Accepted, Dropped, Accepted, Accepted, Dropped]
    assert np.array_equal(state.server.x, before)
    again = FederationState.from_state(chosen, job, state.state())
    frames = [(k, update(job, k, 1)) for k in range(2)]
    for one in (state, again):
        one.server.aggregator.max_norm = 1e6  # type: ignore[attr-defined]
        for k, frame in frames:
            one.take(10 + k, upload(k, frame), k)
    assert state.server.version == 1
    assert state.server.hidden.digest == again.server.hidden.digest


@pytest.mark.parametrize("name", ["adam", "adagrad", "yogi"])
def test_a_step_whose_optimizer_would_leave_float32_drops_its_buffer_and_can_be_saved(name: str) -> None:
    job = Job(
        size=SIZE, buffer_size=1, server_optimizer=f"{name}:rate=0.1",
        client_quantizer="identity", server_quantizer="identity",
    )  # fmt: skip
    one = Server(job, start(), drop_divergent=True)
    payload = np.full(SIZE, 1e20, np.float32).tobytes()  # its square is beyond float32, the step is not
    events = one.receive(wire.encode(wire.Update(job.id, 0, 0, 0, payload)))
    assert [type(event) for event in events] == [Accepted, Dropped]
    assert Server.from_state(one.state(), drop_divergent=True).version == 0


def _huge(job: Any, client: int) -> bytes:
    payload = np.full(job.size, 3e38, np.float32).tobytes()
    return wire.encode(wire.Update(job.id, client, 0, 0, payload))


def test_updates_far_above_the_median_norm_are_refused_and_nobody_can_be_locked_out() -> None:
    chosen = plan(buffer_size=4)
    job = chosen.job(SIZE)
    state = FederationState(chosen, job, start(), SECRET)
    sequence = iter(range(1, 1000))

    def send(client: int, task: int, scale: float) -> str:
        event = state.take(next(sequence), upload(client, update(job, client, task, scale=scale)), client)[0]
        return event.reason if isinstance(event, Rejected) else "counted"

    assert [send(k, 0, 0.01) for k in range(10)] == ["counted"] * 10
    assert [send(20, k, 1.0) for k in range(5)] == ["norm"] * 5, "100 times the median"
    assert send(21, 0, 0.2) == "counted", "20 times the median"
    hostile = [send(30 + k, 0, 1e-5) for k in range(4)]
    assert hostile == ["counted"] * 4
    assert [send(k, 1, 0.01) for k in range(10)] == ["counted"] * 10, "a minority cannot lock others out"
    # all updates become larger, as after a change of the rate: the limit follows
    late = [send(k, 2 + r, 1.0) for r in range(3) for k in range(10)]
    assert late[-10:] == ["counted"] * 10


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [
        ("os:abort", "cnn", "wants to call 'os:abort' for its data"),
        ("faces", "os:abort", "wants to call 'os:abort' for its model"),
        ("/etc/passwd", "cnn", "trains on the file '/etc/passwd'"),
        ("faces", "gpt5", "unknown model 'gpt5'"),
    ],
)
def test_a_client_runs_only_what_its_owner_allowed(data: str, model: str, said: str) -> None:
    text = f'data = "{data}"\nmodel = "{model}"\n'
    with pytest.raises(ConfigError, match=said):
        plan_training(text, plan().job(SIZE), 0, {})
    check_allowed(parse_plan('data = "a:b"\nmodel = "c:d"\n'), {}, ["a:b", "c:d"])
    check_allowed(parse_plan('data = "/etc/passwd"\n'), {"data": "mine.npz"}, [])


@pytest.mark.parametrize(
    "text",
    [f"uploads = {'9' * 5000}", f"data = {'[' * 5000}{']' * 5000}", "x" * 70_000, "uploads = {", "\x00"],
)
def test_a_plan_that_cannot_be_read_gets_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="the server's plan"):
        parse_plan(text)


def test_the_same_client_started_twice_is_told_so(broker: Broker, tmp_path: Path) -> None:
    serving = server(plan(uploads=30), broker.url, tmp_path / "server")
    goes_on, refused = threading.Event(), threading.Event()

    def held(x: Any, task: Any) -> Any:
        if task.task == 1:
            goes_on.set()
            assert refused.wait(240)
        return train(x, task)

    first = Background(lambda: join("t", broker.url, client=1, train=held, state=tmp_path / "c"))
    assert goes_on.wait(240)
    with pytest.raises(ConfigError, match="another process is running in"):
        join("t", broker.url, client=1, train=held, state=tmp_path / "c")
    with pytest.raises(ConfigError, match="another process runs as client 1"):
        join("t", broker.url, client=1, train=held)
    refused.set()
    done = first.result()
    assert done.counted == 30 == ended(serving).summary.uploads
    assert done.rejected == {}


def test_without_keys_a_broker_listens_on_loopback_only(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.168.1.4", "broker.example.org", "::"):
        with pytest.raises(ConfigError, match="a broker without keys listens on loopback only"):
            configuration(tmp_path, host=host)
    assert "127.0.0.1:4222" in configuration(tmp_path)


def test_anonymous_publishers_of_an_open_broker_still_need_a_lease(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=4)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server", x=vectors.copy(start()))

    async def pretend() -> None:
        async with await link(broker.url) as one:
            while await one.stream(one.subjects.log) is None:
                await asyncio.sleep(0.02)
            await one.publish(one.subjects.upload(9), upload(1, update(job, 9, 0)))

    run(pretend())
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
    assert ended(serving).summary.rejected == {"no_lease": 1}


DIGITS = {"data": "digits", "model": "mlp", "clients": 60, "local_rate": 0.1, "uploads": 600}
CANCER = {"data": "breast-cancer", "clients": 40}
MUSHROOMS = {"data": "mushrooms.libsvm.gz", "model": "logistic", "clients": 100, "local_rate": 2.0}
SKEWED = {"partition": "dirichlet:0.3"}
TASKS: dict[str, dict[str, Any]] = {
    "faces": {"uploads": 150},
    "faces, small rates": {"uploads": 150, "local_rate": 1e-4, "server_rate": 0.1},
    "digits": DIGITS,
    "digits, until it has converged": {**DIGITS, "partition": "dirichlet:1", "uploads": 2000},
    "digits, skewed": {**DIGITS, **SKEWED},
    "digits, one class for each client": {**DIGITS, "partition": "shards:1"},
    "digits, skewed, 5 epochs": {**DIGITS, **SKEWED, "epochs": 5},
    "digits, softmax": {**DIGITS, "model": "softmax"},
    "digits, softmax, skewed": {**DIGITS, **SKEWED, "model": "softmax"},
    "digits, cnn": {**DIGITS, "model": "cnn", "local_rate": 0.01},
    "breast-cancer, until it has converged": {
        **CANCER,
        "model": "logistic",
        "local_rate": 0.5,
        "uploads": 2000,
    },
    "breast-cancer, mlp": {**CANCER, "model": "mlp", "local_rate": 0.1, "uploads": 600},
    "smiles": {"data": "smiles32.npz", "uploads": 200},
    "cifar": {"data": "cifar10.npz", **SKEWED, "clients": 400, "uploads": 200},
    "mushrooms": {**MUSHROOMS, "partition": "consecutive", "steps": 10, "server_rate": 0.1, "uploads": 600},
}
"""Those whose data is a file need the folder that QAFEL_DATA names."""


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_no_honest_update_comes_near_the_norm_limit_of_a_federation_and_a_huge_one_is_refused(
    task: dict[str, Any],
) -> None:
    settings = Settings(concurrency=20, evaluate_every=1 << 30, **located(task))
    learner = settings.learner()
    simulation = Simulation(settings, learner, workers=1)
    job = simulation.server.job
    server = simulation.server = FederationState(Plan(), job, learner.x).server
    seen = watched(server)
    simulation.run()
    assert server.rejections == {}
    assert server.accepted == settings.uploads
    assert len(seen) > 0.9 * settings.uploads, "the limit was in force"
    ratio, largest = max(seen, key=lambda one: one[0])
    print(f"the largest norm was {ratio:.2f} times the median")
    assert 1 < ratio < MAX_RATIO / 3

    def send(scale: float) -> str:
        quantizer = job.quantizers()[0]
        payload = quantizer.encode(np.float32(scale) * quantizer.decode(largest.payload, job.size), 0)
        number = server.seen.next(largest.client)
        frame = wire.encode(wire.Update(job.id, largest.client, number, server.version, payload))
        event = server.receive(frame)[0]
        return event.reason if isinstance(event, Rejected) else "counted"

    assert [send(scale) for scale in (1, 1000, 1)] == ["counted", "norm", "counted"]


def located(task: dict[str, Any]) -> dict[str, Any]:
    """The task with the path of its data, if that is a file."""
    name, folder = task.get("data", ""), os.environ.get("QAFEL_DATA")
    if not Path(name).suffix:
        return task
    if not folder:
        pytest.skip("QAFEL_DATA does not name a folder with the real data")
    return {**task, "data": str(Path(folder) / name)}


def watched(server: Server) -> list[tuple[float, wire.Update]]:
    """The updates that come while the median is in force, and their norms in units of it."""
    buffer, seen = server.aggregator, list[tuple[float, wire.Update]]()
    assert isinstance(buffer, BoundedBuffer)
    add = buffer.add

    def watch(update: wire.Update, weight: float) -> None:
        if buffer.limit < buffer.max_norm:
            norm = np.linalg.norm(buffer.quantizer.decode(update.payload, server.job.size))
            seen.append((float(MAX_RATIO * norm / buffer.limit), update))
        add(update, weight)

    buffer.add = watch  # type: ignore[method-assign]
    return seen
