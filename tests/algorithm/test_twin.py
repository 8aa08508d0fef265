"""The real server and clients equal the slow twin bit for bit, on random schedules with staleness."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import twin
from qafel import Accepted, Advanced, Client, Job, QafelWarning, Server, Stepped, config, quantizer

SIZE = 300
PAIRS = {
    "identity": twin.identity,
    "qsgd:4": twin.qsgd(7),
    "qsgd:2,bucket=64": twin.qsgd(1, 64),
    "qsgd:levels=4,bucket=100,norm=max": twin.qsgd(4, 100, "max"),
    "qsgd:4,bucket=256,norm=max": twin.qsgd(7, 256, "max"),
    "qsgd:8,norm=max": twin.qsgd(127, None, "max"),
    "affine:4": twin.affine(4),
    "affine:11": twin.affine(11),
    "topk:0.1": twin.topk(0.1),
    "randk:0.25,scaled": twin.randk(0.25, scaled=True),
    "randk:0.25": twin.randk(0.25, scaled=False),
    "contract:qsgd:4": twin.contract(twin.qsgd(7), quantizer("qsgd:4").omega(SIZE)),
    config.CLIENT_QUANTIZER: twin.rotated(float(config.CLIENT_QUANTIZER.partition("=")[2])),
    "rotated:bits=3": twin.rotated(3),
    config.SERVER_QUANTIZER: twin.deadzone(float(config.SERVER_QUANTIZER.partition("=")[2])),
    "deadzone:step=0.3": twin.deadzone(0.3),
    "induced:topk:0.1+qsgd:4,bucket=64": twin.induced(twin.topk(0.1), twin.qsgd(7, 64)),
}
MATCHES = [
    ("identity", "identity"),
    ("qsgd:4,bucket=256,norm=max", "qsgd:4,bucket=256,norm=max"),
    ("qsgd:4", "qsgd:8,norm=max"),
    ("qsgd:2,bucket=64", "topk:0.1"),
    ("randk:0.25,scaled", "affine:4"),
    ("induced:topk:0.1+qsgd:4,bucket=64", "contract:qsgd:4"),
    ("affine:11", "qsgd:levels=4,bucket=100,norm=max"),
    ("qsgd:8,norm=max", "randk:0.25"),
    (config.CLIENT_QUANTIZER, config.SERVER_QUANTIZER),
]
WEIGHTS = {
    "constant": lambda tau: 1.0,
    "sqrt": lambda tau: 1 / np.sqrt(1.0 + tau),
    "polynomial:0.7": lambda tau: (1 + tau) ** -0.7,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)
        yield


@pytest.mark.parametrize("spec", PAIRS)
def test_quantizer_equals_its_twin_bit_for_bit(spec: str) -> None:
    q, rng = quantizer(spec), np.random.default_rng(7)
    for seed, size in enumerate((1, 2, 63, 64, 65, 300, 517, 1100)):
        if spec.startswith("contract") and size != SIZE:
            continue
        x = (rng.standard_t(3, size) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
        x[rng.random(size) < 0.1] = 0
        assert np.array_equal(q.decode(q.encode(x, seed), size), PAIRS[spec](x, seed))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 3100])
@pytest.mark.parametrize("spec", [spec for spec in PAIRS if spec.startswith(("rotated", "deadzone"))])
def test_quantizers_in_blocks_equal_their_twin_below_at_and_above_one_block(spec: str, size: int) -> None:
    q, rng = quantizer(spec), np.random.default_rng(size)
    heavy = rng.standard_cauchy(size)
    lonely = np.zeros(size)
    lonely[size // 2] = -3
    uneven = rng.standard_normal(size) * 10.0 ** -(np.arange(size) // 1024)
    for seed, numbers in enumerate((rng.standard_normal(size), heavy, lonely, uneven, np.zeros(size))):
        x = numbers.astype(np.float32)
        assert np.array_equal(q.decode(q.encode(x, seed), size), PAIRS[spec](x, seed))


LOOKAHEAD = (0.0, 0.3, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", range(len(LOOKAHEAD)))
@pytest.mark.parametrize("broadcast", ["difference", "model"])
@pytest.mark.parametrize(("client_spec", "server_spec"), MATCHES)
def test_server_and_clients_equal_the_twin_bit_for_bit(
    client_spec: str, server_spec: str, broadcast: str, schedule: int
) -> None:
    rng = np.random.default_rng([schedule, len(client_spec + server_spec)])
    name = rng.choice(list(WEIGHTS))
    x0 = rng.standard_normal(SIZE).astype(np.float32)
    target = rng.standard_normal(SIZE).astype(np.float32)
    job = Job(
        size=SIZE,
        client_quantizer=client_spec,
        server_quantizer=server_spec,
        broadcast=broadcast,  # type: ignore[arg-type]
        buffer_size=3,
        server_rate=0.7,
        momentum=0.3,
        staleness_weight=str(name),
        lookahead=LOOKAHEAD[schedule],
        seed=11,
    )
    direct = broadcast == "model" or server_spec == "identity"
    server, clients = Server(job, x0), [Client(job, x0, client=k) for k in range(4)]
    slow = twin.TwinServer(
        x0, PAIRS[server_spec], 3, rate=0.7, momentum=0.3, weight=WEIGHTS[str(name)], seed=11, direct=direct,
        lookahead=LOOKAHEAD[schedule],
    )  # fmt: skip
    slow_clients = [twin.TwinClient(k, x0, PAIRS[client_spec], seed=11) for k in range(4)]
    flying: list[tuple[bytes, tuple[twin.Vector, int]]] = []
    stale = 0
    for _ in range(120):
        k = int(rng.integers(4))
        noise = rng.standard_normal(SIZE).astype(np.float32)

        def trainer(x: twin.Vector, task: object = None, noise: twin.Vector = noise) -> twin.Vector:
            del task
            return (np.float32(0.1) * (target - x) + np.float32(0.01) * noise).astype(np.float32)

        flying.append((clients[k].train(trainer), slow_clients[k].train(trainer)))
        if len(flying) < 6:
            continue
        frame, update = flying.pop(int(rng.integers(len(flying))))
        events = server.receive(frame)
        assert isinstance(events[0], Accepted)
        stale += events[0].staleness
        q = slow.receive(*update)
        for event in events[1:]:
            assert isinstance(event, Stepped)
            assert q is not None
            for client, slow_client in zip(clients, slow_clients, strict=True):
                assert isinstance(client.apply(event.frame), Advanced)
                slow_client.background(q, direct=direct)
                assert np.array_equal(client.hidden.x, slow_client.hidden)
        assert np.array_equal(server.x, slow.x)
        assert np.array_equal(server.hidden.x, slow.hidden)
    assert server.version == slow.version > 30
    assert stale > 20
