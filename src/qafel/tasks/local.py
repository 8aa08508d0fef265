"""Local training: P steps on a client's samples.

With SGD, the default:

    g ← ∇f(y; batch) + weight_decay·y + prox·(y − y_0)
    m ← local_momentum·m + g
    y ← y − η_ℓ·m

The steps are accumulated into the delta. Computing y_P − y_0 at the end would lose most of it for small
learning rates (η_ℓ = 1e-6), because both models are float32.

With an optimizer of PyTorch, which is made anew for every task and keeps nothing between tasks, the delta is
y_P − y_0.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.client import Task
from qafel.errors import ConfigError, DivergenceError
from qafel.streams import derive
from qafel.tasks.data import arrays
from qafel.tasks.engines import Engine, Torch
from qafel.tasks.functions import parameters_of
from qafel.vectors import Vector, is_finite


class LocalSgd(msgspec.Struct, frozen=True):
    """The settings of local training."""

    rate: float
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None
    """P, the number of local steps; None: ``epochs`` passes over the client's samples."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    optimizer: Callable[..., Any] | None = None
    """Makes an optimizer of PyTorch from the parameters, or from the parameters and the task."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"local_momentum must be at least 0 and below 1, got {self.momentum}")
        for name in ("weight_decay", "prox"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if self.optimizer is not None and (self.momentum or self.weight_decay):
            raise ConfigError(
                "local_momentum and weight_decay have no effect beside an optimizer; give them to it instead"
            )

    def batches(self, count: int, task: Task) -> Iterator[slice | npt.NDArray[np.int64]]:
        """The rows of each step's batch, from passes over the samples that are shuffled anew each time."""
        per_pass = -(-count // self.batch_size)
        steps = self.epochs * per_pass if self.steps is None else self.steps
        order: npt.NDArray[np.int64] | None = None
        for p in range(steps):
            if per_pass == 1:
                yield slice(None)
                continue
            if p % per_pass == 0:
                order = task.generator("order", p // per_pass).permutation(count)
            first = p % per_pass * self.batch_size
            assert order is not None
            yield order[first : first + self.batch_size]

    def delta(self, engine: Engine, x: Any, targets: Any, task: Task) -> Vector:
        """Train from y_0 = ``task.x`` on the samples ``x`` and return y_P − y_0.

        Raises DivergenceError if a loss or gradient is not finite.
        """
        if self.optimizer is not None:
            return self._optimize(engine, x, targets, task)
        delta: Vector | None = None
        velocity: Vector | None = None
        for p, rows in enumerate(self.batches(arrays.count(targets), task)):
            y = task.x if delta is None else task.x + delta
            batch = arrays.rows(x, rows), arrays.rows(targets, rows)
            g, loss = engine.gradient(y, *batch, derive(task.seed, "gradient", p))
            if not (np.isfinite(loss) and is_finite(g)):
                raise _diverged(task)
            if self.weight_decay:
                g += np.float32(self.weight_decay) * y
            if self.prox and delta is not None:
                g += np.float32(self.prox) * delta
            if self.momentum:
                velocity = g if velocity is None else np.float32(self.momentum) * velocity + g
                g = velocity
            step = np.float32(-self.rate) * g
            delta = step if delta is None else delta + step
        assert delta is not None
        return delta

    def _optimize(self, engine: Engine, x: Any, targets: Any, task: Task) -> Vector:
        """Train with an optimizer of PyTorch."""
        if not isinstance(engine, Torch) or self.optimizer is None:
            raise ConfigError(f"an optimizer needs the engine plain or compile, got {engine.name}")
        engine.load(task.x)
        arguments = engine.parameters, task
        rule = self.optimizer(*arguments[: max(1, parameters_of(self.optimizer, 2, required=True))])
        if not hasattr(rule, "step"):
            raise ConfigError(
                f"optimizer must be a function that makes a torch.optim.Optimizer, got {type(rule).__name__}"
            )
        for p, rows in enumerate(self.batches(arrays.count(targets), task)):
            batch = arrays.rows(x, rows), arrays.rows(targets, rows)
            loss = engine.optimize(rule, *batch, derive(task.seed, "gradient", p), task.x, self.prox)
            if not np.isfinite(loss):
                raise _diverged(task)
        delta = engine.parameter_vector() - task.x
        if not is_finite(delta):
            raise _diverged(task)
        return delta


def _diverged(task: Task) -> DivergenceError:
    return DivergenceError(
        f"the loss or the gradient is not finite on client {task.client} (task {task.task}, version "
        f"{task.version}); lower local_rate or server_rate, or check the model and the data"
    )
