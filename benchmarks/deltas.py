"""Vectors to measure quantizers on: what clients and the server send, from one run, early, midway and late.

``client`` vectors are deltas of local training, ``server`` ones are x − x̂ before a step's increment. They are
taken from a run of the product itself and kept, so that measurements do not need the run again:

    python benchmarks/deltas.py smiles32.npz

makes the file anew. ``qafel bench codec --on benchmarks/deltas.npz`` measures on it.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from qafel.client import Task
from qafel.reproduce.cells import base
from qafel.sim import Simulation, make_settings
from qafel.vectors import Vector

FILE = "deltas.npz"
STAGES = {"early": (100, 300), "midway": (1500, 2500), "late": (4000, 5000)}
"""Uploads after which vectors are taken."""
QUANTIZER = "qsgd:4,bucket=256,norm=max"


class _Recorder:
    """A learner that keeps the delta it was last asked for."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self.last: Vector = learner.x

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def delta(self, task: Task, samples: Any) -> Vector:
        self.last = self._learner.delta(task, samples).copy()
        return self.last


def record(data: str, seed: int = 0) -> dict[str, Vector]:
    """``client-STAGE-UPLOADS`` and ``server-STAGE-UPLOADS`` of a run on ``data`` by the protocol of the
    reproduction.
    """
    wanted = {uploads: stage for stage, both in STAGES.items() for uploads in both}
    changes = {"uploads": max(wanted) + 10, "target": None, "evaluate_every": 1000, "seed": seed}
    quantizers = {"client_quantizer": QUANTIZER, "server_quantizer": QUANTIZER}
    chosen = make_settings({**base(data), **changes, **quantizers})
    learner = _Recorder(chosen.learner())
    vectors: dict[str, Vector] = {}
    known, version = learner.x.copy(), 0

    def take(run: Simulation) -> None:
        nonlocal known, version
        if run.server.version == version:
            return
        uploads = run.tracker.totals.uploads
        if uploads in wanted:
            name = f"{wanted[uploads]}-{uploads}"
            vectors[f"client-{name}"], vectors[f"server-{name}"] = learner.last, run.server.x - known
        known, version = run.server.hidden.x.copy(), run.server.version

    Simulation(chosen, learner, workers=1, progress=take).run()
    return vectors


def main() -> None:
    """Make the file anew."""
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/deltas.py smiles32.npz")
    np.savez_compressed(Path(__file__).with_name(FILE), allow_pickle=False, **record(sys.argv[1]))


if __name__ == "__main__":
    main()
