"""Every copy of the hidden state equals the server's to the bit, whatever a client lived through."""

import numpy as np
import pytest

from qafel import (
    Advanced,
    Client,
    Drifted,
    Ignored,
    Job,
    Missed,
    OutOfSyncError,
    Rejected,
    Server,
    Stepped,
    theory,
    wire,
)
from qafel.hidden import CatchUp
from qafel.hidden import catch_up as decide
from qafel.wire import Increment

SIZE = 200


def make(**options: object) -> tuple[Job, np.ndarray[tuple[int], np.dtype[np.float32]], Server]:
    job = Job(size=SIZE, buffer_size=2, **options)  # type: ignore[arg-type]
    x0 = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    return job, x0, Server(job, x0)


def step(server: Server, client: Client, rng: np.random.Generator) -> bytes:
    """Let ``client`` train until the server takes a step; its increment, applied by nobody."""
    while True:
        noise = rng.standard_normal(SIZE).astype(np.float32)
        pull = np.float32(0.1) * noise
        frame = client.train(lambda x, task, pull=pull: (np.float32(-0.1) * x + pull).astype(np.float32))  # type: ignore[misc]
        for event in server.receive(frame):
            if isinstance(event, Stepped):
                return event.frame


def catch_up(server: Server, client: Client) -> list[bytes]:
    frames = server.catch_up(client.request())
    assert (
        server.catch_up_bytes(client.held) == sum(map(len, frames)) or client.digest != server.hidden.digest
    )
    for frame in frames:
        client.apply(frame)
    return frames


@pytest.mark.slow
def test_after_5000_steps_of_dropouts_late_joiners_replays_and_snapshots_all_copies_are_equal() -> None:
    job, x0, server = make(server_quantizer="qsgd:4,bucket=64,norm=max")
    rng = np.random.default_rng(1)
    trainer = Client(job, x0, client=1000)
    clients = [Client(job, x0, client=k) for k in range(6)]
    replays = snapshots = 0
    history: list[bytes] = []
    for t in range(5000):
        frame = step(server, trainer, rng)
        assert isinstance(trainer.apply(frame), Advanced)
        history = [*history[-9:], frame]
        for k, client in enumerate(clients):
            if rng.random() < (0.02, 0.1, 0.3, 0.6, 0.9, 0.97)[k]:
                continue  # asleep: this increment is lost to it
            event = client.apply(frame)
            if isinstance(event, Missed):
                frames = catch_up(server, client)
                kind = wire.decode(frames[0])
                replays += isinstance(kind, Increment)
                snapshots += not isinstance(kind, Increment)
                assert sum(map(len, frames)) <= len(wire.encode(server.hidden.snapshot(job.id)))
            assert client.version == server.version
            assert client.hidden.digest == server.hidden.digest
            if rng.random() < 0.1:  # delivered twice, or late
                assert isinstance(client.apply(history[int(rng.integers(len(history)))]), Ignored)
        if t % 1000 == 999:
            server = Server.from_state(server.state())
        if t % 500 == 250:
            clients[int(rng.integers(6))] = Client(job, client=10_000 + t)
    for client in [*clients, trainer]:
        catch_up(server, client)
        assert client.in_sync
        assert client.hidden.digest == server.hidden.digest
        assert np.array_equal(client.hidden.x, server.hidden.x)
    assert server.version == 5000
    assert replays > 1000
    assert snapshots > 10


def test_every_flipped_bit_of_an_increment_is_noticed_at_once() -> None:
    job, x0, server = make()
    frame = step(server, Client(job, x0, client=0), np.random.default_rng(2))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        client = Client(job, x0, client=1)
        event = client.apply(bytes(damaged))
        assert isinstance(event, Rejected)
        assert np.array_equal(client.hidden.x, x0)
        assert client.in_sync


def test_a_flipped_payload_bit_under_a_correct_checksum_is_noticed_by_the_digest() -> None:
    job, x0, server = make()
    increment = wire.decode(step(server, Client(job, x0, client=0), np.random.default_rng(3)))
    assert isinstance(increment, Increment)
    noticed = 0
    for bit in range(8 * len(increment.payload)):
        payload = bytearray(increment.payload)
        payload[bit // 8] ^= 1 << bit % 8
        forged = Increment(
            increment.job, increment.version, increment.digest, increment.replaces, bytes(payload)
        )
        client = Client(job, x0, client=1)
        event = client.apply(wire.encode(forged))
        if isinstance(event, Advanced):  # the bit is below the rounding of x̂: nothing differs
            assert np.array_equal(client.hidden.x, server.hidden.x)
            continue
        assert isinstance(event, Rejected | Drifted)
        noticed += isinstance(event, Drifted)
        if isinstance(event, Drifted):
            with pytest.raises(OutOfSyncError, match="catch_up"):
                client.begin()
            catch_up(server, client)
            assert client.in_sync
            assert np.array_equal(client.hidden.x, server.hidden.x)
    assert noticed > 500


def test_a_client_that_missed_five_increments_gets_those_five() -> None:
    job, x0, server = make(server_quantizer="topk:0.05")
    rng, away = np.random.default_rng(4), Client(job, x0, client=1)
    worker = Client(job, x0, client=2)
    missed = []
    for _ in range(5):
        missed.append(step(server, worker, rng))
        worker.apply(missed[-1])
    assert server.catch_up_bytes(away.held) == sum(map(len, missed))
    assert catch_up(server, away) == missed
    assert np.array_equal(away.hidden.x, server.hidden.x)
    assert catch_up(server, away) == []


def test_the_log_holds_c_max_increments_and_never_more_bytes_than_a_snapshot() -> None:
    job, x0, server = make(server_quantizer="qsgd:4,bucket=64,norm=max")
    rng, worker = np.random.default_rng(5), Client(job, x0, client=0)
    for _ in range(50):
        worker.apply(step(server, worker, rng))
        snapshot, sizes = server.hidden.snapshot_bytes(job.id), server.log.sizes.values()
        assert sum(sizes) <= snapshot
    assert len(sizes) == theory.c_max(snapshot, sum(sizes) / len(sizes)) > 3


def test_full_precision_needs_only_the_newest_message() -> None:
    job, x0, server = make(server_quantizer="identity")
    rng, worker, away = np.random.default_rng(6), Client(job, x0, client=0), Client(job, x0, client=1)
    for _ in range(7):
        worker.apply(step(server, worker, rng))
    frames = catch_up(server, away)
    assert len(frames) == 1
    assert np.array_equal(away.hidden.x, server.x)


def test_naive_catches_up_with_one_increment() -> None:
    job, x0, server = make(broadcast="model")
    rng, worker, away = np.random.default_rng(6), Client(job, x0, client=0), Client(job, x0, client=1)
    for _ in range(7):
        worker.apply(step(server, worker, rng))
    frames = catch_up(server, away)
    assert [type(wire.decode(f)).__name__ for f in frames] == ["Increment"]
    assert np.array_equal(away.hidden.x, server.hidden.x)


def test_old_frames_are_ignored_and_increments_out_of_order_are_missed() -> None:
    job, x0, server = make()
    rng, worker, client = np.random.default_rng(7), Client(job, x0, client=0), Client(job, x0, client=1)
    frames = []
    for _ in range(3):
        frames.append(step(server, worker, rng))
        worker.apply(frames[-1])
    assert client.apply(frames[2]) == Missed(3)
    assert client.apply(frames[0]) == Advanced(1)
    assert client.apply(frames[0]) == Ignored(1)
    snapshot = wire.encode(server.hidden.snapshot(job.id))
    assert server.hidden.snapshot_bytes(job.id) == len(snapshot)
    assert client.apply(snapshot) == Advanced(3)
    assert client.apply(snapshot) == Ignored(3)
    update = client.train(lambda x, task: x)
    assert client.apply(update) == Rejected("unexpected", "servers do not send Update")


def test_a_snapshot_that_contradicts_itself_changes_nothing() -> None:
    job, x0, server = make()
    good = server.hidden.snapshot(job.id)
    client = Client(job, client=1)
    bad = type(good)(good.job, good.version, good.digest ^ 1, good.payload)
    assert isinstance(client.apply(wire.encode(bad)), Rejected)
    assert not client.in_sync
    assert isinstance(client.apply(wire.encode(good)), Advanced)
    assert np.array_equal(client.hidden.x, x0)


def test_a_drifted_client_is_sent_a_snapshot_not_increments() -> None:
    job, x0, server = make(server_quantizer="topk:0.05")
    rng, worker, drifted = np.random.default_rng(8), Client(job, x0, client=0), Client(job, x0, client=1)
    for k in range(3):
        frame = step(server, worker, rng)
        worker.apply(frame)
        if k < 2:
            drifted.apply(frame)
    drifted.hidden.digest ^= 1
    frames = catch_up(server, drifted)
    assert type(wire.decode(frames[0])).__name__ == "Snapshot"
    assert drifted.hidden.digest == server.hidden.digest


def test_a_client_that_started_from_another_model_is_repaired_at_version_0() -> None:
    job, x0, server = make()
    other = Client(job, x0 + 1, client=1)
    catch_up(server, other)
    assert np.array_equal(other.hidden.x, x0)


def test_a_client_ahead_of_a_restored_server_goes_back_after_a_reset() -> None:
    job, x0, server = make()
    rng, client = np.random.default_rng(9), Client(job, x0, client=0)
    client.apply(step(server, client, rng))
    saved = server.state()
    client.apply(step(server, client, rng))
    restored = Server.from_state(saved)
    (snapshot,) = restored.catch_up(client.request())
    assert client.apply(snapshot) == Ignored(1)
    client.reset()
    assert not client.in_sync
    assert client.apply(snapshot) == Advanced(1)
    assert np.array_equal(client.hidden.x, restored.hidden.x)


def test_an_increment_of_the_same_version_with_another_digest_is_proof_of_drift() -> None:
    job, x0, server = make()
    rng, worker, client = np.random.default_rng(10), Client(job, x0, client=0), Client(job, x0, client=1)
    frame = step(server, worker, rng)
    client.apply(frame)
    assert client.apply(frame) == Ignored(1)
    increment = wire.decode(frame)
    assert isinstance(increment, Increment)
    other = Increment(increment.job, 1, increment.digest ^ 1, False, increment.payload)
    assert client.apply(wire.encode(other)) == Drifted(1)
    assert not client.in_sync


def test_a_newcomer_to_a_naive_job_needs_no_snapshot() -> None:
    job, x0, server = make(broadcast="model")
    worker = Client(job, x0, client=0)
    for _ in range(3):
        worker.apply(step(server, worker, np.random.default_rng(11)))
    newcomer = Client(job, client=1)
    (frame,) = catch_up(server, newcomer)
    assert len(frame) < server.hidden.snapshot_bytes(job.id) / 3
    assert np.array_equal(newcomer.hidden.x, server.hidden.x)


@pytest.mark.parametrize("server_quantizer", ["identity", "qsgd:4,bucket=256,norm=max"])
def test_negative_zeros_survive_snapshots_and_saving(server_quantizer: str) -> None:
    x0 = np.array([-0.0, 0.0, -1.0, 1e-45], np.float32)
    job = Job(size=4, buffer_size=1, client_quantizer="identity", server_quantizer=server_quantizer)
    server = Server(job, x0)
    newcomer = Client(job, client=1)
    catch_up(server, newcomer)
    assert newcomer.hidden.x.tobytes() == x0.tobytes()
    assert Server.from_state(server.state()).state() == server.state()
    assert Client.from_state(newcomer.state()).state() == newcomer.state()
    for event in server.receive(newcomer.train(lambda x, task: np.full(4, -0.0, np.float32))):
        if isinstance(event, Stepped):
            assert isinstance(newcomer.apply(event.frame), Advanced)
    assert newcomer.hidden.x.tobytes() == server.hidden.x.tobytes()
    assert Server.from_state(server.state()).state() == server.state()


SIZES = dict.fromkeys(range(5, 10), 10)


@pytest.mark.parametrize(
    ("held", "replaces", "needed"),
    [
        (9, False, CatchUp(False, range(0), 0)),
        (8, False, CatchUp(False, range(9, 10), 10)),
        (5, False, CatchUp(False, range(6, 10), 40)),
        (4, False, CatchUp(True, range(0), 45)),  # five increments cost more than the snapshot
        (3, False, CatchUp(True, range(0), 45)),  # increment 4 is gone
        (10, False, CatchUp(True, range(0), 45)),  # ahead of the server
        (None, False, CatchUp(True, range(0), 45)),
        (None, True, CatchUp(False, range(9, 10), 10)),
        (2, True, CatchUp(False, range(9, 10), 10)),
    ],
)
def test_what_a_client_needs_is_nothing_increments_or_a_snapshot(
    held: int | None, replaces: bool, needed: CatchUp
) -> None:
    assert decide(held, 9, SIZES, 45, replaces=replaces) == needed
