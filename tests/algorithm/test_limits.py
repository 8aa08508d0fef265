"""The limits of the paper hold exactly, each against a twin of its own that has no hidden state."""

import numpy as np
import numpy.typing as npt

from qafel import Client, Job, Server, Stepped, algorithm

Vector = npt.NDArray[np.float32]
F32 = np.float32
SIZE = 64


def gradient_step(x: Vector, k: int) -> Vector:
    """A delta with rounding in every coordinate, different for every client."""
    target = np.random.default_rng(k).standard_normal(SIZE).astype(np.float32)
    return (F32(0.3) * (target - x)).astype(np.float32)


def run(job: Job, x0: Vector, order: list[int], delay: int) -> list[Vector]:
    """Clients in ``order`` upload ``delay`` uploads after they started; the model after every server step."""
    server = Server(job, x0)
    clients = {k: Client(job, x0, client=k) for k in set(order)}
    models, flying = [], []
    for k in order:
        flying.append(clients[k].train(lambda x, task, k=k: gradient_step(x, k)))  # type: ignore[misc]
        if len(flying) <= delay:
            continue
        for event in server.receive(flying.pop(0)):
            if isinstance(event, Stepped):
                models.append(server.x.copy())
                assert np.array_equal(server.x, server.hidden.x)
                for client in clients.values():
                    client.apply(event.frame)
    return models


def test_identity_quantizers_are_fedbuff() -> None:
    rng = np.random.default_rng(0)
    x0, order = rng.standard_normal(SIZE).astype(np.float32), [int(k) for k in rng.integers(0, 9, 200)]
    job = algorithm(
        "fedbuff", size=SIZE, buffer_size=4, server_rate=0.9, momentum=0.3, staleness_weight="sqrt"
    )
    ours = run(job, x0, order, delay=5)

    x, total, m, versions, theirs = x0.copy(), np.zeros(SIZE, F32), np.zeros(SIZE, F32), [], list[Vector]()
    flying: list[tuple[Vector, int]] = []
    for k in order:
        flying.append((gradient_step(x, k), len(theirs)))
        if len(flying) <= 5:
            continue
        delta, start = flying.pop(0)
        total = total + F32(1 / np.sqrt(1.0 + len(theirs) - start)) * delta
        versions.append(start)
        if len(versions) == 4:
            m = F32(0.3) * m + total / F32(4)
            x = x + F32(0.9) * m
            total, versions = np.zeros(SIZE, F32), []
            theirs.append(x)
    assert len(ours) == len(theirs) > 40
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_identity_and_a_buffer_of_one_is_asynchronous_sgd_on_deltas() -> None:
    rng = np.random.default_rng(1)
    x0, order = rng.standard_normal(SIZE).astype(np.float32), [int(k) for k in rng.integers(0, 9, 100)]
    job = algorithm("fedasync", size=SIZE, momentum=0.0, server_rate=0.5, staleness_weight="constant")
    ours = run(job, x0, order, delay=3)

    x, theirs, flying = x0.copy(), [], []
    for k in order:
        flying.append(gradient_step(x, k))
        if len(flying) > 3:
            x = x + F32(0.5) * flying.pop(0)
            theirs.append(x)
    assert len(ours) == len(theirs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_fedasync_mixes_models_when_nothing_is_stale() -> None:
    x0 = np.arange(SIZE, dtype=np.float32)
    job = algorithm("fedasync", size=SIZE, momentum=0.0, server_rate=0.5)
    server, client = Server(job, x0), Client(job, x0, client=0)
    local = x0 + 16
    server.receive(client.train(lambda x, task: local - x))
    assert np.array_equal(server.x, F32(0.5) * x0 + F32(0.5) * local)


def test_identity_with_all_clients_and_no_delay_is_fedavg() -> None:
    """On dyadic numbers, where float32 does not round, the mean of the clients' models is exact."""
    clients, rounds = 16, 4
    x0 = np.arange(SIZE, dtype=np.float32)
    targets = np.random.default_rng(2).integers(-64, 64, (clients, SIZE)).astype(np.float32)
    job = algorithm("fedbuff", size=SIZE, momentum=0.0, buffer_size=clients)
    server, members = Server(job, x0), [Client(job, x0, client=k) for k in range(clients)]
    average = x0.copy()
    for _ in range(rounds):
        models = [average + F32(0.5) * (target - average) for target in targets]
        average = np.asarray(np.mean(models, axis=0, dtype=np.float64), np.float32)
        frames = [m.train(lambda x, task, k=k: F32(0.5) * (targets[k] - x)) for k, m in enumerate(members)]  # type: ignore[misc]
        for frame in frames:
            for event in server.receive(frame):
                if isinstance(event, Stepped):
                    for member in members:
                        member.apply(event.frame)
        assert np.array_equal(server.x, average)
    assert server.version == rounds
    assert not np.array_equal(average, x0)


def test_naive_keeps_no_memory_of_what_quantization_lost() -> None:
    """Direct quantization gives x̂ = Q_s(x), whatever x̂ was; the hidden state makes the loss good."""
    rng = np.random.default_rng(3)
    x0 = rng.standard_normal(SIZE).astype(np.float32)
    errors = {}
    for name in ("naive", "qafel"):
        job = algorithm(
            name,
            size=SIZE,
            momentum=0.0,
            buffer_size=1,
            server_quantizer="topk:0.5",
            client_quantizer="identity",
        )
        server, client = Server(job, x0), Client(job, x0, client=0)
        for _ in range(60):
            for event in server.receive(client.train(lambda x, task: np.zeros_like(x))):
                if isinstance(event, Stepped):
                    client.apply(event.frame)
        errors[name] = float(np.linalg.norm(server.x - client.hidden.x))
    assert errors["qafel"] == 0
    assert errors["naive"] > 0.1
