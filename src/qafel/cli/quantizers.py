"""``qafel quantizers``."""

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from typer import Argument, Option

from qafel import theory, vectors
from qafel.cli import show
from qafel.cli.complete import quantizer_completions
from qafel.config import CLIENT_QUANTIZER, DEFAULT_QUANTIZER, SERVER_QUANTIZER
from qafel.errors import ConfigError
from qafel.quantizers import measure, quantizer, registered_quantizers
from qafel.tables import Columns
from qafel.vectors import Vector

SHOWN = (
    "identity",
    CLIENT_QUANTIZER,
    SERVER_QUANTIZER,
    "qsgd:8",
    "qsgd:4",
    "qsgd:2",
    "qsgd:8,bucket=256,norm=max",
    DEFAULT_QUANTIZER,
    "qsgd:2,bucket=256,norm=max",
    "affine:8",
    "affine:4",
    "affine:2",
    "topk:0.1",
    "randk:0.1",
    "randk:0.1,scaled",
    "contract:qsgd:4",
    "induced:topk:0.1+qsgd:4,bucket=256,norm=max",
)

WORST: Columns = {
    "spec": "{[spec]}",
    "bits/coord": "{[typical_bits]:.2f}",
    "NMSE": lambda row: show.number(row["typical_nmse"], 2),
    "bits ≤": "{[bits]:.2f}",
    "unbiased": lambda row: show.yes(row["unbiased"]),
    "ω": lambda row: show.number(row["omega"]),
    "δ": lambda row: show.number(row["delta"]),
    "C_max": "{[c_max]}",
}
MEASURED: Columns = {
    "spec": "{.spec}",
    "bits/coord": "{.bits:.2f}",
    "payload B": "{.payload_bytes:,.0f}",
    "NMSE": lambda row: show.number(row.nmse),
    "± error": lambda row: show.number(row.nmse_error, 1),
    "δ": lambda row: show.number(row.delta),
    "bias²": lambda row: show.number(row.bias, 2),
}

MAX_TYPICAL = 100_000
"""The coordinates of the normal vector that is encoded, at most."""
Size = Annotated[int, Option("--size", "-d", help="Dimension: coordinates of the vector.")]
Specs = Annotated[
    list[str] | None,
    Argument(help="Specs to show; default: a selection of all kinds.", autocompletion=quantizer_completions),
]


def check_size(size: int) -> None:
    """Raise ConfigError for a dimension that no vector can have."""
    if not 1 <= size <= vectors.MAX_SIZE:
        raise ConfigError(f"--size must be from 1 to {vectors.MAX_SIZE:,}, got {size}")


def specs_or_all(specs: list[str] | None, size: int) -> list[str]:
    """The given specs, checked; by default a selection with every registered quantizer."""
    check_size(size)
    if specs:
        return [quantizer(spec).spec for spec in specs]
    shown = {quantizer(spec).name for spec in SHOWN}
    return [*SHOWN, *(cls.example for name, cls in registered_quantizers().items() if name not in shown)]


def load_vector(path: Path) -> Vector:
    """The flat vector in a .npy file, as float32."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ConfigError(f"{path} does not hold one array of numbers")
    with np.errstate(over="ignore"):
        return vectors.as_vector(array.astype(np.float32).ravel())


def quantizers(
    specs: Specs = None,
    size: Size = 29_282,
    on: Annotated[Path | None, Option(help="Measure on the vector in this .npy file.")] = None,
    seeds: Annotated[int, Option(help="Seeds to measure with.")] = 64,
    json: show.Json = False,
) -> None:
    """List quantizers with their bits and errors, ω and δ (Definition 1), or measure them on a vector.

    Example: qafel quantizers qsgd:4 topk:0.1 --size 1000000
    """
    if on is not None:
        _measured(specs, load_vector(on), seeds, json)
        return
    chosen = [quantizer(spec) for spec in specs_or_all(specs, size)]
    x = np.random.default_rng(0).standard_normal(min(size, MAX_TYPICAL), np.float32)
    typical = {q.spec: measure(q.spec, x, 2) for q in chosen}
    rows = [
        {
            "spec": q.spec,
            "typical_bits": typical[q.spec].bits,
            "typical_nmse": typical[q.spec].nmse,
            "max_payload_bytes": q.max_bytes(size),
            "bits": 8 * q.max_bytes(size) / size,
            "unbiased": q.unbiased,
            "omega": q.omega(size),
            "delta": q.delta(size),
            "c_max": theory.c_max(4 * size, q.max_bytes(size)),
        }
        for q in chosen
    ]
    if json:
        show.json({"size": size, "quantizers": rows})
        return
    title = (
        f"Quantizers at d = {size:,}: bits and squared error on a normal vector; bits ≤, ω and δ for any "
        "vector (δ ≤ 0: not a contraction)"
    )
    show.records(title, WORST, rows)


def _measured(specs: list[str] | None, x: Vector, seeds: int, json: bool) -> None:
    with show.progress(quiet=json) as bar:
        chosen = specs_or_all(specs, x.size)
        rows = [measure(spec, x, seeds) for spec in bar.track(chosen, description="measuring")]
    if json:
        measured = [{**msgspec.to_builtins(row), "bits": row.bits, "delta": row.delta} for row in rows]
        show.json({"size": x.size, "seeds": seeds, "quantizers": measured})
        return
    title = f"Measured on {x.size:,} coordinates with {seeds} seeds"
    show.records(f"{title} (bias² is about 0 for an unbiased quantizer)", MEASURED, rows)
