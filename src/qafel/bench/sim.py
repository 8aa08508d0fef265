"""Speed of the simulator: uploads per second, in units of a bare PyTorch loop timed in the same rounds.

The yardstick is the simplest loop: load the parameters, forward, backward, flat delta; one thread in a
process of its own, the paper's CNN on 20 images. It is timed as it is, and with the memory settings of our
workers. A whole run on all cores is measured against it, clock, codecs and server included: with the default
quantizers, and for the first engine also with none and with 4-bit QSGD.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import numpy as np

from qafel.config import DEFAULT_QUANTIZER
from qafel.machine import cores
from qafel.sim import Settings, Simulation
from qafel.sim.timeline import Timeline
from qafel.tasks.data.faces import Faces
from qafel.tasks.data.table import Table

IMAGES = 20
CLIENTS = 500
EVENTS = 4_000_000
WARM = 100
"""Uploads that are not timed, before an engine's rounds: the yardstick warms up as well."""

QUANTIZERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "none (FedBuff)": {"algorithm": "fedbuff"},
    "4-bit QSGD": {"client_quantizer": DEFAULT_QUANTIZER, "server_quantizer": DEFAULT_QUANTIZER},
}


class Speed(msgspec.Struct, frozen=True):
    """One engine against the yardstick; ratios are medians over rounds."""

    engine: str
    quantizers: str
    workers: int
    updates_per_second: float
    """Updates that were trained and encoded, those still in flight at the end included."""
    bare_per_second: float
    ratio: float
    ratio_tuned: float
    """To the yardstick with our workers' memory settings."""
    not_training: float
    """The share of the workers' time that was not local training."""


class Timelines(msgspec.Struct, frozen=True):
    """The clock alone."""

    name: str
    events_per_second: float


def images() -> Table:
    """Clients with 20 images each, in memory."""
    faces, count = Faces(), 0
    clients: list[tuple[Any, Any]] = []
    while count < (CLIENTS + 50) * IMAGES:
        clients.append(faces.samples(len(clients)))
        count += len(clients[-1][1])
    x = np.concatenate([x for x, _ in clients])[: (CLIENTS + 50) * IMAGES]
    y = np.concatenate([y for _, y in clients])[: len(x)]
    pixels = np.round((np.moveaxis(x, 1, -1) + 1) * 127.5).astype(np.uint8)
    held = np.arange(len(y)) >= CLIENTS * IMAGES
    return Table(pixels, y, np.arange(len(y)) // IMAGES, held)


OWN = "own loss, metric and optimizer"

_bare: list[Callable[[], Any]] = []
"""The bare loop's step, in a process of a yardstick."""


def _yardstick(tuned: bool) -> ProcessPoolExecutor:
    """A process for the bare loop."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (tuned,))


def _prepare(tuned: bool) -> None:
    import torch
    from torch.nn import functional, utils

    from qafel.tasks import models
    from qafel.tasks.learner import keep_memory

    torch.set_num_threads(1)
    if tuned:
        keep_memory()
    model = models.Cnn()
    flat = utils.parameters_to_vector(model.parameters()).detach().clone()
    x, y = torch.randn(IMAGES, 3, 32, 32), torch.randint(0, 2, (IMAGES,))

    def delta() -> Any:
        utils.vector_to_parameters(flat, model.parameters())
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).mul_(-0.01)

    for _ in range(5):
        delta()
    _bare.append(delta)


def _per_second(seconds: float) -> float:
    """Deltas per second of the bare loop."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        _bare[0]()
        count += 1
    return count / (time.perf_counter() - start)


def speeds(engines: list[str], rounds: int, uploads: int, progress: Callable[[str], None]) -> Iterator[Speed]:
    """Each engine against the yardsticks, round by round."""
    progress("starting the yardsticks")
    with _yardstick(tuned=False) as bare, _yardstick(tuned=True) as tuned:
        yards = (bare, tuned)
        for yard in yards:
            yard.submit(_per_second, 0.0).result()  # it starts with the first call
        table = images()
        for engine in engines:
            progress(f"{engine}: preparing")
            fixed: dict[str, Any] = {"engine": engine, "uploads": uploads, "evaluate_every": uploads}
            chosen = {
                name: Settings(data=lambda: table, held_out_samples=1, **fixed, **quantizers)
                for name, quantizers in QUANTIZERS.items()
                if engine == engines[0] or not quantizers
            }
            learners: dict[str, Any] = dict.fromkeys(chosen, chosen["defaults"].learner())
            if engine == "plain":
                chosen[OWN] = msgspec.structs.replace(chosen["defaults"], **_own())
                learners[OWN] = chosen[OWN].learner()
            for name, settings in chosen.items():
                warm = msgspec.structs.replace(settings, uploads=WARM)
                Simulation(warm, learners[name]).run()
            rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen}
            for k in range(rounds):
                for name, settings in chosen.items():
                    progress(f"{engine}, {name}: round {k + 1} of {rounds}")
                    rows[name].append(_round(settings, learners[name], yards))
            for name, mine in rows.items():
                medians = [statistics.median(column) for column in zip(*mine, strict=True)]
                yield Speed(engine, name, cores(), *medians)


def _own() -> dict[str, Any]:
    """A loss, a metric and an optimizer as a user would pass them."""
    import torch
    from torch.nn import functional

    return {
        "loss": lambda outputs, targets: functional.cross_entropy(outputs, targets, label_smoothing=0.1),
        "metrics": {"top": lambda outputs, targets: outputs.argmax(1) == targets},
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    }


def _round(settings: Settings, learner: Any, yards: tuple[ProcessPoolExecutor, ...]) -> tuple[float, ...]:
    """Updates/s, the bare loop's, the ratios to both loops, and the share of time not spent on training."""
    bare, tuned = (yard.submit(_per_second, 1.5).result() for yard in yards)
    run = Simulation(settings, learner, workers=cores())
    run.run()
    seconds = run.seconds["total"] - run.seconds["evaluation"]
    done = (run.tracker.totals.uploads + len(run.frames)) / seconds  # trained: arrived, or still in flight
    not_training = 1 - run.pool.seconds[1] / (run.workers * seconds)
    return done, bare, done / bare, done / tuned, not_training


def timelines(rounds: int) -> Iterator[Timelines]:
    """The clock alone: the paper's, and a million clients of whom ten thousand train."""
    clocks = {
        "open arrivals, 100 in flight": (Settings(rate=125), 7474),
        "refill, 10,000 of 1,000,000 idle clients": (
            Settings(arrivals="refill", concurrency=10_000, sampling="idle"),
            1_000_000,
        ),
    }
    for name, (clock, clients) in clocks.items():
        rates = []
        for _ in range(rounds):
            timeline, count = Timeline(clock, clients=clients), 0
            timeline.block()
            start = time.perf_counter()
            while count < EVENTS:
                count += timeline.block()[0]
            rates.append(count / (time.perf_counter() - start))
        yield Timelines(name, statistics.median(rates))
