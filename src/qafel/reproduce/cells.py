"""The cells of the paper's tables and figures: each is a set of settings that is run once per seed.

The protocol: K = 10, β = 0.3, a hundred arrivals per unit of time, half-normal training times, local rate ×
server rate = 0.01 on the mean of the buffer, one local epoch of batches of 32; accuracy on held-out samples
every 250 uploads, smoothed by the median of three; the first crossing of 90 % counts. Seeds are paired: the
same seed has the same split, the same first model and the same clock in every cell.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from qafel.reproduce.sizes import paper_bytes
from qafel.sim import Settings, make_settings

TARGET = 0.9
MAX_UPLOADS = 25_000
HIDDEN_UPLOADS = (6000, 2000)
"""Uploads of every run in the study of the hidden state, and in its quick version."""
CONCURRENT_UPLOADS = (60_000, 3000)
"""Limits of the concurrency study: weights of 1/√(1 + τ) need more uploads."""
QUICK_TARGET, QUICK_UPLOADS = 0.65, 3000
"""The quick version takes a few minutes: a lower target, and at most this many uploads."""
RATES = {100: 125.0, 500: 627.0, 1000: 1253.0}
"""Arrivals per unit of time, by the mean number of clients in flight."""


class Cell(msgspec.Struct, frozen=True):
    """One row of a table."""

    name: str
    label: str
    settings: dict[str, Any]
    paper: tuple[float, float] | None = None
    """The paper's uploads in thousands: mean and standard deviation."""
    sizes: tuple[int, int] | None = None
    """The paper's bytes an upload and a download, by its formula."""


def base(
    data: str,
    *,
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
    uploads: tuple[int, int] = (MAX_UPLOADS, QUICK_UPLOADS),
) -> dict[str, Any]:
    """The settings that all cells share; ``uploads`` are the limits of the full and of the quick version.

    A file of samples without users holds out 10 %, everything else 20 %.
    """
    held = 0.1 if Path(data).suffix == ".npz" else 0.2
    target = QUICK_TARGET if quick else TARGET
    shared = {"data": data, "held_out": held, "target": target, "uploads": uploads[quick]}
    return shared | dict(changes or {})


def chosen(cell: Cell, shared: Mapping[str, Any], seed: int) -> Settings:
    """The settings of one run."""
    return make_settings({**shared, **cell.settings, "seed": seed}, "--set")


def wanted(cells: Iterable[Cell], shared: Mapping[str, Any], seeds: Mapping[str, int]) -> dict[str, Settings]:
    """All runs of some cells by folder name; ``seeds`` is their number by cell name, "" for the rest."""
    return {
        f"{cell.name}-seed{seed}": chosen(cell, shared, seed)
        for cell in cells
        for seed in range(seeds.get(cell.name, seeds[""]))
    }


def _quantized(name: str, label: str, client: str, server: str, **more: Any) -> Cell:
    settings = {"algorithm": "qafel", "client_quantizer": client, "server_quantizer": server}
    return Cell(name, label, settings, **more)


_FULL = paper_bytes("identity")
FEDBUFF = Cell("fedbuff", "FedBuff", {"algorithm": "fedbuff"}, (26.1, 6.7), (_FULL, _FULL))

TABLE1 = {
    (8, 8): (27.6, 4.82),
    (8, 4): (29.8, 2.76),
    (8, 2): (35.7, 14.5),
    (4, 8): (39.7, 3.32),
    (4, 4): (27.8, 10.4),
    (4, 2): (37.7, 9.10),
    (2, 8): (58.6, 7.16),
    (2, 4): (74.6, 35.7),
    (2, 2): (91.9, 34.4),
}
"""The paper's uploads in thousands, by client and server bits."""
TABLE2 = {8: (39.5, 10.2), 4: (42.4, 10.4), 2: (94.8, 16.7)}
"""With a top-10 % server, by client bits. One of the three runs with 2 bits never reached 90 %."""
KINDS = {"affine": "affine:{}", "bucketed": "qsgd:{},bucket=256,norm=max"}


def table1(kind: str) -> list[Cell]:
    """FedBuff and the nine combinations of bits: "affine", as the paper measured, or "bucketed" QSGD."""
    cells = [FEDBUFF]
    for (client, server), paper in TABLE1.items():
        affine = tuple(paper_bytes(f"affine:{bits}") for bits in (client, server))
        cells.append(
            _quantized(
                f"{kind}-{client}-{server}",
                f"QAFeL, client {client}-bit, server {server}-bit",
                KINDS[kind].format(client),
                KINDS[kind].format(server),
                paper=paper,
                sizes=affine,
            )
        )
    return cells


def table2() -> list[Cell]:
    """FedBuff, and a server that sends the top 10 % of the coordinates."""
    cells = [FEDBUFF]
    for client, paper in TABLE2.items():
        sizes = paper_bytes(f"affine:{client}"), paper_bytes("topk:0.1")
        name, label = f"topk-{client}", f"QAFeL, client {client}-bit, server top 10 %"
        cells.append(_quantized(name, label, f"affine:{client}", "topk:0.1", paper=paper, sizes=sizes))
    return cells


def concurrency() -> list[Cell]:
    """FedBuff and QAFeL 4/4 with 100, 500 and 1,000 clients in flight, weighted by 1/√(1 + τ)."""
    cells = []
    for clients, rate in RATES.items():
        clock = {"rate": rate, "staleness_weight": "sqrt"}
        for name, label, more in (
            ("fedbuff", "FedBuff", {"algorithm": "fedbuff"}),
            ("qafel", "QAFeL 4/4", {"client_quantizer": "affine:4", "server_quantizer": "affine:4"}),
        ):
            sizes = (_FULL if name == "fedbuff" else paper_bytes("affine:4"),) * 2
            cells.append(
                Cell(f"{name}-{clients}", f"{label}, {clients} in flight", {**clock, **more}, sizes=sizes)
            )
    return cells


def hidden_state() -> list[Cell]:
    """QAFeL with its hidden state, naive quantization without it, and server quantizers that do not contract.

    All run for the same number of uploads, without a target.
    """
    good, coarse, whole = "qsgd:4,bucket=256,norm=max", "qsgd:2,bucket=256,norm=max", "qsgd:4"
    kinds = [
        ("fedbuff", "FedBuff", "fedbuff", None, None),
        ("qafel-bucketed", "QAFeL, 4-bit QSGD in max-norm buckets", "qafel", good, good),
        ("naive-bucketed", "naive, 4-bit QSGD in max-norm buckets", "naive", good, good),
        ("qafel-coarse", "QAFeL, 2-bit QSGD in max-norm buckets", "qafel", coarse, coarse),
        ("naive-coarse", "naive, 2-bit QSGD in max-norm buckets", "naive", coarse, coarse),
        ("qafel-affine", "QAFeL, 4-bit affine", "qafel", "affine:4", "affine:4"),
        ("naive-affine", "naive, 4-bit affine", "naive", "affine:4", "affine:4"),
        ("qafel-whole", "QAFeL, server 4-bit QSGD of the whole vector", "qafel", good, whole),
        (
            "qafel-contracted",
            "QAFeL, server contract:qsgd:4, its contraction",
            "qafel",
            good,
            f"contract:{whole}",
        ),
    ]
    cells = []
    for name, label, algorithm, client, server in kinds:
        quantizers = {"client_quantizer": client, "server_quantizer": server}
        settings = {"algorithm": algorithm, "target": None, **quantizers}
        cells.append(Cell(f"hidden-{name}", label, settings))
    return cells
