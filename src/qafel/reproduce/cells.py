"""The cells of the paper's tables and figures: each is a set of settings that is run once per seed.

The protocol: K = 10, β = 0.3, a hundred arrivals per unit of time, half-normal training times, local rate ×
server rate = 0.01 on the mean of the buffer (the paper: 4.7e-6 × 1000), one local epoch of batches of 32;
accuracy on held-out samples every 250 uploads, smoothed by the median of three; the first crossing of 90 %
counts. Seeds are paired: the same seed has the same split, the same first model and the same clock in every
cell.
"""

from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import ConfigError
from qafel.quantizers import Affine, Identity, TopK, quantizer
from qafel.tasks.cnn import LAYOUT

TARGET = 0.9
QUICK_TARGET = 0.65
MAX_UPLOADS = (25_000, 3000)
"""Upload limits of the full and the quick version; the quick one has QUICK_TARGET and takes a few minutes."""
HIDDEN_UPLOADS = (6000, 2000)
"""Uploads of every run in the study of the hidden state."""
CONCURRENT_UPLOADS = (60_000, 3000)
"""Limits of the concurrency study: weights of 1/√(1 + τ) need more uploads."""
LITERAL_UPLOADS = (6000, 2000)
"""Uploads of every run with QSGD as the paper's text has it; their curves are compared."""
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


def base(data: str, *, quick: bool = False, uploads: tuple[int, int] = MAX_UPLOADS) -> dict[str, Any]:
    """The settings that all cells share; ``uploads`` are the limits of the full and of the quick version.

    A file of samples without users holds out 10 %, everything else 20 %.
    """
    held = 0.1 if Path(data).suffix == ".npz" else 0.2
    target = QUICK_TARGET if quick else TARGET
    return {"data": data, "held_out": held, "target": target, "uploads": uploads[quick]}


def paper_bytes(spec: str) -> int:
    """The size of a message in the paper's tables: ``identity``, ``affine:n`` (its "n-bit qsgd") or
    ``topk:f``, to hold our real frames against.

    The paper packs no bits. Its n-bit size quantizes tensors of two or more dimensions at n bits a weight
    plus 12 bytes a tensor, and sends the other parameters as float32; its top-10 % size counts 4 bytes for
    each of numel − ⌊0.9·numel⌋ values a tensor, and one bit a coordinate.
    """
    q = quantizer(spec)
    if isinstance(q, Identity):
        return 4 * LAYOUT.size
    if isinstance(q, Affine):
        weights = [tensor.size for tensor in LAYOUT.tensors if len(tensor.shape) > 1]
        return sum(weights) * q.bits // 8 + 12 * len(weights) + 4 * (LAYOUT.size - sum(weights))
    if isinstance(q, TopK) and q.keep < 1:
        dropped = Decimal(1) - q.keep
        kept = sum(t.size - int((dropped * t.size).to_integral_value(ROUND_FLOOR)) for t in LAYOUT.tensors)
        return 4 * kept + LAYOUT.size // 8
    raise ConfigError(f"the paper has no size for {spec}; it has identity, affine:n and topk:fraction")


PAPER: dict[str, Any] = {"algorithm": "qafel", "lookahead": 0.0}
"""QAFeL as in the paper: increments aim at x itself."""


def _quantized(name: str, label: str, client: str, server: str, **more: Any) -> Cell:
    settings = {**PAPER, "client_quantizer": client, "server_quantizer": server}
    return Cell(name, label, settings, **more)


FEDBUFF = Cell("fedbuff", "FedBuff", {"algorithm": "fedbuff"}, (26.1, 6.7), (paper_bytes("identity"),) * 2)
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
        name, label = f"{kind}-{client}-{server}", f"QAFeL, client {client}-bit, server {server}-bit"
        specs = (KINDS[kind].format(bits) for bits in (client, server))
        sizes = tuple(paper_bytes(f"affine:{bits}") for bits in (client, server))
        cells.append(_quantized(name, label, *specs, paper=paper, sizes=sizes))
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
    four = _quantized("qafel", "QAFeL 4/4", "affine:4", "affine:4", sizes=(paper_bytes("affine:4"),) * 2)
    return [
        Cell(
            f"{cell.name}-{clients}",
            f"{cell.label}, {clients} in flight",
            {"rate": rate, "staleness_weight": "sqrt", **cell.settings},
            sizes=cell.sizes,
        )
        for clients, rate in RATES.items()
        for cell in (FEDBUFF, four)
    ]


def hidden_state() -> list[Cell]:
    """QAFeL with its hidden state, naive quantization without it, and server quantizers that do not contract.

    All run for the same number of uploads, without a target.
    """
    good, coarse, whole = "qsgd:4,bucket=256,norm=max", "qsgd:2,bucket=256,norm=max", "qsgd:4"
    kinds = [
        ("fedbuff", "FedBuff", None, None),
        ("qafel-bucketed", "QAFeL, 4-bit QSGD in max-norm buckets", good, good),
        ("naive-bucketed", "naive, 4-bit QSGD in max-norm buckets", good, good),
        ("qafel-coarse", "QAFeL, 2-bit QSGD in max-norm buckets", coarse, coarse),
        ("naive-coarse", "naive, 2-bit QSGD in max-norm buckets", coarse, coarse),
        ("qafel-affine", "QAFeL, 4-bit affine", "affine:4", "affine:4"),
        ("naive-affine", "naive, 4-bit affine", "affine:4", "affine:4"),
        ("qafel-whole", "QAFeL, server 4-bit QSGD of the whole vector", good, whole),
        ("qafel-contracted", "QAFeL, server contract:qsgd:4, its contraction", good, f"contract:{whole}"),
    ]
    cells = []
    for name, label, client, server in kinds:
        fixed = {**PAPER, "algorithm": name.partition("-")[0], "target": None}
        settings = {**fixed, "client_quantizer": client, "server_quantizer": server}
        cells.append(Cell(f"hidden-{name}", label, settings))
    return cells


def literal() -> list[Cell]:
    """FedBuff, and clients with the QSGD of the paper's text, one L2 norm over the whole vector."""
    server = KINDS["bucketed"].format(4)
    cells = [Cell("literal-fedbuff", "FedBuff", {"algorithm": "fedbuff", "target": None})]
    for bits in (8, 4, 2):
        client = f"qsgd:{bits}"
        cell = _quantized(f"literal-{bits}", f"QAFeL, client {client}", client, server)
        cells.append(msgspec.structs.replace(cell, settings={**cell.settings, "target": None}))
    return cells
