"""Leases: who trains next, and why the training always goes on. No clock and no broker is needed for that."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from qafel import vectors, wire
from qafel.federation import Plan
from qafel.federation.entries import Upload, token
from qafel.federation.messages import Answer, Ask, Lease
from qafel.federation.server.leases import Leases
from qafel.federation.server.state import FederationState
from qafel.server import Accepted, Stepped

SIZE = 4
SECONDS = 10.0


def session(client: int, process: int = 0) -> bytes:
    return bytes([client, process]).ljust(16, b"s")


class World:
    """Clients, a log and a server, in one process; every step is chosen by the test."""

    def __init__(self, clients: int, buffer_size: int, concurrency: int, **changes: object) -> None:
        options = {"uploads": 1 << 30, "lease_seconds": SECONDS, "algorithm": "fedbuff", **changes}
        plan = Plan(buffer_size=buffer_size, concurrency=concurrency, **options)  # type: ignore[arg-type]
        self.job = plan.job(SIZE)
        self.state = FederationState(plan, self.job, vectors.zeros(SIZE))
        self.leases = Leases(self.state, 0, max_entries=1 << 30)
        self.given: dict[int, Lease] = {}
        self.heard: dict[int, list[Answer]] = {client: [] for client in range(clients)}
        self.log: list[tuple[int, bytes]] = []
        self.alive = set(range(clients))
        self.now = self.read_at = 0.0
        self.accepted: list[Accepted] = []
        self.granted: list[int] = []
        self.peak = 0

    def frame(self, client: int, lease: Lease) -> bytes:
        payload = np.ones(SIZE, np.float32).tobytes()
        return wire.encode(wire.Update(self.job.id, client, lease.task, lease.version, payload))

    def ask(self, client: int, **fields: object) -> None:
        self.leases.asked(client, Ask(session(client), **fields), self.now)  # type: ignore[arg-type]
        self.answer()

    def answer(self) -> None:
        self.leases.grant(self.now)
        self.peak = max(self.peak, self.leases.in_flight)
        for client, answer in self.leases.outbox:
            self.heard[client].append(answer)
            if answer.lease is not None:
                self.granted.append(client)
                if client in self.alive:
                    self.given[client] = answer.lease
        self.leases.outbox.clear()

    def upload(self, client: int) -> None:
        lease = self.given.pop(client)
        frame = self.frame(client, lease)
        self.log.append((client, Upload(lease.task, lease.version, lease.token, frame).to_bytes()))

    def process(self) -> None:
        client, data = self.log.pop(0)
        before = self.state.last(client).task
        for event in self.state.take(self.state.sequence + 1, data, client):
            if isinstance(event, Accepted):
                self.accepted.append(event)
            if isinstance(event, Stepped):
                self.leases.version = event.version
                self.leases.stepped()
        if self.state.last(client).task > before:
            self.leases.decided(client, before + 1, self.now, counted=True, more=client in self.alive)
        if not self.log:
            self.read_at = self.now
        self.answer()

    def leave(self, client: int) -> None:
        """Die without a word."""
        self.alive.discard(client)
        self.given.pop(client, None)

    def wait(self) -> None:
        """Time passes; leases expire if the log was read to its end since."""
        self.now += SECONDS + 1
        if not self.log:
            self.read_at = self.now
        self.leases.expire(self.read_at)
        self.answer()

    def steps(self) -> Iterator[tuple[str, int]]:
        """What can happen next, without anybody leaving and without time passing."""
        if self.log:
            yield "process", 0
        for client in sorted(self.given):
            yield "upload", client


CASES = list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3)))


@pytest.mark.parametrize(("clients", "buffer_size", "concurrency"), CASES)
def test_progress_follows_from_the_rules_whatever_happens_in_which_order(
    clients: int, buffer_size: int, concurrency: int
) -> None:
    """Every order of the first four choices, for every client that leaves at each of them, and for none."""
    leavers: list[tuple[int, int]] = [(-1, -1)]
    if clients > 1:
        leavers += [(client, moment) for client in range(clients) for moment in range(4)]
    for choices, (leaver, moment) in itertools.product(itertools.product(range(3), repeat=4), leavers):
        world = World(clients, buffer_size, concurrency)
        for client in range(clients):
            world.ask(client)
        for k in range(60):
            if k == moment:
                world.leave(leaver)
            steps = list(world.steps())
            if not steps:
                world.wait()
                steps = list(world.steps())
            assert steps, f"stuck after {len(world.accepted)} updates: {choices}, {leaver} left at {moment}"
            kind, client = steps[choices[k] % len(steps)] if k < len(choices) else steps[k % len(steps)]
            world.process() if kind == "process" else world.upload(client)
            if len(world.accepted) >= 2 * buffer_size + 1:
                break
        assert world.state.server.version >= 2
        assert world.peak <= concurrency
        staleness = [event.staleness for event in world.accepted]
        assert sum(staleness) / len(staleness) <= world.peak / buffer_size


@pytest.mark.parametrize("slow", [1, 5, 50])
def test_the_mean_staleness_is_at_most_the_tasks_in_flight_divided_by_the_buffer(slow: int) -> None:
    """However slow the server is: it processes an entry only when ``slow`` uploads wait or all have sent."""
    world = World(20, 4, 12)
    for client in range(20):
        world.ask(client)
    while len(world.accepted) < 600:
        while world.given and len(world.log) < slow:
            world.upload(min(world.given))
        world.now += 100 * SECONDS  # the leases of the updates that wait in the log have long expired
        world.leases.expire(world.read_at)
        world.process()
    mean = sum(event.staleness for event in world.accepted) / len(world.accepted)
    assert world.peak <= 12
    assert mean <= 12 / 4


def test_no_client_gets_a_second_lease_into_one_buffer_while_others_ask() -> None:
    world = World(6, 3, 1)
    for client in range(6):
        world.ask(client)
    for _ in range(30):
        world.upload(next(iter(world.given)))
        world.process()
    for k in range(0, 30, 3):
        assert len(set(world.granted[k : k + 3])) == 3
    assert {world.granted.count(client) for client in range(6)} <= {5, 6}


def test_one_client_alone_fills_buffers_by_itself() -> None:
    world = World(1, 5, 1)
    world.ask(0)
    for _ in range(10):
        world.upload(0)
        world.process()
    assert world.state.server.version == 2


def test_a_client_rests_between_two_leases() -> None:
    world = World(2, 2, 1, rest_seconds=60.0)
    world.ask(0)
    world.upload(0)
    world.process()
    assert not world.given
    world.ask(1)
    assert set(world.given) == {1}
    world.upload(1)
    world.process()
    assert not world.given
    world.now += 61
    world.answer()
    assert set(world.given) == {0}


def test_a_token_is_for_one_client_one_task_and_one_version() -> None:
    key = bytes(32)
    tokens = {token(key, c, t, v) for c in range(4) for t in range(4) for v in range(4)}
    assert len(tokens) == 64
    assert token(key, 1, 2, 3) == token(key, 1, 2, 3) != token(bytes(31) + b"x", 1, 2, 3)


def test_a_receipt_says_what_became_of_the_last_task() -> None:
    world = World(1, 2, 1)
    world.ask(0)
    lease = world.given[0]
    frame = world.frame(0, lease)
    world.upload(0)
    world.process()
    answer = world.heard[0][-1]
    assert (answer.task, answer.reason, answer.frame) == (0, "", wire.fingerprint(frame))
    lost = world.given[0]
    world.now += 1
    world.ask(0, task=1, sequence=5)  # its upload is not processed yet, or was lost
    assert (world.heard[0][-1].task, world.heard[0][-1].again) == (0, -1)
    world.ask(0, task=1, sequence=5)
    assert world.heard[0][-1].again == -1, "the log was not read since"
    world.leases.expire(world.now + 1)
    world.ask(0, task=1, sequence=5)
    assert world.heard[0][-1].again == 5
    assert world.heard[0][-1].lease is None
    world.leases.resends.clear()
    world.ask(0)
    assert world.given[0].task == lost.task


def test_a_second_process_of_a_client_is_refused_while_the_first_one_answers() -> None:
    world = World(1, 2, 1)
    world.ask(0)
    world.leases.asked(0, Ask(session(0, 1)), 1.0)
    world.leases.grant(1.0)
    (_, ping), *_ = world.leases.outbox
    assert (ping.session, ping.wait) == (session(0), 0.0)
    world.leases.asked(0, Ask(session(0), task=0), 1.5)
    refused = [answer for _, answer in world.leases.outbox if answer.refused]
    assert [answer.session for answer in refused] == [session(0, 1)]


def test_a_process_that_does_not_answer_any_more_is_replaced() -> None:
    world = World(1, 2, 1)
    world.ask(0)
    world.leases.asked(0, Ask(session(0, 1)), 1.0)
    world.leases.grant(1.0)
    world.leases.grant(10.0)
    refused = [answer for _, answer in world.leases.outbox if answer.refused]
    leased = [answer for _, answer in world.leases.outbox if answer.lease]
    assert [answer.session for answer in refused] == [session(0)]
    assert [answer.session for answer in leased] == [session(0, 1)]


def test_a_client_with_many_entries_in_the_log_waits_for_a_purge() -> None:
    world = World(1, 2, 1)
    world.leases._max_entries = 3
    world.leases.entries[0] = 3
    world.ask(0)
    assert not world.given
    assert world.leases.purge_wanted
    world.leases.entries.clear()
    world.answer()
    assert world.given
