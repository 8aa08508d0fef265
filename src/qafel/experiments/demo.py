"""A small complete federation in memory: QAFeL beside FedBuff, logistic regression on scikit-learn's
breast-cancer data.

Twenty clients train all the time, each at its own speed, and restart as soon as they have reported; server
and clients exchange real frames. Both algorithms live through the same schedule.
"""

import heapq
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from qafel import report
from qafel.client import Client, Task, local_sgd
from qafel.config import Job, algorithm
from qafel.errors import MissingExtraError
from qafel.server import Server, Stepped
from qafel.streams import generator
from qafel.vectors import Vector

CLIENTS = 20
UPLOADS = 3000
LOCAL_RATES = (0.2,) * 5
BATCH = 16
PENALTY = 1e-4

Features = npt.NDArray[np.float32]


class Run(msgspec.Struct, frozen=True):
    """What one algorithm did: its curve, and its totals in real bytes."""

    algorithm: str
    uploads: int
    loss: float
    accuracy: float
    bytes_up: int
    bytes_down: int
    mean_staleness: float
    curve: list[tuple[int, float, int, int]]
    """(uploads, loss, bytes up, bytes down) after every server step."""


def load() -> tuple[Features, Features, Features, Features]:
    """(features, labels ±1) to train on and to test on: the 30 measurements and their products, standardised,
    and a constant.
    """
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise MissingExtraError("the breast-cancer data", "data") from error
    data = load_breast_cancer()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    rows, columns = np.triu_indices(x.shape[1])
    x = np.hstack([x, x[:, rows] * x[:, columns]])
    x = np.hstack([(x - x.mean(0)) / x.std(0) / np.sqrt(x.shape[1]), np.ones((len(x), 1))]).astype(np.float32)
    y = (2 * data.target - 1).astype(np.float32)
    order = generator(0, "split").permutation(len(x))
    train, test = order[: 4 * len(x) // 5], order[4 * len(x) // 5 :]
    return x[train], y[train], x[test], y[test]


def loss(w: Vector, x: Features, y: Features) -> float:
    """Regularised logistic loss."""
    return float(np.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * float(w @ w))


def gradient_of(x: Features, y: Features) -> Callable[[Vector, Task, int], Vector]:
    """The stochastic gradient of a client that holds these rows."""

    def gradient(w: Vector, task: Task, p: int) -> Vector:
        rows = generator(task.seed, "batch", p).integers(0, len(x), BATCH)
        slope = -y[rows] / (1 + np.exp(y[rows] * (x[rows] @ w)))
        step: Vector = (slope @ x[rows] / BATCH + PENALTY * w).astype(np.float32)
        return step

    return gradient


def run(job: Job, name: str, uploads: int = UPLOADS, progress: Callable[[int], None] = lambda _: None) -> Run:
    """Train until the server has received ``uploads`` updates."""
    x, y, test_x, test_y = load()
    start = np.zeros(job.size, np.float32)
    server = Server(job, start)
    clients = [Client(job, start, client=k) for k in range(CLIENTS)]
    trainers = [
        local_sgd(gradient_of(x[rows], y[rows]), LOCAL_RATES)
        for rows in np.array_split(np.arange(len(x)), CLIENTS)
    ]
    clock = generator(job.seed, "durations")
    arrivals = [(abs(clock.standard_normal()), k, clients[k].train(trainers[k])) for k in range(CLIENTS)]
    heapq.heapify(arrivals)
    bytes_up = bytes_down = staleness = 0
    curve = [(0, loss(server.x, x, y), 0, 0)]
    for upload in range(1, uploads + 1):
        now, k, frame = heapq.heappop(arrivals)
        bytes_up += len(frame)
        for event in server.receive(frame):
            if isinstance(event, Stepped):
                bytes_down += len(event.frame)
                for client in clients:
                    client.apply(event.frame)
                curve.append((upload, loss(server.x, x, y), bytes_up, bytes_down))
            else:
                staleness += getattr(event, "staleness", 0)
        heapq.heappush(arrivals, (now + abs(clock.standard_normal()), k, clients[k].train(trainers[k])))
        progress(upload)
    accuracy = float((np.sign(test_x @ server.x) == test_y).mean())
    return Run(name, uploads, curve[-1][1], accuracy, bytes_up, bytes_down, staleness / uploads, curve)


def jobs(seed: int = 0) -> dict[str, Job]:
    """The two jobs of the demo, by name."""
    size = load()[0].shape[1]
    shared = {"size": size, "buffer_size": 5, "server_rate": 2.0, "momentum": 0.3, "seed": seed}
    return {"QAFeL": algorithm("qafel", **shared), "FedBuff": algorithm("fedbuff", **shared)}


def draw(runs: list[Run], path: Path) -> Path:
    """Loss against uploads, kB up and kB broadcast."""
    panels = [("client uploads", 0, 1.0), ("kB uploaded", 2, 1e-3), ("kB broadcast", 3, 1e-3)]
    lines = [
        (label, [(r.algorithm, [p[column] * unit for p in r.curve], [p[1] for p in r.curve]) for r in runs])
        for label, column, unit in panels
    ]
    return report.curves(path, lines, "training loss")
