"""The learner: a population, a model and local SGD, combined into one learning problem."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from qafel import wire
from qafel.client import Task
from qafel.errors import ConfigError
from qafel.tasks import engines, models
from qafel.tasks.data.table import Population
from qafel.tasks.local import LocalSgd
from qafel.tasks.models import torch
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
        model: str | Callable[..., Any],
        sgd: LocalSgd,
        *,
        engine: str = "auto",
        device: str = "cpu",
        held_out_samples: int = 1000,
        seed: int = 0,
    ) -> None:
        self.population, self.sgd, self.clients = population, sgd, population.clients
        self._held_x, self._held_labels = population.held_out(held_out_samples)
        if not len(self._held_labels):
            raise ConfigError("the data has no held-out samples, which the evaluation needs; raise held_out")
        module = models.model(model, population.shape, population.classes, seed)
        self._module = module
        self.layout: Layout = models.layout(module)
        self.x: Vector = models.flat(module)
        held = wire.fingerprint(self._held_x.tobytes(), self.clients)
        self.fingerprint = wire.fingerprint(self.x.tobytes() + self._held_labels.tobytes(), held)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._engine = engines.engine(engine, module, population.shape, sgd.batch_size, device)
            self._check(population)
        finally:
            torch.set_num_threads(threads)

    def _check(self, population: Population) -> None:
        """Try the model on one sample, so that errors are raised before the run starts."""
        before = [b.clone() for b in self._module.buffers()]
        try:
            outputs = self._engine.scores(self.x, self._held_x[:1])
            if outputs.ndim == 2 and outputs.shape[1] >= population.classes:
                self._engine.gradient(self.x, self._held_x[:1], self._held_labels[:1], 0)
            buffers = [b.clone() for b in self._module.buffers()]
            if not all(map(torch.equal, before, buffers)):
                raise ConfigError(
                    "the model changes its buffers in training; buffers are not sent, so use GroupNorm"
                )
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the model does not take samples of shape {population.shape}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
        width = outputs.shape[1] if outputs.ndim == 2 else 0
        if width < 1 or (width == 1 and population.classes > 2) or (width > 1 and population.classes > width):
            raise ConfigError(
                f"the model must have one output per class ({population.classes}), or one output for two "
                f"classes, got outputs of shape {outputs.shape[1:]}"
            )

    def hold_out(self, x: Vector, labels: Any) -> None:
        """Evaluate on these samples from now on."""
        self._held_x, self._held_labels = x, labels

    @property
    def held_out(self) -> int:
        """The number of held-out samples."""
        return len(self._held_labels)

    @property
    def chunks(self) -> int:
        """The number of chunks that the held-out samples are cut into."""
        return -(-self.held_out // CHUNK)

    def prepare(self) -> None:
        """Prepare this process for training: one thread, and an allocator that keeps its memory."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_memory()

    def release(self) -> None:
        """Restore the number of threads."""
        torch.set_num_threads(self._threads)

    def samples(self, client: int) -> tuple[Vector, Any]:
        """The samples of a client."""
        return self.population.samples(client)

    def delta(self, task: Task, samples: tuple[Vector, Any]) -> Vector:
        """y_P − y_0 of a task."""
        return self.sgd.delta(self._engine, *samples, task)

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """Metrics on one chunk of the held-out samples, each summed over the samples of the chunk."""
        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        return engines.evaluate(self._engine.scores(x, self._held_x[rows]), self._held_labels[rows])

    @property
    def engine_name(self) -> str:
        """The engine in use: ``kernel``, ``compile`` or ``plain``."""
        return self._engine.name


def keep_memory() -> None:
    """Let malloc reuse large blocks; otherwise every tensor gets new pages, which takes much of the time."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
