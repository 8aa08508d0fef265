"""The learner: a population, a PyTorch model, a loss and local training: one learning problem."""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qafel import wire
from qafel.client import Task
from qafel.errors import ConfigError, named
from qafel.tasks import engines, models
from qafel.tasks.data import arrays
from qafel.tasks.data.table import Population
from qafel.tasks.functions import probe
from qafel.tasks.local import LocalSgd
from qafel.tasks.measures import Function, Measures, check_outputs
from qafel.tasks.models import Samples, torch
from qafel.vectors import Layout, Vector

CHUNK = 64
"""The number of held-out samples that are evaluated at once."""


class Learner:
    """A learning problem: x⁰, the clients' deltas, and metrics on held-out samples.

    It is created in one process and used in its forks, which share its memory. Each fork calls ``prepare``.
    """

    def __init__(
        self,
        population: Population,
        model: Any,
        sgd: LocalSgd,
        *,
        loss: Function | None = None,
        metrics: Mapping[str, Function] | None = None,
        engine: str = "auto",
        device: str = "cpu",
        batch_statistics: bool = False,
        held_out_samples: int = 1000,
        seed: int = 0,
    ) -> None:
        self.population, self.sgd, self.clients = population, sgd, population.clients
        self._real = model in models.REAL if isinstance(model, str) else False
        self._held = self._cast(population.held_out(held_out_samples))
        if not self.held_out:
            raise ConfigError("the data has no held-out samples, which the evaluation needs; raise held_out")
        self._even = batch_statistics
        self._classes = population.classes
        samples = Samples(
            population.shape,
            population.classes,
            getattr(population, "vocabulary", 0),
            arrays.shapes(self._held[1]),
        )
        module = models.model(model, samples, seed, batch_statistics=batch_statistics)
        self._module = module
        self.measures = Measures(loss, metrics or {}, classes=population.classes)
        self.layout: Layout = models.layout(module)
        self.x: Vector = models.flat(module)
        plain = loss is None and sgd.optimizer is None and samples.target_shape == () and self._classes > 0
        with _one_thread():
            self._engine = engines.engine(
                engine,
                module,
                population.shape,
                sgd.batch_size,
                device,
                self.measures.loss,
                kernels=plain,
                batch_statistics=batch_statistics,
            )
            self._check()

    def _cast(self, samples: tuple[Any, Any]) -> tuple[Any, Any]:
        """Real numbers for the built-in models that take no integers."""
        x, targets = samples
        if self._real and not isinstance(x, dict) and x.dtype.kind in "iu":
            x = x.astype(np.float32)
        return x, targets

    def _check(self) -> None:
        """Try the model on two samples, so that errors are raised before the run starts."""
        x, targets = (arrays.rows(part, slice(2)) for part in self._held)
        before = [b.clone() for b in self._module.buffers()]
        try:
            outputs = self._engine.outputs(self.x, x)
        except Exception as error:
            raise ConfigError(
                f"the model does not take samples of shape {self.population.shape}: {named(error)}"
            ) from error
        if self.measures.custom is None:
            check_outputs(outputs, targets, self._classes)
        try:
            self._engine.gradient(self.x, x, targets, 0)
            self.measures.sums(outputs, targets)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the loss or a metric fails on these outputs and targets: {named(error)}"
            ) from error
        if not self._even and not all(map(torch.equal, before, self._module.buffers())):
            raise ConfigError(
                "the model changes its buffers in training; buffers are not sent, so use layers without "
                "them, or keep them on the clients with batch_statistics = true"
            )

    def hold_out(self, x: Any, targets: Any) -> None:
        """Evaluate on these samples from now on."""
        self._held = x, targets

    @property
    def held_out(self) -> int:
        """The number of held-out samples."""
        return arrays.count(self._held[1])

    @property
    def chunks(self) -> int:
        """The number of chunks that the held-out samples are cut into."""
        return 1 if self.measures.whole else -(-self.held_out // CHUNK)

    def _slice(self, chunk: int) -> slice:
        if self._even:  # no chunk of a single sample, whose statistics say nothing
            count = -(-self.held_out // CHUNK)
            return slice(chunk * self.held_out // count, (chunk + 1) * self.held_out // count)
        return slice(chunk * CHUNK, (chunk + 1) * CHUNK)

    def prepare(self) -> None:
        """Prepare this process for training: one thread, and an allocator that keeps its memory."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_memory()

    def release(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)

    def count(self, client: int) -> int:
        """The number of samples of a client."""
        return self.population.count(client)

    def samples(self, client: int) -> tuple[Any, Any]:
        """The samples of a client."""
        return self._cast(self.population.samples(client))

    def delta(self, task: Task, samples: tuple[Any, Any]) -> Vector:
        """y_P − y_0 of a task."""
        return self.sgd.delta(self._engine, *samples, task)

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """Metrics on one chunk of the held-out samples, each summed over the samples of the chunk."""
        if not self.measures.whole:
            inputs, targets = (arrays.rows(part, self._slice(chunk)) for part in self._held)
            return self.measures.sums(self._engine.outputs(x, inputs), targets)
        parts = [
            self._engine.outputs(x, arrays.rows(self._held[0], self._slice(k)))
            for k in range(-(-self.held_out // CHUNK))
        ]
        return self.measures.sums(_joined(parts), self._held[1])

    @functools.cached_property
    def fingerprint(self) -> int:
        """A fingerprint of the model, the held-out samples and the result of one task."""
        held = b"".join(part.tobytes() for data in self._held for part in arrays.leaves(data))
        with _one_thread():
            return wire.fingerprint(self.x.tobytes() + held, self.clients ^ probe(self))

    @property
    def engine_name(self) -> str:
        """The engine in use: ``kernel``, ``compile`` or ``plain``."""
        return self._engine.name


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Train with one thread, as the workers do: the number of threads changes the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _joined(parts: list[Any]) -> Any:
    """The outputs of all chunks."""
    if isinstance(parts[0], dict):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple | list):
        return tuple(map(_joined, (list(column) for column in zip(*parts, strict=True))))
    return torch.cat([torch.as_tensor(part) for part in parts])


def keep_memory() -> None:
    """Let malloc reuse large blocks; otherwise every tensor gets new pages, which takes much of the time."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
