"""What the server takes, what it refuses, and that it continues from saved state to the same bytes."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel import (
    Accepted,
    Client,
    ConfigError,
    DivergenceError,
    Job,
    QafelWarning,
    Quantizer,
    Rejected,
    Server,
    StateError,
    Stepped,
    VectorError,
    algorithm,
    local_sgd,
    quantizer,
    wire,
)
from qafel.buffer import Buffer, SeenTasks
from qafel.vectors import Vector
from qafel.wire import Update

SIZE = 50
X0 = np.linspace(-1, 1, SIZE, dtype=np.float32)


def shrink(x: Vector, task: object) -> Vector:
    del task
    return (np.float32(-0.1) * x).astype(np.float32)


def rejection(server: Server, frame: bytes) -> str:
    """The reason, after checking that nothing but the count of rejections changed."""
    before, x, total = server.accepted, server.x.tobytes(), server.aggregator.state()
    count = sum(server.rejections.values())
    (event,) = server.receive(frame)
    assert isinstance(event, Rejected)
    assert event.detail
    assert (server.accepted, server.x.tobytes(), server.aggregator.state()) == (before, x, total)
    assert sum(server.rejections.values()) == count + 1
    assert server.rejections[event.reason]
    return event.reason


def test_everything_that_is_wrong_with_an_update_is_rejected_with_its_reason() -> None:
    job = Job(size=SIZE, buffer_size=2, max_staleness=1, client_quantizer="identity")
    server, client = Server(job, X0), Client(job, X0, client=0)
    good = wire.decode(client.train(shrink))
    assert isinstance(good, Update)

    def update(**changes: object) -> bytes:
        fields = {name: getattr(good, name) for name in good.__struct_fields__}
        return wire.encode(Update(**{**fields, **changes}))

    nan = X0.copy()
    nan[3] = np.nan
    assert rejection(server, b"") == "malformed"
    assert rejection(server, b"QF" + bytes(20)) == "malformed"
    assert rejection(server, update() + b"\0") == "malformed"
    assert rejection(server, bytes(10**6)) == "malformed"
    assert rejection(server, update(job=good.job ^ 1)) == "wrong_job"
    assert rejection(server, update(version=1)) == "unknown_version"
    assert rejection(server, update(payload=good.payload[:-4])) == "bad_payload"
    assert rejection(server, update(payload=nan.tobytes())) == "bad_payload"
    assert rejection(server, wire.encode(server.hidden.snapshot(server.job.id))) in (
        "unexpected",
        "malformed",
    )
    assert isinstance(server.receive(update())[0], Accepted)
    assert rejection(server, update()) == "duplicate"
    for task in range(1, 4):
        server.receive(update(task=task))
    assert server.version == 2
    assert rejection(server, update(task=9)) == "stale"


def test_staleness_weights_are_the_papers() -> None:
    for name, expected in [("constant", 1.0), ("sqrt", 0.5), ("polynomial:1", 0.25)]:
        job = Job(size=SIZE, buffer_size=1, staleness_weight=name, client_quantizer="identity")
        server, worker, late = Server(job, X0), Client(job, X0, client=1), Client(job, X0, client=2)
        slow = late.train(shrink)
        for _ in range(3):
            for event in server.receive(worker.train(shrink)):
                if isinstance(event, Stepped):
                    worker.apply(event.frame)
        accepted = server.receive(slow)[0]
        assert isinstance(accepted, Accepted)
        assert (accepted.staleness, accepted.weight) == (3, expected)


def test_a_weight_of_your_own_is_used_and_checked() -> None:
    job = algorithm("fedbuff", size=SIZE, buffer_size=1)
    server, client = Server(job, X0, weight=lambda tau: 0.5**tau), Client(job, X0, client=0)
    accepted = server.receive(client.train(shrink))[0]
    assert isinstance(accepted, Accepted)
    assert accepted.weight == 1.0
    with pytest.raises(StateError, match="pass `"):
        Server.from_state(server.state())
    assert Server.from_state(server.state(), weight=lambda tau: 0.5**tau).state() == server.state()
    broken = Server(job, X0, weight=lambda tau: float("nan"))
    with pytest.raises(ConfigError, match="staleness weight"):
        broken.receive(client.train(shrink))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from(["qafel", "fedbuff", "naive", "fedasync"])
)
def test_from_state_continues_to_the_same_bytes_at_any_point(seed: int, cut: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    job = algorithm(
        name, size=SIZE, momentum=0.3, seed=seed % 1000, **({} if name == "fedasync" else {"buffer_size": 3})
    )
    server, clients = Server(job, X0), [Client(job, X0, client=k) for k in range(3)]
    twin, twins, flying = server, clients, []
    for n in range(70):
        if n == cut:
            twin = Server.from_state(server.state())
            twins = [Client.from_state(client.state()) for client in clients]
            assert twin.state() == server.state()
        k = int(rng.integers(3))
        frame = clients[k].train(shrink)
        assert n < cut or twins[k].train(shrink) == frame
        flying.append(frame)
        if n < 4:
            continue
        late = flying.pop(int(rng.integers(len(flying))))
        if rng.random() < 0.1:
            flying.append(late)
        events = server.receive(late)
        assert n < cut or twin.receive(late) == events
        for event in events:
            if isinstance(event, Stepped):
                for client in {*clients, *twins} if n >= cut else clients:
                    client.apply(event.frame)
    assert twin.state() == server.state()
    assert [t.state() for t in twins] == [c.state() for c in clients]


def test_damaged_state_is_refused_with_a_sentence() -> None:
    job = Job(size=SIZE)
    server, client = Server(job, X0), Client(job, X0, client=0)
    for good, load in [(server.state(), Server.from_state), (client.state(), Client.from_state)]:
        for bad in (
            b"",
            good[:-1],
            good + b"\0",
            good[:40] + bytes([good[40] ^ 1]) + good[41:],
            b"QF" + good[2:],
        ):
            with pytest.raises(StateError, match="saved state"):
                load(bad)  # type: ignore[operator]
    with pytest.raises(StateError):
        Server.from_state(client.state())


def test_a_server_quantizer_that_is_no_contraction_warns_diverges_and_names_the_fix() -> None:
    size = 20_000
    x0 = np.zeros(size, np.float32)
    job = Job(size=size, buffer_size=1, client_quantizer="identity", server_quantizer="qsgd:4")
    with pytest.warns(
        QafelWarning, match=r"not be a contraction.*use qsgd:4,bucket=256,norm=max or contract:qsgd:4"
    ):
        server = Server(job, x0)
    rng = np.random.default_rng(0)

    def upload(task: int) -> bytes:
        delta = rng.standard_normal(size).astype(np.float32)
        return wire.encode(Update(job.id, 0, task, 0, delta.tobytes()))

    def train() -> None:
        for task in range(100):
            server.receive(upload(task))

    with pytest.raises(DivergenceError, match=r"diverges.*use qsgd:4,bucket=256,norm=max"):
        train()
    assert server.version < 20
    with pytest.raises(DivergenceError, match="has stopped"):
        server.receive(upload(101))
    for refused in (server.state, server.advance, lambda: server.catch_up(b"")):
        with pytest.raises(DivergenceError, match="has stopped"):
            refused()
    for fixed in ("qsgd:4,bucket=256,norm=max", "contract:qsgd:4"):
        steady = Server(
            Job(size=size, buffer_size=1, client_quantizer="identity", server_quantizer=fixed), x0
        )
        for task in range(100):
            delta = rng.standard_normal(size).astype(np.float32)
            steady.receive(wire.encode(Update(steady.job.id, 0, task, 0, delta.tobytes())))
        assert steady.version == 100


class Noisy(Buffer):
    """An aggregator whose author forgot about float32."""

    def finish(self) -> Vector:
        return super().finish().astype(np.float64)


def test_an_aggregator_that_returns_something_else_is_told_so() -> None:
    job = algorithm("fedbuff", size=SIZE, buffer_size=1)
    server = Server(job, X0, aggregator=Noisy(quantizer("identity"), SIZE))
    with pytest.raises(VectorError, match="flat float32"):
        server.receive(Client(job, X0, client=0).train(shrink))


def test_advice_is_always_a_valid_spec() -> None:
    for spec in ("topk:0.1", "contract:induced:topk:0.1+qsgd:4", "affine:4", "randk:0.1"):
        with pytest.warns(QafelWarning) as caught:
            Client(Job(size=SIZE, client_quantizer=spec), X0, client=0)
        assert quantizer(str(caught[0].message).rpartition("; use ")[2]).unbiased
    long = "induced:topk:0.0000001+" * 3 + "qsgd:levels=1,bucket=1000"
    with pytest.warns(QafelWarning, match="use qsgd:4,bucket=256,norm=max or contract"):
        Server(Job(size=100_000, server_quantizer=long), np.zeros(100_000, np.float32))


def test_the_watch_survives_saving() -> None:
    size = 20_000
    job = Job(size=size, buffer_size=1, client_quantizer="identity", server_quantizer="qsgd:4")
    rng = np.random.default_rng(0)
    uploads = [
        wire.encode(Update(job.id, 0, task, 0, rng.standard_normal(size).astype(np.float32).tobytes()))
        for task in range(20)
    ]

    def stops_at(*, saving: bool) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            server = Server(job, np.zeros(size, np.float32))
            for k, upload in enumerate(uploads):
                try:
                    server.receive(upload)
                except DivergenceError:
                    return k
                server = Server.from_state(server.state()) if saving else server
        return -1

    assert stops_at(saving=True) == stops_at(saving=False) > 1


def test_a_difference_that_no_quantizer_can_hold_stops_the_server() -> None:
    job = Job(size=200, buffer_size=1, client_quantizer="identity", server_quantizer="qsgd:16")
    server = Server(job, np.zeros(200, np.float32))
    huge = np.full(200, 3e38, np.float32)
    with pytest.raises(DivergenceError, match="beyond float32"):
        server.receive(wire.encode(Update(job.id, 0, 0, 0, huge.tobytes())))


def test_a_model_that_overflows_stops_the_server() -> None:
    job = algorithm("fedbuff", size=2, buffer_size=1, server_rate=1e30)
    server = Server(job, np.zeros(2, np.float32))
    huge = np.array([3e38, 0], np.float32)
    with pytest.raises(DivergenceError, match="beyond float32"):
        server.receive(wire.encode(Update(job.id, 0, 0, 0, huge.tobytes())))


def test_a_biased_client_quantizer_warns_and_names_the_induced_one() -> None:
    job = Job(size=SIZE, client_quantizer="topk:0.1")
    with pytest.warns(QafelWarning, match="induced:topk:0.1") as caught:
        Client(job, X0, client=0)
    fix = str(caught[0].message).rpartition("; use ")[2]
    assert quantizer(fix).unbiased
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Client(Job(size=SIZE, client_quantizer=fix), X0, client=0)
        Server(job, X0)  # a client's quantizer is the client's business


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=300))
def test_seen_tasks_equals_a_set(uploads: list[tuple[int, int]]) -> None:
    seen, reference = SeenTasks(), set()
    for upload in uploads:
        assert (upload in seen) == (upload in reference)
        if upload not in seen:
            seen.add(*upload)
        reference.add(upload)
    again = SeenTasks(seen.rows())
    assert all(((c, t) in again) == ((c, t) in reference) for c in range(4) for t in range(201))


def test_seen_tasks_forgets_nothing_and_stays_small() -> None:
    seen = SeenTasks()
    for task in range(0, 100_000, 2):
        assert (7, task) not in seen
        seen.add(7, task)
    assert (7, 0) in seen
    assert (7, 1) in seen  # beyond the window: refused as if counted
    assert (7, 99_999) not in seen
    seen.add(7, 1 << 39)
    assert (7, 99_999) in seen
    assert sum(len(bits) for _, _, bits in seen.rows()) <= SeenTasks.WINDOW // 8


class Sealed(Buffer):
    """An aggregator whose sum can be opened only later, like a secure one: pending until told otherwise."""

    def __init__(self, quantizer: Quantizer, size: int) -> None:
        super().__init__(quantizer, size)
        self.pending = True

    def __len__(self) -> int:
        """Falsy while it is empty: it must be used all the same."""
        return self.count


def test_an_aggregator_of_your_own_may_answer_later() -> None:
    job = algorithm("fedbuff", size=SIZE, buffer_size=2)
    plain, client = Server(job, X0), Client(job, X0, client=0)
    sealed = Sealed(plain.client_quantizer, SIZE)
    server = Server(job, X0, aggregator=sealed)
    frames = [client.train(shrink) for _ in range(2)]
    for frame in frames:
        plain.receive(frame)
        assert [type(event) for event in server.receive(frame)] == [Accepted]
    assert server.version == 0
    assert server.advance() == []
    with pytest.raises(StateError, match="pass `"):
        Server.from_state(server.state())
    again = Server.from_state(server.state(), aggregator=Sealed(plain.client_quantizer, SIZE))
    assert again.aggregator.count == 2
    sealed.pending = False
    (stepped,) = server.advance()
    assert isinstance(stepped, Stepped)
    assert np.array_equal(server.x, plain.x)
    assert server.advance() == []


def test_local_sgd_runs_a_schedule_of_rates() -> None:
    rates = (0.5, 0.25, 0.125)
    job = algorithm("fedbuff", size=SIZE, buffer_size=1)
    server, client = Server(job, X0), Client(job, X0, client=0)
    points = []

    def gradient(y: Vector, task: object, p: int) -> Vector:
        del task
        points.append((p, y.copy()))
        return y

    server.receive(client.train(local_sgd(gradient, rates)))
    y = X0.astype(np.float64)
    for p, rate in enumerate(rates):
        assert points[p][0] == p
        assert np.allclose(points[p][1], y, atol=1e-6)
        y = y - rate * y
    assert np.allclose(server.x, y, atol=1e-6)


def test_a_trainer_or_a_client_that_is_misused_gets_a_sentence() -> None:
    job = Job(size=SIZE)
    client = Client(job, X0, client=np.uint8(3))  # type: ignore[arg-type]
    assert client.client == 3
    assert repr(client).startswith("Client(3, version=0, in_sync=True")
    assert repr(Server(job, X0)).startswith("Server(version=0")
    with pytest.raises(VectorError, match="must return its delta"):
        client.train(lambda x, task: None)  # type: ignore[arg-type, return-value]
    for rates in ([], [0.0], [-1.0], [float("nan")]):
        with pytest.raises(ConfigError, match="rates must be"):
            local_sgd(lambda y, task, p: y, rates)
    with pytest.raises(VectorError, match="expected 50 coordinates, got 3"):
        client.train(local_sgd(lambda y, task, p: y[:3], [0.1]))
    for number in (1.0, "a", -1, 1 << 64):
        with pytest.raises(ConfigError, match="client"):
            Client(job, X0, client=number)  # type: ignore[arg-type]
    for x in (client.hidden.x, Server(job, X0).x, Server(job, X0).hidden.x):
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": (1 << 30) - 1, "client_quantizer": "induced:identity+qsgd:16"}, "exceed 4 GB"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"server_rate": 0.0}, "server_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"staleness_weight": "linear"}, "staleness weight"),
        ({"broadcast": "none"}, "broadcast"),
        ({"seed": 1 << 64}, "seed"),
        ({"size": 10.5}, "size must be an integer, got 10.5"),
        ({"size": "5"}, "size must be an integer"),
        ({"buffer_size": 2.5}, "buffer_size must be an integer"),
        ({"max_staleness": "many"}, "max_staleness must be an integer"),
        ({"seed": None}, "seed must be an integer"),
        ({"server_rate": "fast"}, "server_rate must be a number"),
        ({"server_rate": 10**400}, "server_rate must be a number"),
        ({"staleness_weight": abs}, "pass a function as Server"),
        ({"client_quantizer": None}, "a spec is a string"),
        ({"layout": {"a": (5,)}}, "Layout.of"),
        ({"max_staleness": 1 << 40}, "max_staleness"),
        ({"client_quantizer": "qsdg:4"}, "nearest valid spec: 'qsgd:4'"),
    ],
)
def test_bad_jobs_get_a_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job(**{"size": 5, **options})  # type: ignore[arg-type]


def test_a_job_survives_its_bytes_and_its_id_covers_everything() -> None:
    job = Job(size=SIZE, seed=3)
    assert Job.from_bytes(job.to_bytes()) == job
    changes: list[dict[str, object]] = [
        {"seed": 4},
        {"momentum": 0.1},
        {"server_quantizer": "qsgd:8"},
        {"buffer_size": 9},
    ]
    assert len({job.id, *(Job(**{"size": SIZE, "seed": 3, **change}).id for change in changes)}) == 5  # type: ignore[arg-type]
    assert Job(size=np.int64(SIZE), server_rate=1, momentum=-0.0, seed=np.int8(3)).id == job.id  # type: ignore[arg-type]
    assert Job(size=SIZE, server_rate=np.float64(0.5)).id == Job(size=SIZE, server_rate=0.5).id
    assert Job(size=SIZE, client_quantizer="qsgd:levels=7").id == Job(size=SIZE, client_quantizer="qsgd:4").id
    with pytest.raises(ConfigError, match="unknown algorithm"):
        algorithm("fedprox", size=3)
    with pytest.raises(ConfigError, match="has no 'buffersize'"):
        algorithm("qafel", size=3, buffersize=3)
