"""Hostile values, moments of failure and ends that the other tests do not reach."""

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parties import SECRET, SIZE, Background, ended, link, plan, run, server, start, until, update, upload
from qafel.errors import BrokerError, ConfigError, FrameError
from qafel.federation import Broker, FederationServer, Report, join, objects, operate
from qafel.federation.client.folder import ClientFolder
from qafel.federation.connection import Connection
from qafel.federation.entries import Decision, Stop, Upload, token
from qafel.federation.messages import Answer, Ask
from qafel.federation.objects import Manifest
from qafel.federation.server.checkpoints import Checkpoints, Record, replay
from qafel.federation.server.leader import FencedKey, Leadership
from qafel.federation.server.reader import LogReader
from qafel.federation.server.state import FederationState
from qafel.federation.server.streams import open_keys
from qafel.federation.subjects import owner
from qafel.federation.waiting import give_up
from test_leases import World


def train(x: Any, task: Any) -> Any:
    return np.float32(-0.05) * x


async def log_exists(one: Any) -> None:
    while await one.stream(one.subjects.log) is None:
        await asyncio.sleep(0.02)


def started(patch: pytest.MonkeyPatch) -> list[FederationServer]:
    """The servers that are started from now on."""
    servers, init = list[FederationServer](), FederationServer.__init__

    def noted(self: FederationServer, *values: Any, **options: Any) -> None:
        init(self, *values, **options)
        servers.append(self)

    patch.setattr(FederationServer, "__init__", noted)
    return servers


# --- hostile values ---


def test_a_client_number_that_no_client_can_have_is_no_client() -> None:
    assert owner(f"qafel.t.up.{(1 << 64) - 1}") == (1 << 64) - 1
    assert owner(f"qafel.t.up.{1 << 64}") is None


@pytest.mark.slow
def test_requests_that_come_while_others_are_answered_do_not_stop_the_server(tmp_path: Path) -> None:
    """The frames are longer than a message, so the pieces of an upload that is asked for again are purged."""
    with Broker(tmp_path / "broker", max_payload=65536) as broker:
        chosen = plan(uploads=4, client_quantizer="identity", server_quantizer="identity")
        serving = server(chosen, broker.url, tmp_path / "server", x=start(20_000))

        async def ask_in_vain() -> None:
            async with await link(broker.url) as one:
                await log_exists(one)
                await one.publish(one.subjects.entry("operator"), b"noise")
                asked = 0
                while asked < 300 and not serving.ended:
                    with contextlib.suppress(BrokerError):  # as many as there is room for
                        await one.publish(one.subjects.ask(7), Ask(bytes(16), task=0, sequence=1).to_bytes())
                        asked += 1

        run(ask_in_vain())
        assert join("t", broker.url, client=1, train=train).counted == 4
        ended(serving)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (Report(0, {"accuracy": 0.0}), "Expected `int` >= 1"),
        (Report(3, {"a" * 65: 1.0}), "Expected `str` of length <= 64"),
        (Report(3, {f"m{k}": 1.0 for k in range(33)}), "Expected `object` of length <= 32"),
        (Report(3, {f"{'ä' * 60}{k}": 1.0 for k in range(32)}), " bytes, and the limit is 3000"),
        (Report(3, {"accuracy": None}), "not 'NoneType'"),  # type: ignore[dict-item]
        ({"accuracy": 0.5}, "has no attribute 'samples'"),
    ],
)
def test_a_report_that_the_server_could_not_read_is_refused_where_it_is_made(
    report: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=r"evaluate returned .* which cannot be sent: ") as raised:
        Report.checked(report)
    assert sentence in str(raised.value)


def test_numbers_of_numpy_in_a_report_are_sent() -> None:
    sums: Any = {"accuracy": np.float32(0.5)}
    checked = Report(np.int64(3), sums).checked()  # type: ignore[arg-type]
    assert checked == Report(3, {"accuracy": 0.5})
    assert [type(checked.samples), *map(type, checked.sums.values())] == [int, float]


@pytest.mark.slow
def test_a_client_whose_report_cannot_be_sent_ends_and_says_so(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(evaluate_on="clients", evaluate_every=2)
    serving = server(chosen, broker.url, tmp_path / "server")
    with pytest.raises(ConfigError, match="evaluate returned Report"):
        join("t", broker.url, client=1, train=train, evaluate=lambda x: Report(0, {}))
    with pytest.raises(ConfigError, match="samples must be the number of this client's samples, got -1"):
        join("t", broker.url, client=2, train=train, samples=-1)
    operate.decide("t", broker.url, Stop("enough"))
    assert ended(serving).summary.rejected == {}


def test_a_federation_may_be_called_as_its_subjects_are() -> None:
    chosen = plan(name="entry")
    state = FederationState(chosen, chosen.job(SIZE), start(), SECRET)
    replay(state, Record(1, 1, "qafel.entry.up.0", upload(0, update(state.job, 0, 0))))
    assert state.last(0).task == 0


@pytest.mark.parametrize(
    "sums",
    [
        {"accuracy": 5.0, "moon": 1.0},
        {"moon": 1.0},
        {"accuracy": 1e308, "loss": 1.0},
        {"accuracy": -1e308, "loss": 1.0},
        {"accuracy": 5.0, "loss": 1e308},
    ],
)
def test_the_reports_of_one_client_neither_stop_the_server_nor_end_the_training(sums: Any) -> None:
    chosen = plan(uploads=1 << 30, evaluate_on="clients", evaluate_every=4, target=0.9)
    state = FederationState(chosen, chosen.job(SIZE), start(), SECRET)
    sequence = 0
    for task in range(12):
        for client in range(4):
            sequence += 1
            values = sums if client == 3 and task > 2 else {"accuracy": 5.0, "loss": 1.0}
            data = upload(client, update(state.job, client, task), report=Report(10, values))
            state.take(sequence, data, client)
    assert state.tracker.reason is None
    assert len(state.tracker.points) >= 10
    assert all(0.3 < point.metrics["accuracy"] < 0.7 for point in state.tracker.points)


@pytest.mark.slow
def test_a_manifest_that_names_a_piece_many_times_is_refused_unread(broker: Broker) -> None:
    async def work() -> None:
        async with await link(broker.url) as one:
            await one.ensure(one.subjects.pieces, {"subjects": [one.subjects.piece()], "allow_direct": True})
            piece = await one.publish(one.subjects.piece(7), b"")
            one.get = None  # type: ignore[method-assign,assignment]  # nothing is read
            manifest = Manifest("0" * 32, 500, [piece] * 3500)
            with pytest.raises(FrameError, match="names a piece twice"):
                await objects.get(one, one.subjects.pieces, one.subjects.piece(7), manifest, 500)

    run(work())


# --- ends and failures ---


@pytest.mark.slow
def test_a_stop_that_the_broker_did_not_take_is_written_again(broker: Broker, tmp_path: Path) -> None:
    """The broker is away when the time limit has passed: the training still ends."""
    tried: list[bytes] = []
    publish = Connection.publish

    async def once(self: Connection, subject: str, data: bytes, **options: Any) -> int:
        if subject.endswith(".entry.server") and not tried:
            tried.append(data)
            raise BrokerError("no answer")
        return await publish(self, subject, data, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "publish", once)
        serving = server(plan(uploads=1 << 30, time_limit=1.0), broker.url, tmp_path / "server")
        assert ended(serving).summary.reason == "time limit"
    assert tried


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qafel.errors.QafelWarning")
def test_a_federation_that_diverges_ends_and_says_so(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=1 << 30, buffer_size=1, server_quantizer="qsgd:2")
    serving = server(chosen, broker.url, tmp_path / "server")
    done = join("t", broker.url, train=train)
    assert done.reason is not None
    assert done.reason.startswith("diverged")
    assert ended(serving).summary.reason.startswith("diverged")


@pytest.mark.slow
def test_a_leader_renews_its_key_although_the_broker_fails_while_it_looks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement is lost; the key is read to see whose it is; and then the broker does not answer."""
    monkeypatch.setattr("qafel.federation.server.leader.RENEW", 0.05)

    async def work() -> None:
        async with await link(broker.url, "server") as one:
            await open_keys(one, 1)
            leadership = Leadership(one, "me", lambda: link(broker.url, "server"))
            await leadership.take(standby=False, again=False, waits=lambda: None)
            read, failed = FencedKey.read, threading.Event()

            async def fails(self: FencedKey) -> bytes | None:
                if threading.current_thread().name == "leadership" and not failed.is_set():
                    failed.set()
                    raise BrokerError("no answer")
                return await read(self)

            monkeypatch.setattr(FencedKey, "read", fails)
            subject = one.subjects.private("leader")
            await one.publish(subject, bytes(8) + b"me")  # as if its acknowledgement was lost
            while not failed.is_set():
                await asyncio.sleep(0.02)
            before = (await one.newest(one.subjects.keys, subject)).sequence  # type: ignore[union-attr]
            while (await one.newest(one.subjects.keys, subject)).sequence == before:  # type: ignore[union-attr]
                await asyncio.sleep(0.02)
            await leadership.release()

    run(work())


@pytest.mark.slow
def test_a_long_start_is_no_standstill(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives signs of life while it saves: saving a large state may take any time."""
    signs = 0
    alive, save = Leadership.alive, Checkpoints.save

    def noted(self: Leadership) -> None:
        nonlocal signs
        signs += 1
        alive(self)

    async def slow(self: Checkpoints, state: FederationState) -> None:
        goal = signs + 3
        await until(lambda: signs >= goal)
        await save(self, state)

    monkeypatch.setattr(Leadership, "alive", noted)
    monkeypatch.setattr(Checkpoints, "save", slow)
    serving = server(plan(uploads=4), broker.url, tmp_path / "server")
    joined = Background(lambda: join("t", broker.url, train=train))
    ended(serving)
    assert joined.result().counted == 4


@pytest.mark.slow
def test_a_reconnection_while_a_server_starts_is_noticed(broker: Broker, tmp_path: Path) -> None:
    events: list[str] = []

    def at(step: str) -> None:
        if step == "after checkpoint" and "again" not in events:
            events.append("again")
            servers[0]._connection.nc.stats["reconnects"] += 1

    def notice(event: str, **fields: Any) -> None:
        events.append(fields.get("detail", event))

    with pytest.MonkeyPatch.context() as patch:
        servers = started(patch)
        serving = server(plan(uploads=4), broker.url, tmp_path / "server", at=at, notice=notice)
        assert join("t", broker.url, train=train).counted == 4
        ended(serving)
    assert "the connection was lost; what the broker has is checked again" in events


@pytest.mark.slow
def test_a_standby_that_waits_ends_when_it_is_told_to(broker: Broker, tmp_path: Path) -> None:
    waits = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def notice(event: str, **fields: Any) -> None:
        if event.startswith("waits"):
            loops.append(asyncio.get_running_loop())
            waits.set()

    chosen = plan(uploads=4)
    serving = server(chosen, broker.url, tmp_path / "one")
    run(leads(broker.url))
    with pytest.MonkeyPatch.context() as patch:
        servers = started(patch)
        standby = server(chosen, broker.url, tmp_path / "two", standby=True, notice=notice)
        assert waits.wait(240)
    loops[0].call_soon_threadsafe(servers[0].stopping.set)
    assert standby.result() is None
    assert join("t", broker.url, train=train).counted == 4
    ended(serving)


async def leads(url: str) -> None:
    """Until the log is there."""
    async with await link(url) as one:
        await log_exists(one)


# --- work in threads ---


class Slow:
    """The first take of a large model is slow; ``began`` and ``done`` say where it is."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.began, self.done = threading.Event(), threading.Event()
        take = FederationState.take

        def slow(state: FederationState, *values: Any) -> Any:
            if self.began.is_set():
                return take(state, *values)
            events = take(state, *values)
            self.began.set()
            time.sleep(seconds)
            self.done.set()
            return events

        patch.setattr("qafel.federation.server.processor.LARGE", 1)
        patch.setattr(FederationState, "take", slow)


@pytest.mark.slow
def test_nothing_goes_on_before_an_entry_that_is_being_processed_is_done(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while a thread processes an entry: no checkpoint has half of it."""
    slow, servers, early = Slow(monkeypatch, 3.0), started(monkeypatch), list[bool]()
    save = Checkpoints.save

    async def noted(self: Checkpoints, state: FederationState) -> None:
        early.append(slow.began.is_set() and not slow.done.is_set())
        await save(self, state)

    monkeypatch.setattr(Checkpoints, "save", noted)
    serving = server(plan(uploads=4), broker.url, tmp_path / "server")
    joined = Background(lambda: join("t", broker.url, train=train))
    assert slow.began.wait(240)
    servers[0]._connection.nc.stats["reconnects"] += 1
    assert joined.result().counted == 4
    assert ended(serving).summary.uploads == 4
    assert not any(early)


@pytest.mark.slow
def test_no_receipt_is_sent_before_the_journal_has_its_entry(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has decided an upload, and has not ended: nobody is told yet."""
    slow = Slow(monkeypatch, 2.0)
    serving = server(plan(uploads=4), broker.url, tmp_path / "server")
    heard: list[Answer] = []

    async def work() -> None:
        async with await link(broker.url) as one:

            async def hear(message: Any) -> None:
                heard.append(Answer.from_bytes(message.data))

            await log_exists(one)
            await one.subscribe(one.subjects.answer(0), hear)
            job = plan().job(SIZE)
            await one.publish(one.subjects.upload(0), upload(0, update(job, 0, 0)))
            while not slow.began.is_set():
                await asyncio.sleep(0.01)
            await one.publish(one.subjects.ask(0), Ask(bytes(16)).to_bytes())
            while not slow.done.is_set():
                assert not any(answer.task == 0 for answer in heard), "it is not in the journal"
                await asyncio.sleep(0.01)
            for client in range(1, 4):
                await one.publish(one.subjects.upload(client), upload(client, update(job, client, 0)))
            while not any(answer.task == 0 for answer in heard):
                await asyncio.sleep(0.01)

    run(work())
    ended(serving)


class Clock:
    """Takes the place of the module ``time``; the test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.slow
def test_a_client_that_fills_its_share_of_the_log_does_not_make_the_server_save_all_the_time(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's clock, which is the test's, a save takes as long as eight reads of the log."""
    clock, servers = Clock(), started(monkeypatch)
    reads, wanted = [0], list[bool]()
    save, following = Checkpoints.save, LogReader.next

    async def slow(self: Checkpoints, state: FederationState) -> None:
        wanted.append(servers[0]._leases.purge_wanted)
        clock.now += 8
        await save(self, state)
        reads.append(0)

    async def read(self: LogReader, wait: float) -> Any:
        clock.now += 1
        reads[-1] += 1
        return await following(self, wait)

    for module in ("qafel.federation.server", "qafel.federation.server.processor"):
        monkeypatch.setattr(f"{module}.time", clock)
    monkeypatch.setattr(Checkpoints, "save", slow)
    monkeypatch.setattr(LogReader, "next", read)
    monkeypatch.setattr("qafel.federation.server.streams.MAX_ENTRIES", 16)
    serving = server(plan(uploads=1 << 30), broker.url, tmp_path / "server")
    between: list[int] = []

    async def flood() -> None:
        async with await link(broker.url) as one:
            await log_exists(one)
            while sum(wanted) < 5 and not serving.ended:
                for _ in range(8):
                    await one.nc.publish(one.subjects.upload(7), b"noise")
                await one.nc.publish(one.subjects.ask(7), Ask(bytes(16)).to_bytes())
                await asyncio.sleep(0.01)
            between.extend(reads[1:-1])
            await one.publish(one.subjects.entry("operator"), Decision(Stop("enough")).to_bytes())

    run(flood())
    assert ended(serving).summary.reason == "enough"
    assert min(between) >= 8, "no more than half of the time is spent on saves"


# --- clients ---


@pytest.mark.slow
def test_an_update_of_a_former_federation_is_given_up(broker: Broker, tmp_path: Path) -> None:
    """A client was killed before its receipt; then a new federation has the same name and the same plan."""
    chosen = plan(uploads=6)
    job = chosen.job(SIZE)
    (tmp_path / "client").mkdir()
    stale = Upload(3, 0, token(bytes(32), 0, 3, 0), update(job, 0, 3))
    ClientFolder(tmp_path / "client", lambda event, **fields: None).keep(job, stale)
    serving = server(chosen, broker.url, tmp_path / "server")
    joined = Background(lambda: join("t", broker.url, train=train, state=tmp_path / "client"))
    done = joined.result()
    assert ended(serving).summary.uploads == done.counted == 6
    assert "no_lease" in done.rejected.pop(3)


@pytest.mark.slow
def test_a_client_in_a_long_training_is_not_replaced_by_another_process(
    broker: Broker, tmp_path: Path
) -> None:
    serving = server(plan(uploads=2, buffer_size=1), broker.url, tmp_path / "server")
    trains, refused = threading.Event(), threading.Event()

    def slow(x: Any, task: Any) -> Any:
        trains.set()
        assert refused.wait(240)
        return train(x, task)

    first = Background(lambda: join("t", broker.url, client=1, train=slow))
    assert trains.wait(240)
    with pytest.raises(ConfigError, match="another process runs as client 1"):
        join("t", broker.url, client=1, train=slow)
    refused.set()
    assert first.result().counted == 2
    ended(serving)


@pytest.mark.parametrize("asks", [False, True])
def test_a_client_that_trains_nothing_does_not_take_the_only_place_again_and_again(asks: bool) -> None:
    """It lets its lease expire, or asks again; it has no update in the buffer, and still is not first."""
    world = World(3, 10, 1)
    for client in range(3):
        world.ask(client)
    for _ in range(40):
        if 2 in world.given:
            world.given.pop(2)
            if not asks:
                world.wait()
            world.ask(2)
        for client in [client for client in world.given if client != 2]:
            world.upload(client)
            world.process()
    assert world.state.server.version >= 2
    assert world.granted.count(2) <= 1 + world.state.server.version


@pytest.mark.slow
def test_a_lease_counts_after_a_reconnection_too(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, ready = started(monkeypatch), list[int]()

    def notice(event: str, **fields: Any) -> None:
        if event == "ready":
            ready.append(1)

    chosen = plan(uploads=1, buffer_size=1, concurrency=1)
    serving = server(chosen, broker.url, tmp_path / "server", notice=notice)
    leases: dict[int, Any] = {}

    async def work() -> None:
        async with await link(broker.url) as one:

            async def hear(message: Any) -> None:
                answer = Answer.from_bytes(message.data)
                leases[int(message.subject.rsplit(".", 1)[1])] = answer.lease

            await log_exists(one)
            await one.subscribe(one.subjects.answer(), hear)
            await one.publish(one.subjects.ask(0), Ask(bytes(16)).to_bytes())
            while not leases.get(0):
                await asyncio.sleep(0.01)
            servers[0]._connection.nc.stats["reconnects"] += 1
            while len(ready) < 2:
                await asyncio.sleep(0.01)
            await one.publish(one.subjects.ask(1), Ask(bytes(16)).to_bytes())
            while 1 not in leases:
                await asyncio.sleep(0.01)
            assert leases[1] is None, "client 0 has the only place"
            await one.publish(one.subjects.upload(0), upload(0, update(chosen.job(SIZE), 0, 0)))

    run(work())
    ended(serving)


def test_a_task_whose_cancellation_comes_together_with_a_message_ends_too() -> None:
    """``asyncio.wait_for`` of Python 3.11 forgets such a cancellation: a flooded server never ended."""
    ends = []

    async def race() -> None:
        arrived = asyncio.Event()

        async def hand_over() -> None:
            while True:
                arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(arrived.wait(), 60)

        task = asyncio.create_task(hand_over())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it waits for a message now
        arrived.set()
        await asyncio.sleep(0)  # the message is there, and nobody has been woken yet
        await give_up([task])
        ends.append(task.cancelled())

    run(race())
    assert ends == [True]
