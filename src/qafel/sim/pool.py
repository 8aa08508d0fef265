"""Who trains: this process (``Here``), or one single-threaded worker process per core (``Workers``).

    follow(x̂, version, now)   x̂ moves on, for every task started after this
    start(event)              train from the x̂ of this moment; the frame goes to ``frames``
    wait(task), settle()      until the frame of a task, or of all tasks, is there
    judge(x)                  verdicts on the held-out samples

Who trains what, and when, changes nothing in the result: a task is named by its client and number, and so is
its randomness.
"""

import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from qafel.client import Client, Task, assign
from qafel.config import Job
from qafel.errors import QafelError, QafelWarning
from qafel.sim.frames import Frames
from qafel.sim.timeline import Event
from qafel.vectors import Vector


class Learner(Protocol):
    """What is learned; see ``qafel.tasks.learner``."""

    x: Vector
    clients: int
    fingerprint: int
    """Of the data and the model, to notice when a run is resumed with others."""

    @property
    def chunks(self) -> int:
        """Into how many pieces the held-out samples are cut."""

    @property
    def held_out(self) -> int:
        """How many held-out samples there are."""

    def prepare(self) -> None:
        """Called once in the process that trains."""

    def release(self) -> None:
        """Called in a process that trained and goes on with something else."""

    def samples(self, client: int) -> Any:
        """The samples of a client."""

    def delta(self, task: Task, samples: Any) -> Vector:
        """y_P − y_0 of a task; it must not change ``task.x``."""

    def judge(self, x: Vector, chunk: int) -> tuple[int, float]:
        """(how many are right, the sum of the losses) of a piece of the held-out samples."""


class WorkerError(QafelError):
    """Something went wrong in a worker; ``remote`` is its traceback."""

    def __init__(self, message: str, remote: str = "") -> None:
        super().__init__(message)
        self.remote = remote


class Trainer:
    """One core's work; keeps time."""

    def __init__(
        self, job: Job, learner: Learner, seconds: Any, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            self._client = Client(job, client=0)
        self._learner, self._clock = learner, clock
        self.seconds = seconds
        """Spent on samples, on training, and on coding."""

    def warm(self, x: Vector) -> None:
        """Load the kernels that training needs, for processes that are forked afterwards."""
        self._client.quantizer.encode(x, 0)

    def train(self, tasks: list[Task]) -> list[bytes]:
        """The frames of a few tasks; one kind of work after the other, while its code is in the cache."""
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


class Here:
    """Training in this process."""

    def __init__(self, job: Job, learner: Learner, frames: Frames) -> None:
        learner.prepare()
        self._trainer = Trainer(job, learner, np.zeros(3))
        self._job, self._frames, self._learner = job, frames, learner
        self._x = learner.x
        self.processes: list[int] = []

    def follow(self, x: Vector, version: int, now: float) -> None:
        """See the module."""
        del version, now
        self._x = x

    def start(self, event: Event) -> None:
        """See the module."""
        task = assign(self._job, event.client, event.number, event.version, self._x)
        try:
            [frame] = self._trainer.train([task])
        except QafelError:
            raise
        except Exception as error:
            raise WorkerError(sentence(error), traceback.format_exc()) from error
        self._frames.put(event.task, frame)

    def wait(self, task: int) -> None:
        """See the module."""

    def settle(self) -> None:
        """See the module."""

    def judge(self, x: Vector) -> list[tuple[int, float]]:
        """See the module."""
        return [self._learner.judge(x, chunk) for chunk in range(self._learner.chunks)]

    @property
    def seconds(self) -> list[float]:
        """Spent on samples, on training, and on coding."""
        return [float(s) for s in self._trainer.seconds]

    def close(self) -> None:
        """See the module."""
        self._learner.release()


def sentence(error: Exception) -> str:
    """What went wrong in a worker, for those who read it elsewhere."""
    said = " ".join(str(error).split())
    own = isinstance(error, QafelError)
    return said if own else f"local training failed: {type(error).__name__}: {said[:400]}"
