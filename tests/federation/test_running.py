"""How a federation runs and ends: one client or many, evaluation, weights, signals, standbys, exit codes."""

import asyncio
import functools
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parties import (
    SECRET,
    SIZE,
    Background,
    ended,
    plan,
    publish,
    run,
    server,
    start,
    update,
    upload,
    wait_until,
)
from qafel.config import Job
from qafel.errors import ConfigError, StateError
from qafel.federation import Broker, Plan, Report, Subjects, join, serve, watch
from qafel.federation.broker import free_port
from qafel.federation.client.folder import ClientFolder
from qafel.federation.connection import Connection
from qafel.federation.entries import Upload
from qafel.federation.server.state import FederationState

pytestmark = pytest.mark.slow


def train(x: Any, task: Any) -> Any:
    return np.float32(-0.05) * x


@pytest.mark.parametrize(
    ("clients", "buffer_size", "concurrency"), [(1, 1, 1), (1, 4, 3), (3, 2, 1), (4, 3, 8)]
)
def test_a_federation_ends_for_any_number_of_clients_and_any_buffer(
    broker: Broker, tmp_path: Path, clients: int, buffer_size: int, concurrency: int
) -> None:
    """One fast client alone passes the number of entries that the log holds of it several times over."""
    size = 200_000 if clients == 1 else SIZE
    chosen = plan(uploads=90, buffer_size=buffer_size, concurrency=concurrency, checkpoint_seconds=3600.0)
    serving = server(chosen, broker.url, tmp_path / "server", x=start(size))
    together = threading.Barrier(clients if clients <= concurrency else 1)

    def trained(x: Any, task: Any) -> Any:
        if task.task == 0:  # where all can train at a time, nobody is done before everybody has begun
            together.wait()
        return train(x, task)

    joined = [
        Background(functools.partial(join, "t", broker.url, client=k, train=trained)) for k in range(clients)
    ]
    done = [background.result() for background in joined]
    summary = ended(serving).summary
    assert sum(one.counted for one in done) == summary.uploads == 90
    assert {one.digest for one in done} == {summary.digest[16:]}
    assert summary.staleness["mean"] <= min(clients, concurrency) / buffer_size
    if clients <= concurrency:  # otherwise it depends on who connects first; test_leases.py has that
        assert all(one.counted >= 90 // clients // 4 for one in done)


def test_a_client_that_leaves_gives_its_lease_back(broker: Broker, tmp_path: Path) -> None:
    serving = server(plan(uploads=12, concurrency=1, lease_seconds=3600.0), broker.url, tmp_path / "server")
    assert join("t", broker.url, client=1, train=train, tasks=3).counted == 3
    assert join("t", broker.url, client=2, train=train).counted == 9
    assert ended(serving).summary.uploads == 12


def test_clients_evaluate_where_the_data_is(broker: Broker, tmp_path: Path) -> None:
    """The server has no test set: clients send sums over their held-out samples, and the target ends it."""

    def evaluate(x: Any, samples: int) -> Report:
        return Report(samples, {"loss": samples * float(np.square(x).mean()), "accuracy": samples * 0.9})

    chosen = plan(uploads=400, evaluate_on="clients", evaluate_every=20, target=0.9)
    serving = server(chosen, broker.url, tmp_path / "server")
    joined = [
        Background(
            functools.partial(
                join,
                "t",
                broker.url,
                client=k,
                train=train,
                evaluate=functools.partial(evaluate, samples=10 + k),
            )
        )
        for k in range(3)
    ]
    for background in joined:
        background.result()
    result = ended(serving)
    assert result.summary.reason == "target"
    assert [point.uploads for point in result.points] == [20, 40, 60, 80]
    losses = [point.metrics["loss"] for point in result.points]
    assert losses == sorted(losses, reverse=True)
    assert all(point.metrics["accuracy"] == pytest.approx(0.9) for point in result.points)


def test_the_plans_model_is_evaluated_on_the_clients_own_samples(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(
        data="digits",
        model="softmax",
        partition="iid",
        clients=9,
        uploads=60,
        local_rate=0.5,
        evaluate_on="clients",
        evaluate_every=20,
        weighting="samples",
    )
    serving = server(chosen, broker.url, tmp_path / "server", x=None)
    joined = [Background(functools.partial(join, "t", broker.url, client=k)) for k in range(2)]
    for background in joined:
        background.result()
    points = ended(serving).points
    assert len(points) == 3
    assert points[-1].metrics["accuracy"] > points[0].metrics["accuracy"] > 0.1


def test_updates_weigh_as_many_samples_as_their_clients_say_up_to_a_bound() -> None:
    chosen = plan(weighting="samples", max_samples=30, buffer_size=2, momentum=0.0, algorithm="fedbuff")
    job: Job = chosen.job(SIZE)
    state = FederationState(chosen, job, start(), SECRET)
    before = state.server.x.copy()
    deltas = []
    for k, samples in enumerate((10, 1 << 39)):
        frame = update(job, k, 0)
        deltas.append(job.quantizers()[0].decode(frame[-4 * SIZE :], SIZE))
        state.take(k + 1, upload(k, frame, samples=samples), k)
    expected = before + (10 * deltas[0] + 30 * deltas[1]) / 40
    assert np.allclose(state.server.x, expected, atol=1e-6)


def test_a_loss_that_explodes_ends_the_training_and_says_so(broker: Broker, tmp_path: Path) -> None:
    losses = iter([2.3, 2.0, 900.0, 25_587.0, 25_587.0, 25_587.0, 25_587.0, 25_587.0])
    chosen = plan(uploads=400, evaluate_every=8)
    serving = server(
        chosen, broker.url, tmp_path / "server", evaluate=lambda x: {"loss": next(losses, 25_587.0)}
    )
    done = join("t", broker.url, client=1, train=train)
    summary = ended(serving).summary
    assert summary.reason.startswith("diverged: training diverged: the loss on the held-out samples is")
    assert done.reason == summary.reason
    assert summary.uploads < 100


def test_a_standby_of_nothing_and_a_broker_that_lost_everything_are_said_to_be_so(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qafel.federation.server.STANDBY_PATIENCE", 0.5)
    with pytest.raises(ConfigError, match="the broker has no federation 't'; start its first server"):
        server(plan(), broker.url, tmp_path / "standby", standby=True).result()

    class EnoughError(Exception):
        pass

    def at(step: str) -> None:
        if step == "after publish":
            raise EnoughError

    events: list[str] = []
    first = server(
        plan(), broker.url, tmp_path / "one", at=at, notice=lambda event, **_: events.append(event)
    )
    wait_until(lambda: "ready" in events)
    standby = server(
        plan(), broker.url, tmp_path / "two", standby=True, notice=lambda event, **_: events.append(event)
    )
    wait_until(lambda: "waits while another server leads" in events)
    job = plan().job(SIZE)
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
    with pytest.raises(EnoughError):
        first.result()
    broker.kill()
    subprocess.run(["rm", "-rf", str(broker.folder / "store")], check=True)
    broker.start()
    with pytest.raises(StateError, match="a standby has no copy of it; start the server"):
        standby.result()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qafel", *arguments]


def test_sigterm_saves_and_ends_well_and_the_same_command_goes_on(broker: Broker, tmp_path: Path) -> None:
    job = tmp_path / "JOB.toml"
    job.write_text(
        'name = "digits"\ndata = "digits"\nmodel = "softmax"\npartition = "iid"\nclients = 9\nuploads = 150\n'
        "buffer_size = 4\nevaluate_every = 100\nlocal_rate = 0.5\n",
        encoding="utf-8",
    )
    state = str(tmp_path / "server")
    serve = command("serve", str(job), "--broker", broker.url, "--state", state, "--json")
    join_one = command("join", "digits", "--broker", broker.url, "--client", "1", "--json", "-v")
    client = subprocess.Popen(join_one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert client.stderr is not None
        while '"counted"' not in client.stderr.readline():
            assert client.poll() is None
        server.send_signal(signal.SIGTERM)
        out, log = server.communicate(timeout=120)
        assert (server.returncode, out) == (0, "")
        assert '"event":"resigned"' in log
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen = 0
        while seen < 5:
            seen += '"counted"' in client.stderr.readline()
        client.send_signal(signal.SIGTERM)
        out = client.communicate(timeout=120)[0]
        assert client.returncode == 0
        done = json.loads(out)
        assert done["counted"] == done["tasks"]
        client = subprocess.Popen(join_one, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        summary = json.loads(server.communicate(timeout=200)[0])["summary"]
        assert summary["uploads"] == 150
        last = json.loads(client.communicate(timeout=100)[0])
        assert done["counted"] + last["counted"] == 150
        assert last["digest"] == summary["digest"][16:]
    finally:
        for process in (client, server):
            process.kill()
            process.communicate()


def test_sigterm_ends_those_who_wait(broker: Broker, tmp_path: Path) -> None:
    """A client without a server, a standby, and a client whose server is gone with its last update."""
    events: list[str] = []
    lonely = subprocess.Popen(
        command("join", "nobody", "--broker", broker.url), stderr=subprocess.PIPE, text=True
    )
    serving = server(plan(), broker.url, tmp_path / "one", notice=lambda event, **_: events.append(event))
    wait_until(lambda: "ready" in events)
    job = tmp_path / "JOB.toml"
    job.write_text('name = "t"\n', encoding="utf-8")
    standby = subprocess.Popen(
        command("serve", str(job), "--broker", broker.url, "--state", str(tmp_path / "two"), "--standby"),
        stderr=subprocess.PIPE,
        text=True,
    )
    for process, sign in ((lonely, "nobody"), (standby, "waits while another server leads")):
        assert process.stderr is not None
        while sign not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        assert process.returncode == 0
    run(publish(broker.url, [(k, update(plan().job(SIZE), k, 0)) for k in range(40)]))
    ended(serving)


def test_an_update_whose_lease_nobody_knows_any_more_is_given_up(broker: Broker, tmp_path: Path) -> None:
    """Broker and server have lost their disks; the client's update has a token of the lost key."""
    folder = tmp_path / "client"
    folder.mkdir()
    frame = update(plan().job(SIZE), 1, 5)
    kept = Upload(5, 0, bytes(16), frame)
    ClientFolder(folder, lambda event, **_: None).keep(plan().job(SIZE), kept)
    serving = server(plan(uploads=6), broker.url, tmp_path / "server")
    done = join("t", broker.url, client=1, train=train, state=folder)
    assert done.rejected[5] == "no_lease: the server did not grant the lease of this update"
    assert done.counted == 6 == ended(serving).summary.uploads


def test_exit_codes_tell_a_supervisor_whether_to_start_again(tmp_path: Path, broker: Broker) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    began = time.monotonic()
    gone = subprocess.run(command("join", "--broker", nowhere), capture_output=True, text=True, timeout=120)
    assert gone.returncode == 75, "no broker: it may come back"
    assert "error: no broker at" in gone.stderr
    assert "Traceback" not in gone.stderr
    assert time.monotonic() - began > 5, "it has waited for a while"
    wrong = subprocess.run(
        command("serve", "--set", "buffer_size=0", "--broker", broker.url), capture_output=True, timeout=120
    )
    assert wrong.returncode == 2, "this stays wrong"


@pytest.mark.slow
def test_a_client_ends_if_the_training_has_ended_and_nobody_can_bring_it_into_sync(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qafel.federation.client.MAX_WAIT", 3.0)
    serving = server(plan(uploads=8), broker.url, tmp_path / "server")
    join("t", broker.url, client=0, train=train)
    ended(serving)

    async def lose_the_snapshot() -> None:
        async with await Connection.open(broker.url, Subjects("t"), "server") as connection:
            subjects = connection.subjects
            await connection.purge(subjects.keys, subject=subjects.public("snapshot"))

    run(lose_the_snapshot())
    late = Background(functools.partial(join, "t", broker.url, client=1, train=train))
    assert late.result().reason == "uploads"


def test_serve_join_and_status_work_inside_a_running_event_loop(broker: Broker, tmp_path: Path) -> None:
    """As in a notebook, whose cells run inside of a loop."""
    x = np.zeros(2000, np.float32)
    plan = Plan(name="cells", uploads=20, buffer_size=2, evaluate_every=10)

    async def cell() -> tuple[Any, Any, list[dict[str, Any]]]:
        with ThreadPoolExecutor(1) as pool:
            client = pool.submit(join, "cells", broker.url, train=lambda hidden, task: 0.1 * (1 - hidden))
            result = serve(
                plan, broker.url, tmp_path / "server", x=x, evaluate=lambda x: {"loss": float(x @ x)}
            )
            return result, client.result(), list(watch("cells", broker.url))

    result, done, seen = asyncio.run(cell())
    assert result.summary.uploads == 20
    assert done.counted >= 1
    assert seen[-1]["reason"] == "uploads"
