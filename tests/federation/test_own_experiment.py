"""The experiment of a simulation, deployed in the same words: own model, data, loss, optimizer, metrics."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from parties import Background, plan, server
from qafel.client import assign
from qafel.errors import ConfigError
from qafel.federation import Broker, join
from qafel.federation.client.trainer import check_allowed, parse_plan, plan_training

WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


def samples(seed: int, n: int = 40) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).standard_normal((n, 3)).astype(np.float32)
    return x, (x @ WEIGHTS + 1).astype(np.float32)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def mae(outputs: Any, targets: Any) -> Any:
    return (outputs - targets).abs()


EXPERIMENT: dict[str, Any] = {
    "model": net,
    "data": None,
    "loss": functional.huber_loss,
    "metrics": {"mae": mae},
    "target": "mae <= 0.15",
    "server_optimizer": "adam:rate=0.1",
    "buffer_size": 2,
    "evaluate_every": 20,
    "uploads": 4000,
    "steps": 5,
}


def test_clients_with_their_own_data_train_to_the_target_that_the_server_measures(
    broker: Broker, tmp_path: Path
) -> None:
    serving = server(plan(**EXPERIMENT, test=samples(99, 100)), broker.url, tmp_path / "server", x=None)
    mine: dict[str, Any] = {"model": net(), "loss": functional.huber_loss}
    mine["optimizer"] = lambda parameters: torch.optim.SGD(parameters, 0.05)
    joined = [
        Background(functools.partial(join, "t", broker.url, client=k, data=samples(k), **mine))
        for k in range(2)
    ]
    digests = {background.result().digest for background in joined}
    result = serving.result()
    assert result.summary.reason == "target"
    assert list(result.points[-1].metrics) == ["mae", "loss"]
    assert digests == {result.summary.digest[16:]}
    assert 'loss = "torch.nn.functional:huber_loss"' in (tmp_path / "server" / "config.toml").read_text()


def test_clients_evaluate_with_their_own_metrics(broker: Broker, tmp_path: Path) -> None:
    chosen = EXPERIMENT | {"evaluate_on": "clients", "uploads": 60, "test": samples(99), "target": None}
    serving = server(plan(**chosen), broker.url, tmp_path / "server", x=None)
    mine: dict[str, Any] = {"model": net(), "loss": functional.huber_loss, "metrics": {"mae": mae}}
    joined = [
        Background(functools.partial(join, "t", broker.url, client=k, data=samples(k), **mine))
        for k in range(2)
    ]
    for background in joined:
        background.result()
    points = serving.result().points
    assert len(points) == 3
    assert points[-1].metrics["mae"] < points[0].metrics["mae"]


def test_a_training_function_has_the_same_signature_as_in_the_simulator(
    broker: Broker, tmp_path: Path
) -> None:
    seen = []

    def train(x: Any, task: Any, mine: Any) -> Any:
        seen.append(len(mine[1]))
        return 0.1 * (1 - x).astype(np.float64)

    serving = server(plan(uploads=20, buffer_size=1), broker.url, tmp_path / "server")
    join("t", broker.url, client=0, train=train, data=samples(0, 17))
    assert serving.result().summary.uploads == 20
    assert set(seen) == {17}


def test_what_only_the_servers_program_knows_must_be_passed_by_the_client() -> None:
    chosen = plan(model=nn.Linear(3, 1), data=None, test=samples(0), loss=lambda o, t: (o - t).abs().mean())
    text = chosen.resolved(chosen.learner()).to_toml()
    assert 'model = "<python: Linear>"' in text
    job = chosen.job(4)
    with pytest.raises(ConfigError, match=r"model = <python: Linear>, which only the server's program knows"):
        plan_training(text, job, 0, {"data": samples(1)})
    with pytest.raises(ConfigError, match=r"loss = <python: .*pass join\(…, loss=…\)"):
        plan_training(text, job, 0, {"data": samples(1), "model": net()})
    done = plan_training(text, job, 0, {"data": samples(1), "model": net(), "loss": functional.l1_loss})
    assert done.samples == 40


@pytest.mark.parametrize("what", ["loss", "optimizer", "train"])
def test_a_client_calls_no_function_that_its_owner_did_not_allow(what: str) -> None:
    text = f'{what} = "os:abort"\n' + ('x = "0"\n' if what == "train" else "")
    with pytest.raises(ConfigError, match=f"wants to call 'os:abort' for its {what}"):
        check_allowed(parse_plan(text), {}, [])
    check_allowed(parse_plan(text), {}, ["os:abort"])
    metrics = parse_plan('evaluate_on = "clients"\nmetrics = {bad = "os:abort"}\n')
    with pytest.raises(ConfigError, match=r"wants to call 'os:abort' for its metrics.bad"):
        check_allowed(metrics, {}, [])
    check_allowed(parse_plan('metrics = {bad = "os:abort"}\ntest = "os:abort"\n'), {}, [])  # of the server


def test_a_plan_without_data_needs_the_clients_and_frozen_weights_are_the_servers() -> None:
    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
        model[0].requires_grad_(False)
        return model

    chosen = plan(model=frozen, data=None, test=samples(0))
    learner = chosen.learner()
    text, job = chosen.resolved(learner).to_toml(), chosen.job(learner.x.size)
    with pytest.raises(ConfigError, match=r"has no data, so that clients bring their own: join\(…, data=…\)"):
        plan_training(text, job, 0, {"model": frozen})
    x, tasks = learner.x, [assign(job, 0, 0, 0, learner.x)] * 3
    trained = [
        plan_training(text, job, client, {"model": frozen, "data": samples(3)}).train(x, task)
        for client, task in enumerate(tasks)
    ]
    assert all(np.array_equal(delta, trained[0]) for delta in trained)


def test_a_client_that_has_not_seen_every_label_has_the_servers_model() -> None:
    x = samples(0)[0]
    chosen = plan(model="softmax", data=None, test=(x, np.arange(40) % 10))
    learner = chosen.learner()
    text, job = chosen.resolved(learner).to_toml(), chosen.job(learner.x.size)
    assert plan_training(text, job, 5, {"data": (x, np.arange(40) % 3)}).samples == 40
    with pytest.raises(ConfigError, match="100000 classes; the limit is 65536"):
        check_allowed(parse_plan("classes = 100000"), {}, [])


def test_one_allowed_name_is_that_name_and_no_part_of_it() -> None:
    check_allowed(parse_plan('loss = "mm:fun"'), {}, "mm:fun")
    for value in ("m:f", "mm:fu"):
        with pytest.raises(ConfigError, match="which this client does not allow"):
            check_allowed(parse_plan(f'loss = "{value}"'), {}, "mm:fun")
    with pytest.raises(ConfigError, match="a client reads only data that its owner names"):
        check_allowed(parse_plan('data = "mm"'), {}, "mm:fun")
