"""Gradients and local training: the kernel equals PyTorch, local SGD equals torch.optim's."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qafel import ConfigError, DivergenceError, Job
from qafel.client import Task, assign
from qafel.tasks import engines, measures, models
from qafel.tasks.cnn import LAYOUT
from qafel.tasks.local import LocalSgd
from qafel.vectors import Vector


def batch(seed: int, n: int = 20, colours: int = 3, size: int = 32, classes: int = 2) -> tuple[Vector, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, colours, size, size)).astype(np.float32)
    return x, rng.integers(0, classes, n)


def task(x: Vector, number: int = 0) -> Task:
    return assign(Job(size=x.size), 3, number, 0, x)


@pytest.mark.slow
@pytest.mark.parametrize(("colours", "size", "classes"), [(3, 32, 2), (1, 32, 2), (3, 28, 10), (3, 9, 3)])
def test_the_kernel_equals_pytorch(colours: int, size: int, classes: int) -> None:
    """Medians: a ReLU or a maximum that flips makes a few deltas differ more."""
    module = models.model("cnn", models.Samples((colours, size, size), classes), 0)
    module.dropout = 0.0  # type: ignore[assignment]
    with torch.no_grad():
        module.norm.weight.add_(0.3 * torch.randn(32))  # type: ignore[union-attr, operator]
    x0 = models.flat(module)
    kernel = engines.engine("kernel", module, (colours, size, size), 32)
    plain = engines.engine("plain", module, (colours, size, size), 32)
    errors = []
    for seed in range(15):
        x, labels = batch(seed, colours=colours, size=size, classes=classes)
        one, loss = kernel.gradient(x0, x, labels, 0)
        two, real = plain.gradient(x0, x, labels, 0)
        assert loss == pytest.approx(real, rel=1e-4)
        errors.append(np.linalg.norm(one - two) / np.linalg.norm(two))
        assert np.allclose(kernel.outputs(x0, x), plain.outputs(x0, x), atol=1e-4)
    assert np.median(errors) <= 1e-5


def test_the_papers_cnn_has_its_parameters_in_its_layout() -> None:
    module = models.model("cnn", models.Samples((3, 32, 32), 2), 0)
    assert models.layout(module) == LAYOUT
    assert models.flat(module).size == 29_282


def test_dropout_drops_a_tenth_and_is_the_tasks_own() -> None:
    module = models.model("cnn", models.Samples((3, 32, 32), 2), 0)
    x0, (x, labels) = models.flat(module), batch(0)
    for name in ("kernel", "plain"):
        engine = engines.engine(name, module, (3, 32, 32), 32)
        one, two, other = (engine.gradient(x0, x, labels, seed)[0] for seed in (1, 1, 2))
        assert np.array_equal(one, two)
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_local_sgd_equals_torch_optim(steps: int, momentum: float, decay: float) -> None:
    module = models.model("mlp", models.Samples((10,), 3), 0)
    x0 = models.flat(module)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((30, 10)).astype(np.float32), rng.integers(0, 3, 30)
    engine = engines.engine("plain", module, (10,), 32)
    sgd = LocalSgd(rate=0.1, batch_size=30, steps=steps, momentum=momentum, weight_decay=decay)
    delta = sgd.delta(engine, x, labels, task(x0))

    twin = models.model("mlp", models.Samples((10,), 3), 0)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        measures.default_loss(twin(torch.from_numpy(x)), torch.from_numpy(labels)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert np.allclose(delta, models.flat(twin) - x0, atol=1e-6)


def test_fedprox_pulls_back_to_the_start() -> None:
    module = models.model("softmax", models.Samples((4,), 2), 0)
    x0 = models.flat(module)
    x, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    engine = engines.engine("plain", module, (4,), 32)
    plain, held = (LocalSgd(rate=0.5, steps=20, prox=mu).delta(engine, x, labels, task(x0)) for mu in (0, 1))
    assert np.linalg.norm(held) < 0.5 * np.linalg.norm(plain)


def test_a_tiny_rate_loses_nothing_of_the_delta() -> None:
    """y_P − y_0 in float32 would keep one or two digits of it."""
    module = models.model("mlp", models.Samples((10,), 2), 0)
    x0 = models.flat(module)
    x, labels = np.random.default_rng(0).standard_normal((8, 10)).astype(np.float32), np.arange(8) % 2
    engine = engines.engine("plain", module, (10,), 32)
    gradient, _ = engine.gradient(x0, x, labels, 0)
    delta = LocalSgd(rate=1e-9).delta(engine, x, labels, task(x0))
    assert np.array_equal(delta, np.float32(-1e-9) * gradient)
    assert not np.array_equal((x0 + delta) - x0, delta)


def test_epochs_see_every_sample_once_and_steps_are_as_many_as_asked() -> None:
    seen: list[Any] = []

    class Listening:
        name = "listening"

        def gradient(self, y: Vector, x: Vector, labels: Any, seed: int) -> tuple[Vector, float]:
            seen.append(labels.tolist())
            return np.ones_like(y), 0.0

        def outputs(self, y: Vector, x: Vector) -> Vector:
            return x

    x, labels = np.zeros((10, 1), np.float32), np.arange(10)
    LocalSgd(rate=1, batch_size=4, epochs=2).delta(Listening(), x, labels, task(np.zeros(1, np.float32)))
    assert [len(rows) for rows in seen] == [4, 4, 2, 4, 4, 2]
    assert sorted(k for rows in seen[:3] for k in rows) == list(range(10))
    assert sorted(k for rows in seen[3:] for k in rows) == list(range(10))
    assert seen[:3] != seen[3:]
    seen.clear()
    LocalSgd(rate=1, batch_size=4, steps=7).delta(Listening(), x, labels, task(np.zeros(1, np.float32)))
    assert len(seen) == 7


def test_a_gradient_that_is_not_finite_names_the_client() -> None:
    module = models.model("softmax", models.Samples((2,), 2), 0)
    engine = engines.engine("plain", module, (2,), 32)
    x = np.array([[np.inf, 1]], np.float32)
    with pytest.raises(DivergenceError, match="not finite on client 3"):
        LocalSgd(rate=1).delta(engine, x, np.array([0]), task(models.flat(module)))


def test_models_by_name_have_their_sizes() -> None:
    sizes = {
        "logistic": 113,
        "softmax": 226,
        "mlp": 112 * 128 + 128 + 128 * 64 + 64 + 64 * 2 + 2,
    }
    for name, size in sizes.items():
        assert models.flat(models.model(name, models.Samples((112,), 2), 0)).size == size
    assert models.flat(models.model("resnet18", models.Samples((3, 32, 32), 10), 0)).size == 11_173_962


def test_a_model_is_the_same_for_the_same_seed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two, other = (
            models.flat(models.model("mlp", models.Samples((5,), 2), seed)) for seed in (1, 1, 2)
        )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("model", "shape", "sentence"),
    [
        ("cnnn", (3, 32, 32), "unknown model 'cnnn'"),
        ("cnn", (64,), "square images"),
        ("resnet18", (64,), "takes images"),
        ("nowhere:factory", (3,), "cannot be imported"),
        ("qafel.tasks.models:MODELS", (3,), "must be a function, got dict"),
        (lambda: 3, (3,), "must return an nn.Module, got int"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), (3,), r"qafel.group_norm\(model\)"),
        (lambda: nn.Identity(), (3,), "no parameters"),
    ],
)
def test_a_bad_model_gets_one_sentence(model: Any, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        models.model(model, models.Samples(shape, 2), 0)


def test_an_unknown_engine_or_device_gets_one_sentence() -> None:
    module = models.model("mlp", models.Samples((4,), 2), 0)
    for name, device, sentence in [
        ("quick", "cpu", "unknown engine"),
        ("kernel", "cpu", "is for the model cnn"),
        ("plain", "tpu", "unknown device"),
        ("plain", "cuda", "no cuda device"),
    ]:
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(ConfigError, match=sentence):
            engines.engine(name, module, (4,), 32, device)


def test_without_pytorch_the_error_names_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; import qafel.tasks.learner"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("run: pip install 'qafel[torch]'")
