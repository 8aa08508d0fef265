"""The totals of a simulation that has ended."""

from typing import Any

import msgspec

from qafel.runs.result import Summary
from qafel.sim.simulation import Simulation
from qafel.tasks.settings import named


def summarise(run: Simulation, provenance: dict[str, Any]) -> Summary:
    """The totals of a run that has ended."""
    job, last = run.server.job, run.points[-1]
    settings = dict(zip(run.settings.__struct_fields__, msgspec.structs.astuple(run.settings), strict=True))
    for name in ("data", "model"):
        settings[name] = named(settings[name])
    seconds = run.spent
    busy = run.workers * (seconds["total"] - seconds["evaluation"])
    seconds["not training"] = max(0.0, 1 - seconds["training"] / busy) if busy > 0 else 0.0
    reached = None
    target = run.settings.target
    if target is not None:
        full = run.points[run.settings.smoothing :]
        first = next((point for point in full if point.smoothed >= target), None)
        names = ("uploads", "bytes_up", "bytes_down", "time")
        reached = {name: getattr(first, name) for name in names} if first else None
    return Summary(
        algorithm=run.settings.algorithm,
        client_quantizer=job.client_quantizer,
        server_quantizer=job.server_quantizer,
        reason=run.reason or "stopped",
        uploads=run.uploads,
        version=run.server.version,
        time=run.time,
        accuracy=last.smoothed,
        best_accuracy=max(point.smoothed for point in run.points),
        loss=last.loss,
        bytes_up=run.bytes_up,
        bytes_down=run.bytes_down,
        downlink=run.settings.downlink,
        clients=run.learner.clients,
        size=job.size,
        staleness={
            "mean": run.mean_staleness,
            "max": max(run.staleness, default=0),
            "histogram": {str(tau): n for tau, n in sorted(run.staleness.items())},
        },
        concurrency={"mean": run.area / run.time if run.time else 0.0, "max": float(run.peak)},
        rejected=dict(run.server.rejections),
        lost=run.lost,
        turned_away=run.turned_away,
        target=reached,
        seconds={name: round(value, 4) for name, value in seconds.items()},
        workers=run.workers,
        digest=run.digest,
        settings=settings,
        provenance=provenance,
    )
