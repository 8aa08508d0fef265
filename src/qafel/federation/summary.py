"""The totals of a federation that has ended, in the format of the simulator's."""

from typing import Any

import msgspec

from qafel.federation.state import FederationState
from qafel.hidden import digest
from qafel.runs.result import Summary
from qafel.tasks.settings import named


def summarise(fold: FederationState, provenance: dict[str, Any]) -> Summary:
    """What came out."""
    plan, job, server = fold.plan, fold.job, fold.server
    settings = dict(zip(plan.__struct_fields__, msgspec.structs.astuple(plan), strict=True))
    for name in ("data", "model"):
        settings[name] = named(settings[name])
    last = fold.points[-1] if fold.points else None
    reached = None
    if plan.target is not None:
        full = fold.points[plan.smoothing :]
        first = next((point for point in full if point.smoothed >= plan.target), None)
        names = ("uploads", "bytes_up", "bytes_down", "time")
        reached = {name: getattr(first, name) for name in names} if first else None
    flying = [point.in_flight for point in fold.points]
    return Summary(
        algorithm=plan.algorithm,
        client_quantizer=job.client_quantizer,
        server_quantizer=job.server_quantizer,
        reason=fold.reason or "stopped",
        uploads=fold.uploads,
        version=server.version,
        time=fold.seconds,
        accuracy=last.smoothed if last else 0.0,
        best_accuracy=max((point.smoothed for point in fold.points), default=0.0),
        loss=last.loss if last else 0.0,
        bytes_up=fold.bytes_up,
        bytes_down=fold.received,
        downlink=plan.downlink,
        clients=len(server.seen.rows()),
        size=job.size,
        staleness={
            "mean": fold.mean_staleness,
            "max": max(fold.staleness, default=0),
            "histogram": {str(tau): n for tau, n in sorted(fold.staleness.items())},
        },
        concurrency={
            "mean": sum(flying) / len(flying) if flying else 0.0,
            "max": float(max(flying, default=0)),
        },
        rejected=dict(server.rejections),
        lost=0,
        turned_away=0,
        target=reached,
        seconds={"total": round(fold.seconds, 4)},
        workers=1,
        digest=f"{digest(server.x, server.version):016x}{server.hidden.digest:016x}",
        settings=settings,
        provenance=provenance,
    )
