"""Peak memory of large simulations: a million clients, and a large model with many clients in flight."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import QafelError
from qafel.runs.folder import RunFolder
from qafel.sim import Settings, Simulation
from qafel.sim.processes import run_to_the_end


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


CASES: dict[str, dict[str, Any]] = {
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


def measure(name: str, out: Path, progress: Callable[[Simulation], None]) -> Memory:
    """Run one of CASES in this process and its workers, and record their memory while it runs."""
    settings = Settings(**CASES[name])
    learner = settings.learner()
    folder = RunFolder.create(out, settings.to_toml())
    peaks: list[float] = []
    shared, seen = 0.0, 0.0

    def tell(run: Simulation) -> None:
        nonlocal shared, seen
        progress(run)
        pids = ["self", *map(str, run.pool.processes)]
        if run.seconds["total"] - seen > 0.5 or run.tracker.reason:
            seen = run.seconds["total"]
            shared = max(shared, sum(kilobytes(pid, "smaps_rollup", "Pss:") for pid in pids))
        if run.tracker.reason:  # the last event, while the workers live
            peaks.extend(kilobytes(pid, "status", "VmHWM:") for pid in pids)

    run = Simulation(settings, learner, folder=folder, progress=tell)
    try:
        run_to_the_end(run)
    finally:
        folder.close()
    return Memory(
        name=name,
        model=settings.model,
        clients=learner.clients,
        in_flight=run.tracker.totals.peak,
        processes=len(peaks),
        megabytes=shared * 1.024e-3,
        megabytes_in_full=sum(peaks) * 1.024e-3,
        spilled_megabytes=run.frames.spilled / 1e6,
    )


def kilobytes(pid: int | str, file: str, field: str) -> float:
    """A field of a process's file in /proc; 0 when the process has ended and has no such field."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise QafelError("memory is measured through /proc, which this system does not have") from error
    return next((float(line.split()[1]) for line in lines if line.startswith(field)), 0.0)
