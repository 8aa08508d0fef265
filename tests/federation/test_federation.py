"""The same uploads, the same bytes; what was missed costs the fewest bytes; long frames travel in pieces."""

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parties import (
    SECRET,
    SIZE,
    Background,
    caught_up,
    ended,
    link,
    plan,
    publish,
    run,
    server,
    start,
    update,
    upload,
    version,
    wait_until,
)
from qafel import wire
from qafel.config import Job
from qafel.errors import ConfigError, StateError
from qafel.federation import Broker, Plan, join
from qafel.federation.messages import Welcome
from qafel.federation.objects import Manifest
from qafel.federation.server.state import FederationState
from qafel.federation.server.streams import open_keys
from qafel.server import Accepted, Server, Stepped
from qafel.sim import Settings, Simulation

pytestmark = pytest.mark.slow

QSGD = "qsgd:4,bucket=256,norm=max"


def many(job: Job, count: int, clients: int = 5) -> list[tuple[int, bytes]]:
    return [(k % clients, update(job, k % clients, k // clients)) for k in range(count)]


def processed(
    chosen: Plan, job: Job, uploads: list[tuple[int, bytes]]
) -> tuple[FederationState, dict[int, bytes]]:
    state, increments = FederationState(chosen, job, start(job.size), SECRET), {}
    for sequence, (client, frame) in enumerate(uploads, 1):
        for event in state.take(sequence, upload(client, frame), client):
            if isinstance(event, Stepped):
                increments[event.version] = event.frame
    return state, increments


@pytest.mark.parametrize("algorithm", ["qafel", "fedbuff", "naive"])
def test_the_simulators_uploads_lead_to_the_simulators_bytes(
    broker: Broker, tmp_path: Path, algorithm: str
) -> None:
    common: dict[str, Any] = {
        "data": "digits",
        "model": "softmax",
        "partition": "iid",
        "clients": 12,
        "algorithm": algorithm,
        "uploads": 60,
        "buffer_size": 4,
        "evaluate_every": 20,
    }
    settings = Settings(**common, arrivals="closed")
    learner = settings.learner()
    simulation = Simulation(settings, learner, workers=1)
    uploads, increments = [], {}
    receive = simulation.server.receive

    def recorded(frame: bytes, sender: int | None = None) -> Any:
        message = wire.decode(frame)
        assert isinstance(message, wire.Update)
        uploads.append((message.client, frame))
        events = receive(frame, sender)
        increments.update({event.version: event.frame for event in events if isinstance(event, Stepped)})
        return events

    simulation.server.receive = recorded  # type: ignore[method-assign]
    simulation.run()
    serving = server(Plan(name="t", **common), broker.url, tmp_path / "server", x=None)
    run(publish(broker.url, uploads))
    result = ended(serving)
    assert result.summary.digest == simulation.digest
    assert (result.summary.bytes_up, result.summary.bytes_down) == (
        simulation.tracker.totals.bytes_up,
        simulation.tracker.totals.bytes_down,
    )
    points = simulation.tracker.points
    assert [point.metrics for point in result.points] == [point.metrics for point in points]

    async def stored() -> dict[int, bytes]:
        async with await link(broker.url) as one:
            messages = [await one.get(one.subjects.increments, v) for v in increments]
            return {message.sequence: message.data for message in messages if message}

    kept = run(stored())
    assert kept
    assert all(increments[v] == data for v, data in kept.items())
    assert (tmp_path / "server" / "model.safetensors").exists()


def test_missing_five_increments_costs_five_and_being_away_for_long_costs_a_snapshot(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=4 * 60, server_quantizer=QSGD, client_quantizer=QSGD)
    job = chosen.job(SIZE)
    uploads = many(job, chosen.uploads)
    serving = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, uploads[: 4 * 20]))
    run(version(broker.url, 20))
    client = run(caught_up(broker.url, job, 900, _folder(tmp_path)))
    assert client.core.version == 20
    run(publish(broker.url, uploads[4 * 20 : 4 * 25]))
    run(version(broker.url, 25))
    again = run(caught_up(broker.url, job, 900, _folder(tmp_path)))
    frame = len(wire.encode(wire.Increment(job.id, 25, 1 << 63, False, b""))) + 1600
    assert (again.core.version, again.follower.increments, again.follower.snapshots) == (25, 5, 0)
    assert again.follower.bytes_down < 5 * frame
    run(publish(broker.url, uploads[4 * 25 :]))
    result = ended(serving)
    away = run(caught_up(broker.url, job, 900, _folder(tmp_path)))
    assert (away.core.version, away.follower.snapshots) == (60, 1)
    whole = 4 * SIZE + 100
    assert away.follower.bytes_down <= whole + away.follower.increments * frame
    assert away.follower.increments * frame <= 2 * whole
    newcomer = run(caught_up(broker.url, job, 901))
    assert newcomer.core.hidden.digest == away.core.hidden.digest
    assert f"{away.core.hidden.digest:016x}" == result.summary.digest[16:]


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "client"
    folder.mkdir(exist_ok=True)
    return folder


def test_without_broadcast_clients_fetch_what_they_missed_when_they_start(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=40, downlink="catch-up", server_quantizer=QSGD)

    def train(x: Any, task: Any) -> Any:
        return np.float32(-0.1) * x

    serving = server(chosen, broker.url, tmp_path / "server")
    done = [Background(functools.partial(join, "t", broker.url, client=k, train=train)) for k in range(3)]
    joined = [background.result() for background in done]
    summary = ended(serving).summary
    assert {client.digest for client in joined} == {summary.digest[16:]}
    assert summary.downlink == "catch-up"
    fetched = sum(client.bytes_down for client in joined)
    assert 0 < summary.bytes_down <= fetched
    increment = summary.bytes_up / summary.uploads
    assert fetched < 3 * (4 * SIZE + 100) + 3 * 10 * 1.3 * increment


@pytest.mark.parametrize("quantizer", [QSGD, "deadzone:step=1.8", "qsgd:8,bucket=256,norm=max"])
def test_without_broadcast_no_client_downloads_more_than_a_model_and_a_quarter(
    broker: Broker, tmp_path: Path, quantizer: str
) -> None:
    steps = 24
    chosen = plan(uploads=4 * steps, downlink="catch-up", server_quantizer=quantizer, client_quantizer=QSGD)
    job = chosen.job(SIZE)
    uploads = many(job, chosen.uploads)
    serving = server(chosen, broker.url, tmp_path / "server")
    whole, downloads = Server(job, start()).hidden.snapshot_bytes(job.id), []
    for step in range(steps):
        run(publish(broker.url, uploads[4 * step : 4 * step + 4]))
        run(version(broker.url, step + 1))
        downloads.append(run(caught_up(broker.url, job, 900 + step)))
        if step % 5 == 4:  # this one was away for five steps
            downloads.append(run(caught_up(broker.url, job, 900, _folder(tmp_path))))
    digest = ended(serving).summary.digest[16:]
    assert f"{run(caught_up(broker.url, job, 999)).core.hidden.digest:016x}" == digest
    assert max(client.follower.bytes_down for client in downloads) <= 1.25 * whole


def test_without_broadcast_a_damaged_increment_stops_nobody(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=24, downlink="catch-up", server_quantizer=QSGD, checkpoint_seconds=0.1)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server")

    async def damage() -> None:
        """Write something else than version 1 under its number."""
        async with await link(broker.url) as one:
            while not (stream := await one.stream(one.subjects.increments)):
                await asyncio.sleep(0.01)
            headers = {"Nats-Expected-Last-Sequence": "0"}
            await one.publish(stream["config"]["subjects"][0], b"damaged", headers=headers)

    run(damage())
    run(publish(broker.url, many(job, 4)))
    joined = join("t", broker.url, client=77, train=lambda x, task: np.float32(-0.1) * x)
    assert joined.digest == ended(serving).summary.digest[16:]


def test_a_federation_of_another_format_is_refused_in_one_sentence(broker: Broker, tmp_path: Path) -> None:
    async def write() -> None:
        async with await link(broker.url) as one:
            await open_keys(one, 1)
            newer = wire.seal(Welcome.MAGIC, Welcome.FORMAT + 1, b"whatever")
            await one.publish(one.subjects.public("welcome"), newer)

    run(write())
    with pytest.raises(ConfigError, match=r"runs another version: .* this version of qafel reads"):
        join("t", broker.url, client=0, train=lambda x, task: x)
    with pytest.raises(
        ConfigError, match=r"is of another version .* remove it with qafel federation delete t"
    ):
        ended(server(plan(), broker.url, tmp_path / "server"))


def test_a_client_whose_hidden_state_is_not_the_servers_resyncs(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=40)
    job = chosen.job(SIZE)
    uploads = many(job, 40)
    serving = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, uploads[:20]))
    run(version(broker.url, 5))

    async def drift() -> Any:
        async with await link(broker.url, 7) as one:
            from qafel.federation import FederationClient

            member = FederationClient(one, job, 7, lambda x, task: x)
            await member.follower.catch_up()
            member.core.hidden._x[0] += 1
            member.core.hidden._set(member.core.hidden._x, member.core.version)
            await publish(broker.url, uploads[20:])
            await version(broker.url, 10)
            await member.follower.catch_up()
            return member

    member = run(drift())
    result = ended(serving)
    assert member.follower.resyncs == 1
    assert f"{member.core.hidden.digest:016x}" == result.summary.digest[16:]


@pytest.mark.parametrize("quantizer", ["identity", "qsgd:8,bucket=256,norm=max"])
def test_frames_beyond_the_payload_limit_travel_in_pieces(tmp_path: Path, quantizer: str) -> None:
    size = 300_000
    with Broker(tmp_path / "broker", max_payload=65536) as broker:
        chosen = plan(uploads=12, buffer_size=4, server_quantizer=quantizer, client_quantizer=quantizer)
        serving = server(chosen, broker.url, tmp_path / "server", x=start(size))

        def train(x: Any, task: Any) -> Any:
            return task.generator().standard_normal(x.size, dtype=np.float32) * np.float32(0.01)

        done = join("t", broker.url, client=3, train=train, state=tmp_path / "client")
        result = ended(serving)
        assert done.tasks >= 12
        assert done.digest == result.summary.digest[16:]
        assert result.summary.bytes_up > 12 * 290_000

        async def left() -> int:
            async with await link(broker.url) as one:
                stream = await one.stream(one.subjects.pieces)
                return int(stream["state"]["messages"]) if stream else 0

        pieces = 300_000 * (4 if quantizer == "identity" else 1) // 32768 + 1
        assert run(left()) <= pieces * (done.tasks - 12)


def test_hostile_manifests_are_refused_without_being_believed(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=8)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server")
    hostile = [
        Manifest("0" * 32, 1 << 33, [1, 2]).to_bytes(),
        Manifest("0" * 32, 500, [7]).to_bytes(),
        b"QM" + bytes(40),
    ]
    run(publish(broker.url, [(1, data) for data in hostile] + many(job, 8)))
    result = ended(serving)
    assert result.summary.rejected == {"missing_pieces": 3}
    assert result.summary.uploads == 8


def test_an_update_of_another_client_a_huge_one_a_repeated_one_and_one_without_a_lease_are_refused(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=8, max_norm=10.0)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server")
    good = many(job, 8)
    stolen = upload(1, good[1][1])

    async def odd() -> None:
        async with await link(broker.url) as one:
            while await one.stream(one.subjects.log) is None:
                await asyncio.sleep(0.02)
            for data in (
                stolen,
                upload(2, update(job, 2, 1 << 39), token=bytes(16)),
                upload(2, update(job, 2, 5), task=4),
                b"",
                b"QU",
                b"noise" * 100,
            ):
                await one.publish(one.subjects.upload(2), data)

    run(publish(broker.url, [good[0], (7, good[1][1]), (3, update(job, 3, 0, scale=100.0)), good[0]]))
    run(odd())
    run(publish(broker.url, [(k, update(job, k, 50)) for k in range(10, 17)]))
    assert ended(serving).summary.rejected == {
        "wrong_sender": 1,
        "norm": 1,
        "duplicate": 1,
        "no_lease": 3,
        "malformed": 3,
    }


def test_an_update_from_before_its_lease_is_refused(tmp_path: Path) -> None:
    chosen = plan()
    job = chosen.job(SIZE)
    state = FederationState(chosen, job, start(), SECRET)
    for k in range(8):
        state.take(k + 1, upload(k, update(job, k, 0)), k)
    assert state.server.version == 2
    events = state.take(9, upload(9, update(job, 9, 0, version=1), lease=2), 9)
    assert [event.reason for event in events if isinstance(event, wire.Rejected)] == ["no_lease"]
    assert isinstance(state.take(10, upload(9, update(job, 9, 1, version=2), lease=1), 9)[0], Accepted)


@pytest.mark.parametrize("lost", ["broker", "folder"])
def test_a_damaged_checkpoint_gives_way_to_the_other_copy(broker: Broker, tmp_path: Path, lost: str) -> None:
    chosen = plan(uploads=40)
    job = chosen.job(SIZE)
    uploads = many(job, 40)
    state, _ = processed(chosen, job, uploads)

    class EnoughError(Exception):
        pass

    saves: list[str] = []

    def at(step: str) -> None:
        saves.append(step)
        if saves.count("after journal") == 3:
            raise EnoughError

    serving = server(chosen, broker.url, tmp_path / "server", at=at)
    for part in range(3):
        run(publish(broker.url, uploads[8 * part : 8 * part + 8]))
        wait_until(lambda part=part: saves.count("after journal") > part)  # type: ignore[misc]
    with pytest.raises(EnoughError):
        serving.result()

    async def damage() -> None:
        async with await link(broker.url) as one:
            key = one.subjects.private("checkpoint")
            await one.publish(key, bytes(8) + b"damaged")

    if lost == "broker":
        run(damage())
    else:
        (tmp_path / "server" / "checkpoint.bin").write_bytes(b"damaged")
    again = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, uploads[24:]))
    assert ended(again).summary.digest[16:] == f"{state.server.hidden.digest:016x}"


def test_a_checkpoint_that_the_increments_contradict_is_not_believed(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=40)
    job = chosen.job(SIZE)
    uploads = many(job, 40)
    other, _ = processed(chosen, job, uploads[20:40])

    class EnoughError(Exception):
        pass

    published = []

    def at(step: str) -> None:
        if step == "after publish":
            published.append(step)
        if step == "before checkpoint" and published:
            raise EnoughError

    serving = server(chosen, broker.url, tmp_path / "server", at=at)
    run(publish(broker.url, uploads[:20]))
    with pytest.raises(EnoughError):
        serving.result()
    (tmp_path / "server" / "journal.bin").unlink(missing_ok=True)
    (tmp_path / "server" / "checkpoint.bin").write_bytes(other.state())
    events: list[tuple[str, dict[str, Any]]] = []
    again = server(
        chosen, broker.url, tmp_path / "server", notice=lambda event, **f: events.append((event, f))
    )
    run(publish(broker.url, uploads[20:]))
    state, _ = processed(chosen, job, uploads)
    assert ended(again).summary.digest[16:] == f"{state.server.hidden.digest:016x}"
    assert ("checkpoint refused", {"detail": "it contradicts the increments"}) in events


def test_another_job_under_the_name_of_a_running_one_is_refused_and_a_finished_name_is_free(
    broker: Broker, tmp_path: Path
) -> None:
    first = server(plan(uploads=4), broker.url, tmp_path / "one")
    job = plan(uploads=4).job(SIZE)
    run(publish(broker.url, many(job, 2)))
    with pytest.raises(ConfigError, match="another server leads the federation 't'"):
        server(plan(uploads=4), broker.url, tmp_path / "two").result()
    run(publish(broker.url, many(job, 4)[2:]))
    first.result()
    with pytest.raises(ConfigError, match="has ended"):
        server(plan(uploads=4), broker.url, tmp_path / "one").result()
    events: list[str] = []
    again = server(
        plan(uploads=5), broker.url, tmp_path / "three", notice=lambda event, **fields: events.append(event)
    )
    wait_until(lambda: "ready" in events)
    run(publish(broker.url, many(plan(uploads=5).job(SIZE), 5)))
    assert ended(again).summary.uploads == 5


def test_entries_that_are_gone_without_a_checkpoint_are_said_to_be_gone(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=8)
    job = chosen.job(SIZE)

    async def lose() -> None:
        async with await link(broker.url) as one:
            subjects = one.subjects
            await one.ensure(subjects.log, {"subjects": [subjects.upload(), subjects.entry()]})
            for client, frame in many(job, 6):
                await one.publish(subjects.upload(client), upload(client, frame))
            await one.purge(subjects.log, below=4)

    run(lose())
    with pytest.raises(StateError, match="the log starts at entry 4"):
        server(chosen, broker.url, tmp_path / "server").result()


def test_a_python_client_with_a_model_of_its_own_takes_fifteen_lines(broker: Broker, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "federation.md"
    text = guide.read_text(encoding="utf-8")
    code = text[text.index("```python\n# client.py") :].split("```")[1].removeprefix("python\n")
    assert len(code.strip().splitlines()) <= 15
    chosen = plan(name="mine", uploads=20, buffer_size=4)
    serving = server(chosen, broker.url, tmp_path / "server", x=start(50))
    space: dict[str, Any] = {}
    code = code.replace("nats://127.0.0.1:4222", broker.url).replace(
        "runs/client-7", str(tmp_path / "client")
    )
    exec(compile(code, "client.py", "exec"), space)
    assert space["done"].digest == ended(serving).summary.digest[16:]


def test_a_client_that_nobody_answers_waits_and_is_not_lost(broker: Broker, tmp_path: Path) -> None:
    """The client is there first; the server comes later."""

    def train(x: Any, task: Any) -> Any:
        return np.float32(-0.1) * x

    waits = threading.Event()

    def notice(event: str, **fields: Any) -> None:
        if event == "waiting":
            waits.set()

    early = Background(lambda: join("t", broker.url, client=1, train=train, notice=notice))
    assert waits.wait(240)
    chosen = plan(uploads=12)
    result = ended(server(chosen, broker.url, tmp_path / "server"))
    assert early.result().digest == result.summary.digest[16:]
