"""A learner in plain numpy, for schedules that are compared with the slow twin."""

from typing import Any

import numpy as np

from qafel import Task
from qafel.vectors import Vector

SIZE = 300


def step(x: Vector, client: int, rng: np.random.Generator) -> Vector:
    """A noisy step towards the client's own optimum."""
    target = np.linspace(-1, 1, x.size, dtype=np.float32) + np.float32(0.1 * client)
    noise = rng.standard_normal(x.size).astype(np.float32)
    delta: Vector = (np.float32(0.1) * (target - x) + np.float32(0.01) * noise).astype(np.float32)
    return delta


class Quadratic:
    """Clients pull x towards their optimum; accuracy is the share of coordinates near the middle one."""

    def __init__(self, clients: int = 7, size: int = SIZE) -> None:
        self.fingerprint = 0
        self.clients, self.x, self.chunks, self.held_out = clients, np.zeros(size, np.float32), 2, size

    def prepare(self) -> None:
        """Nothing to prepare."""

    def release(self) -> None:
        """Nothing to give back."""

    def count(self, client: int) -> int:
        return 1 + client

    def samples(self, client: int) -> int:
        return client

    def delta(self, task: Task, samples: Any) -> Vector:
        return step(task.x, samples, task.generator())

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        half = np.array_split(x - np.linspace(-1, 1, x.size, dtype=np.float32), 2)[chunk]
        near = float((np.abs(half) < 0.5).sum())
        return {"accuracy": near, "loss": float(np.square(half, dtype=np.float64).sum())}
