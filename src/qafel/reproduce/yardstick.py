"""How fast the mushrooms study runs: uploads per second beside the slow twin, in plain numpy."""

import heapq
import statistics
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import twin
from qafel.errors import QafelWarning
from qafel.reproduce.fused import Fused
from qafel.reproduce.logistic import BUFFER, SERVER_RATE, Logistic, settings
from qafel.sim.batch import Tell, in_parallel

TIMED_UPLOADS, SLOW_UPLOADS, WARM_UPLOADS, ROUNDS = 20_000, 1000, 100, 3


def slow(learner: Logistic, chosen: Mapping[str, Any], uploads: int, seed: int = 0) -> float:
    """The same study with the slow twin, in plain numpy: uploads per second."""
    both = {"client_quantizer": 4, "server_quantizer": 8}
    client, server = (
        twin.qsgd(both[side]) if side in chosen else twin.identity
        for side in ("client_quantizer", "server_quantizer")
    )
    rng = np.random.default_rng(seed)
    cloud = twin.TwinServer(learner.x.copy(), server, BUFFER, rate=SERVER_RATE)
    people = [twin.TwinClient(k, learner.x.copy(), client) for k in range(learner.clients)]
    flying: list[Any] = []

    def start(k: int, now: float) -> None:
        delta, version = people[k].train(lambda x: learner.slow_delta(x, k))
        heapq.heappush(flying, (now + abs(rng.standard_normal()), k, delta, version))

    for k in range(learner.clients):
        start(k, 0.0)
    began = time.perf_counter()
    for _ in range(uploads):
        now, k, delta, version = heapq.heappop(flying)
        start(k, now)
        increment = cloud.receive(delta, version)
        if increment is not None:
            for person in people:
                person.background(increment)
    return uploads / (time.perf_counter() - began)


def speed(
    learner: Logistic, chosen: Mapping[str, Any], jobs: int, folder: Path, quick: bool
) -> dict[str, float]:
    """Uploads per second of as many runs as there are jobs, beside the slow twin's, in the same rounds."""
    uploads, ours, theirs = TIMED_UPLOADS // (4 if quick else 1), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)
        Fused(settings(chosen, WARM_UPLOADS, 0), learner).run([WARM_UPLOADS // BUFFER])  # loads the kernels
    for k in range(ROUNDS):
        theirs.append(slow(learner, chosen, SLOW_UPLOADS // (4 if quick else 1), k))
        files = [folder / f".speed-{job}" for job in range(jobs)]
        tasks = {
            f"speed {job}": partial(_timed, learner, chosen, uploads, job, file)
            for job, file in enumerate(files)
        }
        in_parallel(tasks, jobs, lambda _: None)
        ours.append(sum(float(file.read_text(encoding="utf-8")) for file in files))
        for file in files:
            file.unlink()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "uploads_per_second": statistics.median(ours),
        "slow_twin_per_second": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "processes": float(jobs),
    }


def _timed(
    learner: Logistic, chosen: Mapping[str, Any], uploads: int, seed: int, file: Path, tell: Tell
) -> None:
    del tell
    run = Fused(settings(chosen, uploads, seed), learner)
    began = time.perf_counter()
    run.run([uploads // BUFFER])
    file.write_text(str(uploads / (time.perf_counter() - began)), encoding="utf-8")
