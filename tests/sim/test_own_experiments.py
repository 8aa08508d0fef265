"""What a new user brings: own models, data, losses, metrics, optimizers, callbacks, training functions.

Every kind of experiment that was once refused is a test by its name. Models are tiny.
"""

import csv
import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.data import Dataset

import qafel
from command import call
from qafel import ConfigError, StateError
from qafel.buffer import Buffer
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result
from qafel.sim import Csv, EarlyStopping, Settings, TensorBoard, load, make_settings, metric, resume, simulate
from qafel.sim.batch import run_all
from qafel.tasks.settings import FUNCTIONS

WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


def regression(n: int = 30, seed: int = 0) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).standard_normal((n, 3)).astype(np.float32)
    return x, (x @ WEIGHTS + 1).astype(np.float32)


def many(clients: int = 12) -> list[tuple[Any, Any]]:
    return [regression(5 + 3 * k, k) for k in range(clients)]


def linear(shape: Any = None, classes: Any = None) -> nn.Module:
    return nn.Linear(3, 1)


def mae(outputs: Any, targets: Any) -> Any:
    return (outputs - targets).abs()


def run(**values: Any) -> Result:
    chosen: dict[str, Any] = {
        "model": linear,
        "data": many(),
        "uploads": 120,
        "evaluate_every": 20,
        "local_rate": 0.05,
        "rate": 5.0,
        "workers": 1,
    }
    return simulate(**(chosen | values))


class Samples(Dataset[tuple[Any, Any]]):
    """A torch Dataset of regression samples."""

    def __init__(self, n: int, seed: int) -> None:
        self.x, self.y = regression(n, seed)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        return torch.from_numpy(self.x[k]), self.y[k]


# --- what was refused ---


def test_regression_with_a_target_on_an_own_metric() -> None:
    result = run(metrics={"mae": mae}, loss=functional.l1_loss, target="mae <= 0.4", uploads=2000)
    assert result.summary.reason == "target"
    assert list(result.points[-1].metrics) == ["mae", "loss"]
    assert result.points[-1].smoothed["mae"] <= 0.4 < result.points[0].metrics["mae"]
    assert result.points[-1].metrics["loss"] == pytest.approx(result.points[-1].metrics["mae"], rel=1e-5)
    assert result.summary.metric == "mae"
    assert result.summary.target is not None


def test_regression_without_a_loss_uses_the_mean_squared_error() -> None:
    result = run()
    x, y = (np.concatenate(c) for c in zip(*many(), strict=True))
    assert result.points[-1].metrics["loss"] < 0.2 * result.points[0].metrics["loss"]
    assert "accuracy" not in result.points[0].metrics
    assert result.x is not None
    assert float(np.square(x @ result.x[:3] + result.x[3] - y).mean()) < 3


def test_sequences_with_a_label_at_every_position() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 6, (60, 9))
    result = run(model="lstm", data=[(t[:, :-1], t[:, 1:]) for t in np.split(tokens, 12)], uploads=20)
    assert set(result.points[0].metrics) == {"accuracy", "loss"}
    assert result.points[0].metrics["loss"] == pytest.approx(np.log(6), abs=0.3)


def test_pixels_with_a_label_each() -> None:
    x = np.random.default_rng(0).standard_normal((40, 2, 5, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    result = run(model=nn.Conv2d(2, 2, 1), data=(x, y), clients=4, partition="iid", local_rate=1.0)
    assert result.summary.accuracy > 0.9


def test_the_torch_optimizer_adam_with_a_schedule_by_version() -> None:
    seen = []

    def optimizer(parameters: Any, task: Any) -> Any:
        seen.append(task.version)
        return torch.optim.Adam(parameters, lr=0.1 / (1 + task.version))

    result = run(optimizer=optimizer, uploads=60)
    assert max(seen) >= 4
    assert result.points[-1].metrics["loss"] < result.points[0].metrics["loss"]


def test_lbfgs_which_calls_its_closure_several_times() -> None:
    assert run(optimizer=lambda p: torch.optim.LBFGS(p, 0.1), uploads=60).points[-1].metrics["loss"] < 1


def test_fedadam_learns_and_momentum_beside_it_is_an_error() -> None:
    result = run(server_optimizer="adam:rate=0.1", uploads=400)
    assert result.points[-1].metrics["loss"] < 0.3 * result.points[0].metrics["loss"]
    assert result.summary.settings["momentum"] == 0
    with pytest.raises(ConfigError, match="momentum and server_rate have no effect beside"):
        run(server_optimizer="adam:rate=0.1", momentum=0.3)


def test_a_list_of_arrays_per_client_holds_out_a_share_of_each() -> None:
    result = run(uploads=20)
    held = sum(min(n - 1, round(0.2 * n)) for n in range(5, 41, 3))
    assert result.summary.held_out == f"{held:,} samples: 20% of each client's"
    assert result.summary.clients == 12


def test_named_clients_datasets_tensors_and_a_client_with_one_sample() -> None:
    x, y = regression(9, 5)
    data = {"alice": Samples(20, 1), "bob": (torch.from_numpy(x), torch.from_numpy(y)), "eve": regression(1)}
    result = run(data=data, test=Samples(40, 9), uploads=20)
    assert result.summary.clients == 3
    assert result.summary.held_out == "40 samples: the samples of test"
    assert result.summary.settings["buffer_size"] == 3
    assert result.summary.settings["data"] == "<python: 3 clients>"


def test_an_nn_module_is_copied_and_its_weights_are_where_training_starts() -> None:
    net = nn.Linear(3, 1)
    before = net.weight.detach().clone()
    result = run(model=net)
    assert torch.equal(net.weight, before)
    assert result.x is not None
    assert not np.array_equal(result.x[:3], before.numpy().ravel())
    first = run(model=net, uploads=1, evaluate_every=1).points[0].metrics["loss"]
    assert first == run(model=lambda: net, uploads=1, evaluate_every=1).points[0].metrics["loss"]


def test_a_metric_of_all_outputs_at_once() -> None:
    sizes = []

    def spread(outputs: Any, targets: Any) -> float:
        sizes.append(len(targets))
        return float(outputs.max() - outputs.min())

    one = run(metrics={"spread": metric(spread, whole=True)}, test=regression(150), uploads=20)
    assert set(sizes) == {150, 2}  # two: the check before the run
    x = regression(150)[0]
    assert one.x is not None
    outputs = x @ one.x[:3]
    assert one.points[-1].metrics["spread"] == pytest.approx(outputs.max() - outputs.min(), rel=1e-5)


def test_means_of_batches_are_weighted_by_samples() -> None:
    def mean(outputs: Any, targets: Any) -> Any:
        return mae(outputs, targets).mean()

    result = run(metrics={"each": mae, "mean": mean}, test=regression(70), uploads=20)  # chunks of 64 and 6
    assert result.points[-1].metrics["each"] == pytest.approx(result.points[-1].metrics["mean"], rel=1e-6)


def test_callbacks_end_a_run_and_see_every_evaluation(tmp_path: Path) -> None:
    seen: list[int] = []
    calls = [
        EarlyStopping("loss", patience=2, min_delta=10.0),
        lambda point: seen.append(point.uploads),
        Csv(tmp_path / "run.csv"),
        TensorBoard(tmp_path / "tensorboard"),
    ]
    result = run(callbacks=calls)
    assert result.summary.reason == "callback EarlyStopping"
    assert seen == [point.uploads for point in result.points] == [0, 20, 40]
    assert run(callbacks=calls[:1]).summary.uploads == 40  # it begins anew
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["uploads"]) for row in rows] == seen
    assert [float(row["loss"]) for row in rows] == [point.metrics["loss"] for point in result.points]
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_batch_norm_is_refused_converted_or_kept_on_the_clients() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(ConfigError, match=r"BatchNorm1d.*qafel.group_norm\(model\).*batch_statistics = true"):
        run(model=net)
    converted = qafel.group_norm(net)
    assert isinstance(net[1], nn.BatchNorm1d)
    assert [type(layer) for layer in converted.children()] == [nn.Linear, nn.GroupNorm, nn.ReLU, nn.Linear]
    assert run(model=converted).points[-1].metrics["loss"] < 3
    kept = run(model=net, batch_statistics=True)
    assert kept.points[-1].metrics["loss"] < kept.points[0].metrics["loss"]
    assert kept.summary.digest == run(model=net, batch_statistics=True, workers=2).summary.digest


def test_group_norm_keeps_tied_weights_and_layers_that_are_used_twice() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm2d(48)
            self.b.weight, self.again = self.a.weight, self.norm

    net: Any = qafel.group_norm(Net())
    assert net.a.weight is net.b.weight
    assert net.norm is net.again
    assert net.norm.num_groups == 16


def test_dictionaries_of_tensors_as_inputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(4, 2), nn.Linear(3, 2)

        def forward(self, kind: Any, values: Any) -> Any:
            return (self.table(kind) + self.linear(values)).sum(1)

    x, y = regression(60)
    data = {"kind": np.arange(60) % 4, "values": x}, y
    result = run(model=Net(), data=data, clients=5, partition="iid")
    assert result.points[-1].metrics["loss"] < 0.5 * result.points[0].metrics["loss"]


def test_frozen_parameters_do_not_travel() -> None:
    net = nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 1))
    whole = run(model=net, uploads=20)
    net[0].requires_grad_(False)
    frozen = run(model=net, uploads=20)
    assert (whole.summary.size, frozen.summary.size) == (251, 51)
    assert frozen.summary.bytes_up < whole.summary.bytes_up
    assert list(frozen.parameters()) == ["1.weight", "1.bias"]


def numpy_train(x: Any, task: Any, samples: Any) -> Any:
    """Five steps of gradient descent in plain numpy."""
    inputs, targets = samples
    y = x.astype(np.float64)
    for _ in range(5):
        errors = inputs @ y[:3] + y[3] - targets
        y -= 0.1 * np.append(inputs, np.ones((len(inputs), 1)), 1).T @ errors / len(inputs)
    return y - x


def numpy_loss(x: Any) -> dict[str, float]:
    inputs, targets = regression(100, 77)
    return {"loss": float(np.square(inputs @ x[:3] + x[3] - targets).mean())}


def test_a_training_function_in_plain_numpy_trains_on_every_sample() -> None:
    counted = []

    def train(x: Any, task: Any, samples: Any) -> Any:
        counted.append(len(samples[1]))
        return numpy_train(x, task, samples)

    own: dict[str, Any] = {"train": train, "x": np.zeros(4), "evaluate": numpy_loss, "model": "cnn"}
    result = run(**own, target="loss <= 0.2", uploads=3000)
    assert result.summary.reason == "target"
    assert set(counted) == set(range(5, 41, 3))
    none = run(**(own | {"train": lambda x, task: np.ones(4) * 0.1}), data=None, clients=20, uploads=20)
    assert none.summary.clients == 20


def test_weights_of_staleness_and_of_samples_and_an_aggregator_of_ones_own() -> None:
    plain = run()
    weighted = run(weighting="samples")
    assert weighted.summary.digest != plain.summary.digest
    assert weighted.summary.digest == run(weighting="samples", workers=2).summary.digest
    stale = run(staleness_weight=lambda tau: 1.0 / (1 + tau))
    assert stale.summary.digest == run(staleness_weight="polynomial:1").summary.digest != plain.summary.digest
    assert stale.summary.settings["staleness_weight"].startswith("<python: ")

    job = plain.summary

    class Counting(Buffer):
        steps = 0

        def finish(self) -> Any:
            self.steps += 1
            return super().finish()

    own = Counting(qafel.quantizer(job.client_quantizer), job.size)
    assert run(aggregator=own).summary.digest == plain.summary.digest
    assert own.steps == plain.summary.version


def test_outputs_in_a_dictionary_with_a_loss_of_ones_own() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_variance = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return {"mean": self.mean(x)[:, 0], "log_variance": self.log_variance(x)[:, 0]}

    def likelihood(outputs: Any, targets: Any) -> Any:
        errors = (outputs["mean"] - targets) ** 2
        return errors * torch.exp(-outputs["log_variance"]) + outputs["log_variance"]

    whole = metric(lambda outputs, targets: (outputs["mean"] - targets).abs().max(), whole=True)
    result = run(model=Net(), loss=likelihood, metrics={"worst": whole}, local_rate=0.01, test=regression(90))
    assert result.points[-1].metrics["loss"] < result.points[0].metrics["loss"]
    with pytest.raises(ConfigError, match="in a dictionary have no default loss; pass loss="):
        run(model=Net())


def test_a_training_function_needs_no_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = sys.modules["safetensors"] = None
import numpy as np
from qafel.sim import simulate
data = [(np.ones((4, 2), np.float32) * k, np.ones(4)) for k in range(12)]
print(simulate(train=lambda x, task, samples: samples[0].mean(0) - x, x=np.zeros(2), uploads=30, data=data,
               evaluate=lambda x: {"distance": float(abs(x - 5.5).max())}, target="distance <= 4", workers=2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Result(qafel: distance ")


def test_the_keywords_of_simulate_are_complete() -> None:
    names = set(inspect.signature(simulate).parameters)
    assert names == {*Settings.__struct_fields__, "out", "workers", "callbacks", "progress", "events"}


def keywords_that_mypy_refuses() -> None:
    """Not called: mypy reports an ignore that it does not need, so these must be errors."""
    simulate(uploads="3")  # type: ignore[arg-type]
    simulate(upload=3)  # type: ignore[call-arg]


# --- the same bytes ---

TOKENS = np.random.default_rng(0).integers(0, 9, (8, 5, 13))
IMAGES = np.random.default_rng(1).integers(0, 255, (8, 6, 9, 9), dtype=np.uint8)


def lora() -> nn.Module:
    """A frozen linear layer with a trained product of thin matrices beside it."""
    torch.manual_seed(0)

    class Thin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.zeros(4, 2))

        def forward(self, matrix: Any) -> Any:
            return matrix + self.up @ self.down

    net = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 1))
    parametrize.register_parametrization(net[0], "weight", Thin())
    return net


TASKS: dict[str, dict[str, Any]] = {
    "regression": {"model": linear, "data": many(), "metrics": {"mae": mae}},
    "shakespeare": {"model": "lstm", "data": [(t[:, :-1], t[:, 1:]) for t in TOKENS], "uploads": 60},
    "cifar": {"model": "cnn", "data": [(x, np.arange(6) % 3) for x in IMAGES], "uploads": 60},
    "lora": {"model": lora, "data": many(), "loss": functional.l1_loss},
    "function": {"train": numpy_train, "x": np.zeros(4), "evaluate": numpy_loss, "data": many()},
}
RULES: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2)},
    "fedadam": {"server_optimizer": "adam:rate=0.05"},
}


def slowly(point: Any) -> None:
    time.sleep(0.2)


def started(folder: Path, options: dict[str, Any], checkpoint: float = 0.0) -> Any:
    """A process that runs an experiment in a folder, slowly, and saves as often as it can."""

    def work() -> None:
        os.setpgrp()
        from qafel.sim import run as run_settings

        defaults: dict[str, Any] = {"model": linear, "data": many(), "uploads": 120, "evaluate_every": 20}
        values = defaults | {"local_rate": 0.05, "rate": 5.0} | options
        run_settings(
            make_settings(values), folder, workers=2, callbacks=[slowly], checkpoint_seconds=checkpoint
        )

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def kill(process: Any, folder: Path) -> None:
    """Kill a process and its workers, and wait until none of them holds the folder."""
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    until = time.monotonic() + 60
    while True:
        lock = RunFolder(folder)
        try:
            lock.lock()
            break
        except ConfigError:
            assert time.monotonic() < until
            time.sleep(0.01)
    lock.close()


@pytest.mark.parametrize(
    ("name", "rule"),
    [(name, rule) for name in TASKS for rule in RULES if (name, rule) != ("function", "adam")],
)
def test_the_same_bytes_for_one_and_two_workers_and_after_kill_and_resume(
    name: str, rule: str, tmp_path: Path
) -> None:
    options, folder = TASKS[name] | RULES[rule], tmp_path / "run"
    one = run(**options)
    assert run(**options, workers=2).summary.digest == one.summary.digest
    process = started(folder, options)
    until = time.monotonic() + 60
    while not (folder / "checkpoint.bin").exists() or len((folder / "metrics.jsonl").read_bytes()) < 300:
        assert time.monotonic() < until
        time.sleep(0.01)
    kill(process, folder)
    assert not (folder / "summary.json").exists()
    functions = {name: value for name, value in options.items() if name in FUNCTIONS}
    seen: list[int] = []
    done = resume(folder, **functions, callbacks=[lambda point: seen.append(point.uploads)])
    assert done.summary.digest == one.summary.digest
    assert [p.metrics for p in done.points] == [p.metrics for p in one.points]
    assert seen == [p.uploads for p in done.points]
    assert load(folder).summary.digest == one.summary.digest


def test_a_resumed_run_needs_its_functions_and_notices_others(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = started(folder, {"loss": lambda outputs, targets: functional.mse_loss(outputs, targets)})
    until = time.monotonic() + 60
    while not (folder / "checkpoint.bin").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    kill(process, folder)
    config = (folder / "config.toml").read_text()
    assert 'model = "test_own_experiments:linear"' in config
    assert 'data = "<python: 12 clients>"' in config
    with pytest.raises(
        ConfigError, match=r"data is <python: 12 clients>, which cannot be imported; pass it again"
    ):
        resume(folder)
    with pytest.raises(ConfigError, match="loss is <python: "):
        resume(folder, data=many())
    with pytest.raises(ConfigError, match="'uploads' cannot be changed"):
        resume(folder, uploads=7)
    other: Any = lambda outputs, targets: functional.l1_loss(outputs, targets)  # noqa: E731
    other.__qualname__ = config.split('loss = "<python: ')[1].split('>"')[0]
    with pytest.raises(StateError, match="the training has changed since the run began"):
        resume(folder, data=many(), loss=other)


def test_staleness_weights_and_runs_without_data_are_resumed(tmp_path: Path) -> None:
    weight = lambda tau: 1 / (1 + tau)  # noqa: E731
    own = {"train": numpy_train_alone, "x": np.zeros(4), "evaluate": numpy_loss, "staleness_weight": weight}
    options: dict[str, Any] = {**own, "data": None, "clients": 5}
    whole, folder = run(**options), tmp_path / "run"
    process = started(folder, options)
    until = time.monotonic() + 60
    while not (folder / "checkpoint.bin").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    kill(process, folder)
    assert 'data = "none"' in (folder / "config.toml").read_text()
    with pytest.raises(ConfigError, match="staleness_weight is <python: "):
        resume(folder, x=np.zeros(4))
    assert resume(folder, x=np.zeros(4), staleness_weight=weight).summary.digest == whole.summary.digest


def numpy_train_alone(x: Any, task: Any) -> Any:
    return 0.1 * (WEIGHTS.sum() - x) + 0.01 * task.generator().standard_normal(4)


def test_a_model_that_is_random_in_its_evaluation_measures_the_same_with_any_workers() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return functional.dropout(self.linear(x), 0.5)

    net = Noisy()
    one, two = (run(model=net, test=regression(200), workers=k, uploads=40) for k in (1, 2))
    assert [p.metrics for p in one.points] == [p.metrics for p in two.points]


def test_one_output_and_one_label_are_compared_one_by_one() -> None:
    def right(outputs: Any, targets: Any) -> Any:
        assert outputs.shape == targets.shape
        return (outputs > 0) == targets

    data = [(x, (y > 1).astype(int)) for x, y in many()]
    result = run(data=data, metrics={"right": right}, local_rate=0.5)
    assert result.points[-1].metrics["right"] == result.points[-1].metrics["accuracy"] > 0.8
    run(data=data, loss=lambda o, t: functional.binary_cross_entropy_with_logits(o, t.float()), uploads=20)


def test_a_data_factory_means_the_same_by_name_and_as_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loads.py").write_text(
        "import numpy as np\nx = np.random.default_rng(0).standard_normal((60, 3)).astype('f4')\n"
        "def load():\n    return x, (x.sum(1) > 0).astype(float)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from loads import load as made  # type: ignore[import-not-found]

    results = [run(data=data, clients=6, uploads=20) for data in (made, "loads:load")]
    assert results[0].summary.digest == results[1].summary.digest
    assert "accuracy" in results[0].summary.metrics


def test_images_with_the_colours_in_front_or_last_are_the_same_images() -> None:
    last = np.random.default_rng(0).integers(0, 255, (60, 9, 9, 3), dtype=np.uint8)
    options: dict[str, Any] = {"model": "cnn", "clients": 6, "uploads": 20}
    one, two = (run(data=(x, np.arange(60) % 2), **options) for x in (last, np.moveaxis(last, -1, 1)))
    assert one.summary.digest == two.summary.digest


def test_a_metric_that_is_not_a_number_is_kept_and_a_callback_may_return_numpys_true(tmp_path: Path) -> None:
    done = run(
        metrics={"auc": lambda o, t: float("nan")}, out=tmp_path / "run", callbacks=[lambda p: np.True_]
    )
    assert done.summary.uploads == 0
    assert np.isnan(load(tmp_path / "run").summary.metrics["auc"])


def test_results_of_objects_without_a_name_are_not_taken_for_others(tmp_path: Path) -> None:
    settings = [
        make_settings({"model": linear, "data": many(), "loss": loss, "uploads": 20})
        for loss in (lambda o, t: (o - t) ** 2, lambda o, t: (o - t).abs())
    ]
    run_all({"a": settings[0]}, tmp_path, jobs=1)
    with pytest.raises(ConfigError, match="another model, other data or other training"):
        run_all({"a": settings[1]}, tmp_path, jobs=1)


# --- one sentence for every mistake ---


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"data": {"alice": regression(), "bob": (np.zeros((0, 3)), np.zeros(0))}},
            "client 'bob' has no samples",
        ),
        (
            {"data": [regression(), (np.zeros((4, 2)), np.zeros(4))]},
            r"client 1 have the shape \(2,\), those of",
        ),
        ({"data": {"bob": (np.zeros((4, 3)), np.zeros(3))}}, "4 inputs and 3 targets"),
        ({"data": {"bob": regression(1)}}, "no client has enough samples to hold out 20%"),
        ({"data": []}, "the data has no clients"),
        ({"data": {"bob": "file"}}, "client 'bob' must be a pair"),
        ({"data": many(), "partition": "iid"}, "given by client, so its partition is natural"),
        (
            {"data": (regression()[0], regression()[1]), "partition": "dirichlet:1"},
            "needs one label per sample",
        ),
        ({"target": "mae < 0.1"}, "target must be an accuracy"),
        ({"target": "mae <= 0.1"}, "the target is about 'mae', which is not measured; the metrics are loss"),
        ({"target": 0.9}, "the target is about 'accuracy', which is not measured"),
        (
            {"callbacks": [EarlyStopping("f1", mode="max")]},
            "early stopping watches 'f1', which is not measured",
        ),
        ({"metrics": {"mae": 3}}, "the metrics must be a function, got int"),
        ({"metrics": {"mae": lambda o, t: o.reshape(1, -1)}}, "must return one number per sample"),
        ({"metrics": [mae]}, "metrics must be {name: function}"),
        ({"loss": lambda o, t: o.no_such()}, "the loss or a metric fails .*no_such"),
        ({"model": nn.Linear(3, 2)}, r"targets of shape \(\) need outputs of the same shape, got \(2,\)"),
        ({"model": nn.Linear(4, 1)}, r"does not take samples of shape \(3,\)"),
        ({"optimizer": lambda p: 3}, "optimizer must be a function that makes a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.SGD, "weight_decay": 0.1}, "have no effect beside an optimizer"),
        ({"train": numpy_train}, "train needs x"),
        ({"train": numpy_train, "x": np.zeros(4)}, "train needs evaluate"),
        ({"train": lambda x: 3, "x": np.zeros(4), "evaluate": numpy_loss}, "train must return the delta"),
        ({"train": numpy_train, "x": np.zeros(4), "evaluate": lambda x: 3}, "evaluate must return"),
        ({"aggregator": object(), "weighting": "samples"}, "weighting has no effect"),
        ({"data": None, "test": regression()}, "data=None needs train"),
        ({"data": regression()[0]}, "the data must be {client: samples}"),
        ({"test": (regression()[0][:, :2], regression()[1])}, r"the inputs of test have the shape \(2,\)"),
        (
            {"test": (regression()[0], np.arange(30) % 2)},
            "targets of test are labels .* real numbers; give both",
        ),
        ({"callbacks": EarlyStopping()}, "callbacks must be a list of functions"),
        ({"train": numpy_train, "x": "abc", "evaluate": numpy_loss}, "x must be an array of numbers"),
        ({"target": "loss <= nan"}, "got 'loss <= nan'"),
    ],
)
def test_a_mistake_gets_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        run(**values)
    assert "\n" not in str(error.value)


def test_early_stopping_is_checked_when_it_is_made() -> None:
    for options, sentence in (
        ({"patience": 0}, "patience must be at least 1"),
        ({"mode": "up"}, "mode must be 'min' or 'max'"),
        ({"metric": "auc"}, "mode='min' or mode='max'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            EarlyStopping(**options)


def test_functions_by_name_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, torch\n"
        "def data():\n    x = np.random.default_rng(0).standard_normal((60, 3)).astype('f4')\n"
        "    return [(x[k::6], x[k::6].sum(1)) for k in range(6)]\n"
        "def model():\n    return torch.nn.Linear(3, 1)\n"
        "def mae(outputs, targets):\n    return (outputs - targets).abs()\n"
        "def adam(parameters):\n    return torch.optim.Adam(parameters, lr=0.01)\n"
    )
    (tmp_path / "a.toml").write_text(
        'data = "mine:data"\nmodel = "mine:model"\nloss = "torch.nn.functional:huber_loss"\n'
        'optimizer = "mine:adam"\nmetrics = {mae = "mine:mae"}\ntarget = "mae <= 0.01"\nuploads = 40\n'
    )
    monkeypatch.chdir(tmp_path)
    summary = json.loads(call("run", "a.toml", "--out", "run", "--workers", "1", "--json").stdout)
    assert list(summary["metrics"]) == ["mae", "loss"]
    assert 'metrics = {"mae" = "mine:mae"}' in (tmp_path / "run" / "config.toml").read_text()
    assert call("compare", "run", "--out", "both").stdout.count("mae") == 1
