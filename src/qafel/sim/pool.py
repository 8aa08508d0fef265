"""Where clients train: in this process (``InProcess``), or in one worker process per core (``Workers``).

    follow(x̂, version, now)    tasks that start after this start from x̂
    start(event)               train a task; its frame goes to ``frames``
    wait(serial), settle()     wait for the frame of a task, or of all tasks
    evaluate(x, client, task)  metrics on the held-out samples, part by part; and the client quantizer's error
                               on this task of this client, from x

The result does not depend on where and when a task is trained: its randomness is named by its client and its
task number.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from qafel.client import Client, Task, assign
from qafel.config import Job
from qafel.errors import QafelError, QafelWarning, WorkerError, named
from qafel.sim.frames import Frames
from qafel.sim.timeline import Event
from qafel.streams import derive
from qafel.vectors import Vector


class Learner(Protocol):
    """A learning problem; ``qafel.tasks.learner.Learner`` is one.

    It may also have ``layout``, the names and shapes of its tensors, which some quantizers use.
    """

    x: Vector
    clients: int

    @property
    def fingerprint(self) -> int:
        """A fingerprint of the data, the model and the training: a run must be resumed with the same."""

    @property
    def chunks(self) -> int:
        """The number of parts that the held-out samples are cut into."""

    @property
    def held_out(self) -> int:
        """The number of held-out samples."""

    def prepare(self) -> None:
        """Prepare this process for training; called once in every process that trains."""

    def release(self) -> None:
        """Undo ``prepare`` in a process that goes on with something else."""

    def samples(self, client: int) -> Any:
        """The samples of a client."""

    def delta(self, task: Task, samples: Any) -> Vector:
        """y_P − y_0 of a task; it must not change ``task.x``."""

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """Metrics of a part of the held-out samples, each summed over its samples."""


class Trainer:
    """Trains tasks on one core and measures the time."""

    def __init__(
        self, job: Job, learner: Learner, seconds: Any, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            self._client = Client(job, client=0)
        self._learner, self._clock = learner, clock
        self.seconds = seconds
        """Seconds spent on samples, training and coding."""

    def warm(self, x: Vector) -> None:
        """Load the kernels that training needs, so that forked processes have them."""
        self._client.quantizer.encode(x, 0)

    def error(self, task: Task) -> float:
        """The client quantizer's squared relative error on a task, which is trained for this only.

        NaN if it cannot be trained: what is measured must not end a run.
        """
        quantizer = self._client.quantizer
        if quantizer.lossless:
            return 0.0
        try:
            delta = self._learner.delta(task, self._learner.samples(task.client))
            rounded = quantizer.decode(quantizer.encode(delta, derive(task.seed, "update")), len(delta))
        except Exception:
            return math.nan
        total = float(np.square(delta, dtype=np.float64).sum())
        return float(np.square(rounded - delta, dtype=np.float64).sum()) / total if total else 0.0

    def train(self, tasks: list[Task]) -> list[bytes]:
        """The frames of some tasks; each kind of work is done for all of them, while its code is cached."""
        began = self._clock()
        samples = [self._learner.samples(task.client) for task in tasks]
        ready = self._clock()
        deltas = list(map(self._learner.delta, tasks, samples))
        trained = self._clock()
        frames = list(map(self._client.finish, tasks, deltas))
        self.seconds[0] += ready - began
        self.seconds[1] += trained - ready
        self.seconds[2] += self._clock() - trained
        return frames


class InProcess:
    """Training in this process."""

    def __init__(self, job: Job, learner: Learner, frames: Frames) -> None:
        learner.prepare()
        self._trainer = Trainer(job, learner, np.zeros(3))
        self._job, self._frames, self._learner = job, frames, learner
        self._x = learner.x
        self.processes: list[int] = []

    def follow(self, x: Vector, version: int, now: float) -> None:
        """Train from this x̂ from now on."""
        del version, now
        self._x = x

    def start(self, event: Event) -> None:
        """Train a task, now."""
        task = assign(self._job, event.client, event.task, event.version, self._x)
        try:
            [frame] = self._trainer.train([task])
        except QafelError:
            raise
        except Exception as error:
            raise WorkerError(describe(error)) from error
        self._frames.put(event.serial, frame)

    def wait(self, serial: int) -> None:
        """Nothing to wait for: the frame is there."""

    def settle(self) -> None:
        """Nothing to wait for."""

    def evaluate(self, x: Vector, client: int, task: int) -> tuple[list[dict[str, float]], float]:
        """The sums of the metrics, chunk by chunk, and the client quantizer's error on one task."""
        parts = [self._learner.evaluate(x, chunk) for chunk in range(self._learner.chunks)]
        return parts, self._trainer.error(assign(self._job, client, task, 0, x))

    @property
    def seconds(self) -> list[float]:
        """Seconds spent on samples, training and coding."""
        return [float(s) for s in self._trainer.seconds]

    def close(self) -> None:
        """Release the data."""
        self._learner.release()


def describe(error: Exception) -> str:
    """An error of local training in one sentence."""
    return str(error) if isinstance(error, QafelError) else f"local training failed: {named(error)}"
