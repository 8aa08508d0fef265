"""The variant without broadcast: what a client downloads for a task, for small and large populations.

A client that starts a task asks for the increments that it misses. The more clients there are, the longer ago
was its last task, and the more it misses; beyond a model's worth of increments it gets the model, which is
what FedBuff sends for every task. The second half of each run is counted, in which clients have had tasks.
"""

from typing import Any

import msgspec

from qafel.reproduce import figures
from qafel.reproduce.study import Options, Origin, Study, finish, plus_minus
from qafel.runs.result import Result
from qafel.runs.summary import mean_std
from qafel.tables import Columns, Table
from qafel.wire import request_bytes

DATA = "faces"
CLIENTS = (100, 300, 1000, 3000, 10_000)
TASKS = 3
"""Tasks of a client in a run, on average, but at least MIN_UPLOADS in all."""
MIN_UPLOADS = 4000
QUICK = (60, 120)
QUICK_UPLOADS = 240
DECIDED = ("algorithm", "client_quantizer", "server_quantizer", "lookahead")
RUNS: dict[str, dict[str, Any]] = {"FedBuff": {"algorithm": "fedbuff"}, "default": {}}


class Row(msgspec.Struct, frozen=True):
    """One population: kB per task, mean and standard deviation over the seeds, by algorithm."""

    clients: int
    fedbuff: tuple[float, float]
    default: tuple[float, float]
    requests: float
    """kB of the request for a task, which is counted as uploaded."""

    @property
    def fewer(self) -> float:
        """FedBuff's kB over ours."""
        return self.fedbuff[0] / self.default[0]


COLUMNS: Columns = {
    "clients": "{.clients:,}",
    "FedBuff: kB down per task": lambda row: f"{row.fedbuff[0]:.1f}",
    "default: kB down per task": lambda row: (
        plus_minus(row.default, 1) if row.default[1] else f"{row.default[0]:.1f}"
    ),
    "times fewer": lambda row: f"{row.fewer:.2f}",
    "request, kB up per task": lambda row: f"{row.requests:.3f}",
}


def catch_up(options: Options) -> Study:
    """FedBuff and the defaults without broadcast, for 100 to 10,000 clients."""
    data = options.data or DATA
    populations = QUICK if options.quick else CLIENTS
    groups = {}
    for clients in populations:
        uploads = QUICK_UPLOADS if options.quick else max(MIN_UPLOADS, TASKS * clients)
        for name, chosen in RUNS.items():
            protocol = {"data": data, "held_out_samples": 100}
            varied = {**chosen, "clients": clients, "uploads": uploads, "downlink": "catch-up"}
            varied["evaluate_every"] = uploads // 2
            groups[f"catch-up-{name.lower()}-{clients}"] = options.settings(protocol, varied, decided=DECIDED)
    folder = options.folder(data)
    outcomes = options.run(groups, folder)
    rows = []
    for clients in populations:
        kb = {}
        for name in RUNS:
            runs = outcomes[f"catch-up-{name.lower()}-{clients}"]
            kb[name] = [_per_task(run) for run in runs if isinstance(run, Result)]
        asked = request_bytes(1 << 63, clients - 1, MIN_UPLOADS // 10) / 1000
        rows.append(Row(clients, mean_std(kb["FedBuff"]), mean_std(kb["default"]), asked))
    title = f"Without broadcast: {data}, what a client downloads for a task"
    lines = [
        (name, [row.clients for row in rows], [getattr(row, field)[0] for row in rows])
        for name, field in (("FedBuff", "fedbuff"), ("default", "default"))
    ]
    return finish(
        "catch-up",
        folder,
        data=data,
        tables=[Table.of(title, COLUMNS, rows)],
        claims=[],
        numbers={"rows": rows},
        origin=Origin.of(outcomes),
        figures=figures.lines(
            folder / "catch-up", [("clients", "kB down per task", lines)], logarithmic=("x",)
        ),
    )


def _per_task(run: Result) -> float:
    """kB down per task in the second half of a run."""
    middle, last = run.points[1], run.points[-1]
    return (last.bytes_down - middle.bytes_down) / 1000 / (last.uploads - middle.uploads)
