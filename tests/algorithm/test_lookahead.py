"""Look-ahead: increments aim at where the model will be when the updates from there arrive."""

from collections import deque

import numpy as np
import pytest

import qafel
from qafel.errors import ConfigError
from qafel.vectors import Vector

SIZE = 300
TARGET = np.linspace(-1, 1, SIZE, dtype=np.float32)


def pull(x: Vector, task: object) -> Vector:
    del task
    return np.float32(0.1) * (TARGET - x)


def walk(lookahead: float, delay: int, uploads: int, spec: str = "identity") -> qafel.Server:
    """A server whose updates arrive ``delay`` uploads after they started, one client each."""
    x = np.zeros(SIZE, np.float32)
    job = qafel.Job(size=SIZE, buffer_size=2, server_quantizer=spec, lookahead=lookahead)
    server, flying = qafel.Server(job, x), deque[bytes]()
    clients = [qafel.Client(job, x, client=k) for k in range(delay + 1)]
    for k in range(uploads):
        flying.append(clients[k % (delay + 1)].train(pull))
        if len(flying) > delay:
            for event in server.receive(flying.popleft()):
                if isinstance(event, qafel.Stepped):
                    for client in clients:
                        client.apply(event.frame)
    return server


def test_without_staleness_it_changes_nothing() -> None:
    plain, ahead = walk(0.0, 0, 40), walk(0.5, 0, 40)
    assert np.array_equal(plain.x, ahead.x)
    assert plain.hidden.digest == ahead.hidden.digest


@pytest.mark.parametrize("spec", ["identity", "qsgd:8,bucket=256,norm=max"])
def test_the_hidden_state_is_ahead_by_the_share_of_the_staleness(spec: str) -> None:
    server, before = walk(0.5, 10, 41, spec), walk(0.5, 10, 39, spec)
    assert server.version == before.version + 1
    staleness = 5  # ten uploads in flight, two in a step
    ahead = server.x + 0.5 * staleness * (server.x - before.x)
    away = np.linalg.norm(server.hidden.x - ahead) / np.linalg.norm(server.x - before.x)
    assert away < (1e-6 if spec == "identity" else 0.2)


def test_an_update_from_long_ago_does_not_throw_the_hidden_state_far_ahead() -> None:
    job = qafel.Job(size=SIZE, buffer_size=5, server_quantizer="identity", lookahead=0.5)
    x = np.zeros(SIZE, np.float32)
    server, old = qafel.Server(job, x), qafel.Client(job, x, client=99)
    late = old.train(pull)
    fresh = qafel.Client(job, x, client=1)
    for _ in range(5 * 1000 + 4):
        for event in server.receive(fresh.train(pull)):
            if isinstance(event, qafel.Stepped):
                fresh.apply(event.frame)
    before = server.x
    assert isinstance(server.receive(late)[-1], qafel.Stepped)
    step = np.linalg.norm(server.x - before)
    assert np.linalg.norm(server.hidden.x - server.x) == pytest.approx(0.5 * 30 / 5 * step, rel=1e-3)


def test_stale_updates_take_fewer_uploads_to_the_optimum() -> None:
    def error(server: qafel.Server) -> float:
        return float(np.linalg.norm(server.x - TARGET) / np.linalg.norm(TARGET))

    plain, ahead = (error(walk(share, 10, 150)) for share in (0.0, 0.3))
    assert ahead < 0.5 * plain


def test_a_saved_server_continues_to_the_same_bytes_in_the_middle_of_a_buffer() -> None:
    server = walk(0.5, 10, 41)
    assert server.aggregator.count == 1
    again = qafel.Server.from_state(server.state())
    late = qafel.Client(server.job, client=77)
    late.apply(server.catch_up(late.request())[0])
    frame = late.train(pull)
    ours, theirs = server.receive(frame)[1], again.receive(frame)[1]
    assert isinstance(ours, qafel.Stepped)
    assert ours == theirs


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_of_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="lookahead must be from 0 to 1, got"):
        qafel.Job(size=10, lookahead=share)


def test_jobs_without_it_have_the_bytes_that_they_had() -> None:
    assert b"lookahead" not in qafel.Job(size=10).to_bytes()
    job = qafel.Job(size=10, lookahead=0.25)
    assert qafel.Job.from_bytes(job.to_bytes()) == job
    assert job.id != qafel.Job(size=10).id
