"""A learner: a population, a model and local SGD, ready to be trained on one core."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from qafel import wire
from qafel.client import Task
from qafel.errors import ConfigError
from qafel.tasks.data.table import Population
from qafel.tasks.local import LocalSgd
from qafel.vectors import Layout, Vector

CHUNK = 64
"""Held-out samples that are judged at once."""


class Learner:
    """What the simulator needs of a task: x⁰, deltas, and a verdict on held-out samples.

    It is made in one process and used in others, which share its memory; ``prepare`` is called in each.
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
        from qafel.tasks import engines, models

        self.population, self.sgd, self.clients = population, sgd, population.clients
        self._held_x, self._held_labels = population.held_out(held_out_samples)
        if not len(self._held_labels):
            raise ConfigError("the data holds out no samples; some are needed to measure the accuracy")
        module = models.model(model, population.shape, population.classes, seed)
        self._module = module
        self.layout: Layout = models.layout(module)
        self.x: Vector = models.flat(module)
        held = wire.fingerprint(self._held_x.tobytes(), self.clients)
        self.fingerprint = wire.fingerprint(self.x.tobytes() + self._held_labels.tobytes(), held)
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._engine = engines.engine(engine, module, population.shape, sgd.batch_size, device)
            self._check(population)
        finally:
            torch.set_num_threads(threads)

    def _check(self, population: Population) -> None:
        """Try the model on one sample: better now than in the middle of a run, or in every worker."""
        import torch

        before = [b.clone() for b in self._module.buffers()]
        try:
            outputs = self._engine.scores(self.x, self._held_x[:1])
            if outputs.ndim == 2 and outputs.shape[1] >= population.classes:
                self._engine.gradient(self.x, self._held_x[:1], self._held_labels[:1], 0)
            buffers = [b.clone() for b in self._module.buffers()]
            if not all(map(torch.equal, before, buffers)):
                raise ConfigError("the model changes its buffers when it is trained, and they are not sent")
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
                f"the model's output has the shape {outputs.shape[1:]}, and the data has labels up to "
                f"{population.classes - 1}"
            )

    @property
    def held_out(self) -> int:
        """How many held-out samples there are."""
        return len(self._held_labels)

    @property
    def chunks(self) -> int:
        """Into how many pieces they are cut to be judged."""
        return -(-self.held_out // CHUNK)

    def prepare(self) -> None:
        """Make this process a worker: one thread, and memory that is kept instead of given back."""
        import torch

        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_memory()

    def release(self) -> None:
        """Give the threads back to a process that goes on with something else."""
        import torch

        torch.set_num_threads(self._threads)

    def samples(self, client: int) -> tuple[Vector, Any]:
        """The samples of a client."""
        return self.population.samples(client)

    def delta(self, task: Task, samples: tuple[Vector, Any]) -> Vector:
        """y_P − y_0 of a task."""
        return self.sgd.delta(self._engine, *samples, task)

    def judge(self, x: Vector, chunk: int) -> tuple[int, float]:
        """(how many are right, the sum of the losses) of a piece of the held-out samples."""
        from qafel.tasks.engines import judge

        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        return judge(self._engine.scores(x, self._held_x[rows]), self._held_labels[rows])


def keep_memory() -> None:
    """Let malloc keep large blocks: fresh pages for every tensor cost a third of the time."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
