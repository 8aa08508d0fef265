"""A federation of three processes: a server with a test set, and two clients with their own data.

    python examples/federation.py

The words are those of ``simulate``. The server does not see the clients' samples; the clients decide what
they run. On real machines, each part is a program of its own, and the broker has keys (docs/operating.md).
"""

import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

from qafel.federation import Broker, Plan, join, serve
from shared import QUICK, show


def samples(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on two interleaved spirals, and which one they are on."""
    rng = np.random.default_rng(seed)
    label, turn = rng.integers(0, 2, n), rng.uniform(0.2, 1, n)
    angle = 7 * turn + np.pi * label
    x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) + 0.02 * rng.standard_normal((n, 2))
    return x.astype(np.float32), label


def net() -> nn.Module:
    """The model, in the programs of server and clients."""
    return nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 2))


def client(url: str, number: int) -> None:
    """What a client runs: its own data, and the model that the plan is about."""
    done = join("spirals", url, client=number, model=net, data=samples(number + 1, 500))
    print(f"client {number}: {done.counted} updates counted, ended by {done.reason}")


if __name__ == "__main__":
    plan = Plan(
        name="spirals",
        model=net,
        data=None,
        test=samples(0, 500),  # the clients bring the data
        buffer_size=2,
        local_rate=0.5,
        uploads=20 if QUICK else 1000,
        evaluate_every=10 if QUICK else 50,
    )
    fork = multiprocessing.get_context("fork").Process
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        clients = [fork(target=client, args=(broker.url, k)) for k in range(2)]
        for process in clients:
            process.start()
        result = serve(plan, broker.url, Path(folder) / "server")
        for process in clients:
            process.join()
        show("federation", {"qafel": result})
