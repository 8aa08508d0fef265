"""Server optimizers: equal to their slow twin to the bit, to torch.optim to 1e-6; their specs and states."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import twin
from qafel import (
    Client,
    ConfigError,
    Job,
    Server,
    SpecError,
    Stepped,
    algorithm,
    optimizer,
    registered_optimizers,
)

SIZE = 200
TWINS: dict[str, Any] = {
    "adam:rate=0.01": partial(twin.adam, rate=0.01, eps=1e-3),
    "adam:rate=0.5,beta1=0.5,beta2=0.9,eps=0.1": partial(twin.adam, rate=0.5, b1=0.5, b2=0.9, eps=0.1),
    "adagrad:rate=0.1": partial(twin.adagrad, rate=0.1, eps=1e-3),
    "yogi:rate=0.01": partial(twin.yogi, rate=0.01, b1=0.9, b2=0.999, eps=1e-3),
    "yogi:rate=0.3,beta1=0,beta2=0.5,eps=1": partial(twin.yogi, rate=0.3, b1=0.0, b2=0.5, eps=1.0),
}
UPDATES = np.random.default_rng(3).standard_normal((60, SIZE)).astype(np.float32) * np.float32(0.1)


def steps(spec: str) -> tuple[list[np.ndarray[Any, Any]], Server]:
    """The models after each step of a server without quantization, on the same updates."""
    job = algorithm("fedbuff", size=SIZE, buffer_size=3, server_optimizer=spec)
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    server, client = Server(job, x), Client(job, x, client=0)
    models = []
    for update in UPDATES:
        for event in server.receive(client.train(lambda x, task: update)):  # noqa: B023
            if isinstance(event, Stepped):
                models.append(server.x.copy())
    return models, server


@pytest.mark.parametrize("spec", TWINS)
def test_a_server_optimizer_equals_its_twin_to_the_bit(spec: str) -> None:
    slow = twin.TwinServer(
        np.linspace(-1, 1, SIZE, dtype=np.float32), twin.identity, 3, optimizer=TWINS[spec], direct=True
    )
    expected = []
    for update in UPDATES:
        if slow.receive(update, slow.version) is not None:
            expected.append(slow.x)
    models, _ = steps(spec)
    assert len(models) == len(expected) == 20
    assert all(map(np.array_equal, models, expected))


def test_sgd_as_an_optimizer_is_the_server_with_rate_and_momentum() -> None:
    def final(**options: Any) -> bytes:
        job = Job(size=SIZE, buffer_size=3, **options)
        server, client = Server(job, UPDATES[0]), Client(job, UPDATES[0], client=0)
        for update in UPDATES:
            server.receive(client.train(lambda x, task: update))  # noqa: B023
        return server.x.tobytes()

    assert final(server_optimizer="sgd:rate=0.5,momentum=0.9") == final(server_rate=0.5, momentum=0.9)


@pytest.mark.parametrize(
    ("spec", "kind", "options"),
    [
        ("adam:rate=0.01", "Adam", {"lr": 0.01, "eps": 1e-3}),
        ("adam:rate=0.1,beta1=0.8,beta2=0.99", "Adam", {"lr": 0.1, "betas": (0.8, 0.99), "eps": 1e-3}),
        ("adagrad:rate=0.1", "Adagrad", {"lr": 0.1, "eps": 1e-3}),
    ],
)
def test_adam_and_adagrad_equal_torch_optim_on_the_same_means(
    spec: str, kind: str, options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    x = torch.linspace(-1, 1, SIZE)
    rule = getattr(torch.optim, kind)([x], **options)
    models, _ = steps(spec)
    for k, model in enumerate(models):
        x.grad = torch.from_numpy(-UPDATES[3 * k : 3 * k + 3].mean(0))
        rule.step()
        assert np.abs(model - x.numpy()).max() < 1e-6


@pytest.mark.parametrize("spec", [*TWINS, "sgd:rate=1", "sgd:rate=0.5,momentum=0.9"])
def test_specs_round_trip_and_a_state_continues_to_the_same_bytes(spec: str) -> None:
    one = optimizer(spec)
    assert optimizer(one.spec) == one
    assert Job(size=3, server_optimizer=spec) == Job(size=3, server_optimizer=one.spec)
    job = Job(size=SIZE, buffer_size=1, server_optimizer=spec)
    whole, client = Server(job, UPDATES[0]), Client(job, UPDATES[0], client=0)
    frames = [client.train(lambda x, task: update) for update in UPDATES]  # noqa: B023
    for frame in frames[:30]:
        whole.receive(frame)
    half = Server.from_state(whole.state())
    for frame in frames[30:]:
        whole.receive(frame)
        half.receive(frame)
    assert half.state() == whole.state()


def test_the_registry_has_the_optimizers_of_fedopt() -> None:
    assert set(registered_optimizers()) == {"sgd", "adam", "adagrad", "yogi"}


@pytest.mark.parametrize(
    ("spec", "message", "nearest"),
    [
        ("adm:rate=0.1", "unknown server optimizer 'adm'; known are sgd, adam", "adam:rate=0.01"),
        ("adam", "needs rate=", "adam:rate=0.01,beta1=0.9,beta2=0.999,eps=0.001"),
        ("adam:rate=0", "rate must be a number from 0.0000001 to 1000000", None),
        ("adam:rate=0.1,beta1=1", "beta1 must be a number from 0 to 0.99999999", None),
        ("adagrad:rate=0.1,beta1=0.9", "adagrad does not know 'beta1'; it takes rate=…, eps=…", None),
        ("adam:rate=0.1,rate=0.2", "rate is given twice", None),
    ],
)
def test_a_wrong_spec_is_named_with_one_that_is_valid(spec: str, message: str, nearest: str | None) -> None:
    with pytest.raises(SpecError, match=message) as error:
        Job(size=3, server_optimizer=spec)
    assert optimizer(error.value.nearest).rate > 0  # type: ignore[attr-defined]
    assert nearest in (None, error.value.nearest)


def test_momentum_or_a_rate_beside_an_optimizer_is_an_error() -> None:
    for options in ({"momentum": 0.3}, {"server_rate": 0.5}):
        with pytest.raises(ConfigError, match="momentum and server_rate have no effect beside"):
            Job(size=3, server_optimizer="adam:rate=0.1", **options)  # type: ignore[arg-type]
    assert algorithm("qafel", size=3, server_optimizer="adam:rate=0.1").momentum == 0
    assert algorithm("qafel", size=3).momentum == 0.3


def test_jobs_with_an_optimizer_survive_their_bytes_and_those_without_have_none_in_theirs() -> None:
    job = Job(size=3, server_optimizer="yogi:rate=0.1")
    assert Job.from_bytes(job.to_bytes()) == job
    plain = Job(size=3)
    assert b"optimizer" not in plain.to_bytes()
    assert Job.from_bytes(plain.to_bytes()) == plain
    assert plain.id != Job(size=3, server_optimizer="sgd:rate=1").id
