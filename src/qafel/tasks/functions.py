"""Learning without PyTorch: a learning problem of functions, for numpy, scikit-learn, JAX or anything else.

``train(x̂, task, samples)`` returns the delta, y_P − y_0, of a task that starts from x̂ on the client's samples
(inputs, targets); the last arguments may be left out. ``evaluate(x)`` returns the metrics of a model by name.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qafel import vectors, wire
from qafel.client import Task
from qafel.errors import ConfigError, named
from qafel.streams import derive
from qafel.tasks.data import arrays
from qafel.tasks.data.table import Population
from qafel.tasks.values import PYTHON, not_importable
from qafel.vectors import Layout, Vector


def import_module(name: str) -> Any:
    """A user's module; the working directory is searched, too."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module can raise anything
        raise ConfigError(f"the module {name} cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)


def import_function(value: Any, what: str) -> Any:
    """A function that may be given as ``package.module:name``; the working directory is searched, too."""
    if isinstance(value, str):
        module, _, attribute = value.partition(":")
        try:
            value = getattr(import_module(module), attribute)
        except (ConfigError, AttributeError) as error:
            raise ConfigError(
                f"the {what} {module}:{attribute} cannot be imported ({error.__cause__ or error}); write it "
                "as package.module:name"
            ) from error
    if value is not None and not callable(value):
        raise ConfigError(f"the {what} must be a function, got {type(value).__name__}")
    return value


def call_factory(factory: Callable[..., Any], what: str, *arguments: Any) -> Any:
    """Call a user's factory with the first arguments, as many as it takes."""
    try:
        return factory(*arguments[: parameters_of(factory, len(arguments))])
    except Exception as error:
        raise ConfigError(f"the {what} factory failed: {named(error)}") from error


def parameters_of(function: Callable[..., Any], max_arguments: int, *, required: bool = False) -> int:
    """How many positional arguments a function takes, up to a limit; ``required``: without a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a built-in function without a signature
        return max_arguments
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return max_arguments
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    counted = [p for p in parameters if p.kind in kinds and not (required and p.default is not p.empty)]
    return min(max_arguments, len(counted))


def imported(value: Any, name: str) -> Any:
    """The function of a setting; ConfigError if there is only a description of it."""
    if isinstance(value, str) and value.startswith(PYTHON):
        raise not_importable(name, value)
    return import_function(value, name)


class NoSamples:
    """Clients whose samples only ``train`` knows."""

    shape: Any = ()
    classes = 0

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def count(self, client: int) -> int:
        """The number of samples of a client: not known, so 1."""
        del client
        return 1

    def samples(self, client: int) -> tuple[Any, Any]:
        """No samples."""
        del client
        return None, None

    held_out = samples


class FunctionLearner:
    """A learning problem of functions."""

    engine_name = "auto"
    layout: Layout | None = None
    chunks = held_out = 1

    def __init__(
        self,
        population: Population,
        x: Any,
        train: Callable[..., Any],
        evaluate: Callable[[Vector], Mapping[str, float]],
    ) -> None:
        self.population, self.clients = population, population.clients
        try:
            self.x = vectors.as_vector(np.ascontiguousarray(x, np.float32).ravel())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"x must be an array of numbers, the first model, got {x!r:.60}") from error
        self._train, self._evaluate, self._takes = train, evaluate, parameters_of(train, 3)

    def prepare(self) -> None:
        """Nothing to prepare."""

    def release(self) -> None:
        """Nothing to undo."""

    def count(self, client: int) -> int:
        """The number of samples of a client."""
        return self.population.count(client)

    def samples(self, client: int) -> tuple[Any, Any]:
        """The samples of a client."""
        return self.population.samples(client)

    def delta(self, task: Task, samples: tuple[Any, Any]) -> Vector:
        """y_P − y_0 of a task."""
        return as_delta(self._train(*(task.x.copy(), task, samples)[: self._takes]), self.x.size)

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """The metrics of a model."""
        del chunk
        metrics = self._evaluate(x)
        if not isinstance(metrics, Mapping) or not metrics:
            raise ConfigError(f"evaluate must return {{name: value}}, got {type(metrics).__name__}")
        try:
            return {str(name): float(value) for name, value in metrics.items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"evaluate must return numbers by name: {error}") from error

    @functools.cached_property
    def fingerprint(self) -> int:
        """A fingerprint of the first model and the result of one task."""
        return wire.fingerprint(self.x.tobytes(), self.clients ^ probe(self))


def as_delta(value: Any, size: int) -> Vector:
    """A delta that a function of the user returned, as a vector."""
    delta = np.asarray(arrays.on_cpu(value))
    if delta.dtype.kind != "f" or delta.size != size:
        raise ConfigError(
            f"train must return the delta, {size} real numbers, got {delta.dtype} of shape {delta.shape}"
        )
    return np.ascontiguousarray(delta, np.float32).ravel()


def probe(learner: Any) -> int:
    """A fingerprint of the delta of one task: it changes with the loss, the optimizer or the samples."""
    task = Task(0, 0, 0, derive(0, "probe"), learner.x.copy())
    return wire.fingerprint(np.asarray(learner.delta(task, learner.samples(0))).tobytes())
