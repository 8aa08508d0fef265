"""How fast the simulator is: uploads per second, in units of a bare PyTorch loop timed in the same rounds.

The yardstick is what one would write first: load the parameters, forward, backward, flat delta; one thread, a
process of its own, the paper's CNN on 20 images. It is timed bare, and with the memory settings that our
workers use. What is measured against it is a whole run on all cores: QAFeL with 4 bits each way, the clock,
the codecs and the server included.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qafel.coding.threads import cores
from qafel.config import DEFAULT_QUANTIZER
from qafel.errors import QafelError
from qafel.sim import Clock, Settings, Simulation
from qafel.sim.timeline import Timeline
from qafel.tasks.data.faces import Faces
from qafel.tasks.data.table import Table

IMAGES = 20
CLIENTS = 500
EVENTS = 4_000_000
WARM = 100
"""Uploads that are not timed, before an engine's rounds: the yardstick warms up as well."""

FOUR_BITS: dict[str, Any] = {"client_quantizer": DEFAULT_QUANTIZER, "server_quantizer": DEFAULT_QUANTIZER}
"""QAFeL 4/4, whatever runs use where nobody says."""


class Speed(msgspec.Struct, frozen=True):
    """One engine against the yardstick; ratios are medians over rounds."""

    engine: str
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


class Memory(msgspec.Struct, frozen=True):
    """The peak resident memory of all processes together."""

    name: str
    model: str
    clients: int
    in_flight: int
    processes: int
    megabytes: float
    """Memory that processes share is counted once (PSS)."""
    megabytes_in_full: float
    """The sum of each process's own peak (VmHWM): what they share is counted in each."""
    spilled_megabytes: float


def images() -> Table:
    """Clients with 20 images each, in memory."""
    faces, count = Faces(), 0
    found: list[tuple[Any, Any]] = []
    while count < (CLIENTS + 50) * IMAGES:
        found.append(faces.samples(len(found)))
        count += len(found[-1][1])
    x = np.concatenate([x for x, _ in found])[: (CLIENTS + 50) * IMAGES]
    y = np.concatenate([y for _, y in found])[: len(x)]
    pixels = np.round((np.moveaxis(x, 1, -1) + 1) * 127.5).astype(np.uint8)
    held = np.arange(len(y)) >= CLIENTS * IMAGES
    return Table(pixels, y, np.arange(len(y)) // IMAGES, held)


class Yardstick:
    """The bare loop, in a process of its own."""

    def __init__(self, tuned: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_bare, args=(theirs, tuned), daemon=True)
        self._process.start()
        self._pipe.recv_bytes()

    def per_second(self, seconds: float) -> float:
        """Deltas per second."""
        self._pipe.send_bytes(str(seconds).encode())
        return float(self._pipe.recv_bytes())

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.join()


def _bare(pipe: Any, tuned: bool) -> None:
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
    pipe.send_bytes(b"ready")
    while True:
        seconds, count, start = float(pipe.recv_bytes()), 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            delta()
            count += 1
        pipe.send_bytes(str(count / (time.perf_counter() - start)).encode())


def speeds(engines: list[str], rounds: int, uploads: int, tell: Callable[[str], None]) -> Iterator[Speed]:
    """Each engine against the yardstick, round by round."""
    tell("starting the yardsticks")
    bare, tuned = Yardstick(tuned=False), Yardstick(tuned=True)
    try:
        table = images()
        for engine in engines:
            tell(f"{engine}: preparing")
            settings = Settings(
                data=lambda: table,
                engine=engine,
                uploads=uploads,
                evaluate_every=uploads,
                held_out_samples=1,
                **FOUR_BITS,
            )
            learner = settings.learner()
            warm = Simulation(msgspec.structs.replace(settings, uploads=WARM), learner, layout=learner.layout)
            warm.run()
            rows = []
            for k in range(rounds):
                tell(f"{engine}: round {k + 1} of {rounds}")
                yards = bare.per_second(1.5), tuned.per_second(1.5)
                run = Simulation(settings, learner, workers=cores(), layout=learner.layout)
                run.run()
                seconds = run.seconds["total"] - run.seconds["evaluation"]
                done = (run.uploads + len(run.frames)) / seconds  # trained: arrived, or still in flight
                lost = 1 - run.pool.seconds[1] / (run.workers * seconds)
                rows.append((done, done / yards[0], done / yards[1], lost, yards[0]))
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            yield Speed(engine, cores(), medians[0], medians[4], medians[1], medians[2], medians[3])
    finally:
        bare.close()
        tuned.close()


def timelines(rounds: int) -> Iterator[Timelines]:
    """The clock alone: the paper's, and a million clients of whom ten thousand train."""
    clocks = {
        "open arrivals, 100 in flight": (Clock(rate=125), 7474),
        "refill, 10,000 of 1,000,000 idle clients": (
            Clock(arrivals="refill", concurrency=10_000, sampling="idle"),
            1_000_000,
        ),
    }
    for name, (clock, clients) in clocks.items():
        found = []
        for _ in range(rounds):
            timeline, count = Timeline(clock, clients=clients, buffer_size=10), 0
            timeline.block()
            start = time.perf_counter()
            while count < EVENTS:
                count += timeline.block()[0]
            found.append(count / (time.perf_counter() - start))
        yield Timelines(name, statistics.median(found))


MEMORY: dict[str, dict[str, Any]] = {
    "million": {
        "clients": 1_000_000,
        "arrivals": "refill",
        "concurrency": 10_000,
        "uploads": 2000,
        "evaluate_every": 2000,
    },
    "resnet18": {
        "model": "resnet18",
        "arrivals": "refill",
        "concurrency": 1000,
        "steps": 1,
        "batch_size": 2,
        "uploads": 50,
        "evaluate_every": 50,
        "held_out_samples": 4,
    },
}


def memory(name: str, out: Path, progress: Callable[[Simulation], None]) -> Memory:
    """Run one of MEMORY in this process and its workers, and look at their memory while it runs."""
    from qafel.runs.folder import RunFolder

    settings = Settings(**FOUR_BITS, **MEMORY[name])
    learner = settings.learner()
    folder = RunFolder.create(out, settings.to_toml())
    peaks: list[float] = []
    shared, seen = 0.0, 0.0

    def tell(run: Simulation) -> None:
        nonlocal shared, seen
        progress(run)
        pids = ["self", *map(str, run.pool.processes)]
        if run.seconds["total"] - seen > 0.5 or run.reason:
            seen = run.seconds["total"]
            shared = max(shared, sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in pids))
        if run.reason:  # the last event, while the workers live
            peaks.extend(_kilobytes(pid, "status", "VmHWM:") for pid in pids)

    run = Simulation(settings, learner, folder=folder, layout=learner.layout, progress=tell)
    run.run()
    folder.close()
    return Memory(
        name=name,
        model=settings.model,
        clients=learner.clients,
        in_flight=run.peak,
        processes=len(peaks),
        megabytes=shared * 1.024e-3,
        megabytes_in_full=sum(peaks) * 1.024e-3,
        spilled_megabytes=run.frames.spilled / 1e6,
    )


def _kilobytes(pid: str, file: str, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise QafelError("memory is measured through /proc, which this system does not have") from error
    return float(next(line.split()[1] for line in lines if line.startswith(field)))
