"""Logistic regression with ridge, exactly: the problem of the mushrooms study.

    f(w) = mean log(1 + exp(−s·⟨w, x⟩)) + ‖w‖²/(2n)

All samples are trained on; clients hold consecutive equal shares of them. f* is computed by Newton's method.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel import sim, wire
from qafel.client import Task
from qafel.errors import ConfigError
from qafel.reproduce.problem import InMemory
from qafel.sim import Settings
from qafel.tasks.data.table import Table
from qafel.vectors import Vector

CLIENTS = 100
STEPS = 10
"""Local steps, P."""
RATE = 2.0
"""Local rate, η_ℓ."""
BUFFER, SERVER_RATE = 10, 0.1
"""K and η_g."""
LANES = 16


def settings(chosen: Mapping[str, Any], uploads: int, seed: int) -> Settings:
    """The study's clock and rates."""
    fixed = {"arrivals": "closed", "momentum": 0.0, "server_rate": SERVER_RATE, "buffer_size": BUFFER}
    length = {"uploads": uploads, "evaluate_every": uploads, "seed": seed}
    return sim.make_settings({**fixed, **chosen, **length})


class Logistic(InMemory):
    """A learner for the simulator: ridge logistic regression with P full-batch steps."""

    def __init__(self, table: Table, clients: int = CLIENTS) -> None:
        from qafel.reproduce import kernels

        if table.classes != 2 or table.x.ndim != 2:
            raise ConfigError(f"{table.source} is not a table of numbers with two classes")
        if clients > len(table.y):
            raise ConfigError(f"{table.source} has {len(table.y)} samples, too few for {clients} clients")
        ones = np.ones((len(table.y), 1))
        self.x64: npt.NDArray[np.float64] = np.hstack([table.x.astype(np.float64), ones])
        self.signs = np.where(table.y == 1, 1.0, -1.0)
        self.clients, self.held_out = clients, len(table.y)
        self.ridge = 1 / len(table.y)
        size = self.x64.shape[1]
        self.x: Vector = np.zeros(size, np.float32)
        self.fingerprint = wire.fingerprint(self.x64.tobytes())
        self.rows = np.array_split(np.arange(len(table.y)), clients)
        self.rates = np.array([RATE, 1 - RATE * self.ridge, (1 - RATE * self.ridge) ** STEPS - 1], np.float32)
        self.padded = self._padded(max(map(len, self.rows)))
        self.parts = [tuple(part[client] for part in self.padded) for client in range(clients)]
        self.scratch = np.zeros((5, max(self.padded[0].shape[2], self.padded[2].shape[1])), np.float32)
        self._descend: Any = kernels.descend

    def _padded(self, max_samples: int) -> tuple[Vector, Vector, Vector, Vector]:
        """(x, gram, signs, share) of all clients for the kernel, padded with zeros, which have no effect."""
        rows, columns = _up(max_samples, 4), _up(self.x.size, LANES)
        x = np.zeros((self.clients, rows, columns), np.float32)
        signs = np.ones((self.clients, _up(max_samples, LANES)), np.float32)
        small = max_samples <= self.x.size
        grams = np.zeros((self.clients, rows, signs.shape[1]) if small else (self.clients, 0, 0), np.float32)
        for client, mine in enumerate(self.rows):
            x[client, : len(mine), : self.x.size] = self.x64[mine]
            signs[client, : len(mine)] = self.signs[mine]
            if small:
                grams[client, : len(mine), : len(mine)] = RATE * self.x64[mine] @ self.x64[mine].T
        return x, grams, signs, np.array([1 / len(mine) for mine in self.rows], np.float32)

    def delta(self, task: Task, samples: Any) -> Vector:
        """y_P − y_0."""
        delta = np.empty_like(self.x)
        self._descend(samples, task.x, self.rates, STEPS, self.scratch, delta)
        return delta

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """Accuracy and f, each times the number of samples."""
        del chunk
        right = float(((self.x64 @ x > 0) == (self.signs > 0)).sum())
        return {"accuracy": right, "loss": self.objective(x.astype(np.float64)) * self.held_out}

    def objective(self, w: npt.NDArray[np.float64]) -> float:
        """f."""
        scores = np.einsum("ij,j->i", self.x64, w)  # ``@`` would use threads, and other runs need the cores
        losses = np.logaddexp(0, -self.signs * scores)
        return float(losses.mean() + self.ridge / 2 * (w @ w))

    def optimum(self) -> float:
        """f*, by Newton's method with step halving, until f no longer decreases."""
        w = np.zeros(self.x.size)
        value = self.objective(w)
        for _ in range(100):
            away = 1 / (1 + np.exp(self.signs * (self.x64 @ w)))
            gradient = self.ridge * w - self.x64.T @ (self.signs * away) / self.held_out
            curvature = (self.x64.T * (away * (1 - away))) @ self.x64 / self.held_out
            step = np.linalg.solve(curvature + self.ridge * np.eye(w.size), gradient)
            length = 1.0
            while (new := self.objective(w - length * step)) > value and length > 1e-9:
                length /= 2
            if new >= value:
                break
            w, value = w - length * step, new
        return value


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
