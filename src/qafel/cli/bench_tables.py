"""Tables of ``qafel bench``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qafel.cli import show

if TYPE_CHECKING:
    from qafel.bench.codec import Row
    from qafel.bench.memory import Memory
    from qafel.bench.rate import Coder, Point
    from qafel.bench.sim import Speed, Timelines


def codec(
    rows: "Sequence[Row]", coders: "Sequence[Coder]", points: "Sequence[Point]", figure: Path | None
) -> None:
    """Codecs; with --on also rates, entropy coders and the figure's path."""
    if points:
        _rates(points)
        _coders(coders)
    if figure:
        show.line(f"Figure: {figure}\n")
    show.table(
        "Codecs; × = times np.copyto of the same array in the same rounds",
        ["spec", "d", "threads", "bits/coord", "NMSE", "copy µs", "encode ×", "decode-and-add ×"],
        (
            [
                row.spec,
                f"{row.size:,}",
                f"{row.threads}",
                f"{row.bits:.2f}",
                show.number(row.nmse, 2),
                show.number(row.copy_us),
                f"{row.encode_ratio:.2f}",
                f"{row.decode_add_ratio:.2f}",
            ]
            for row in rows
        ),
    )


def _rates(points: "Sequence[Point]") -> None:
    show.table(
        "On vectors of a real run (x − x̂ for biased quantizers), means over early, midway and late",
        ["spec", "unbiased", "bits/coord", "kB", "NMSE"],
        (
            [p.spec, show.yes(p.unbiased), f"{p.bits:.3f}", f"{p.kilobytes:.2f}", show.number(p.nmse)]
            for p in points
        ),
    )
    show.line()


def _coders(coders: "Sequence[Coder]") -> None:
    show.table(
        "The coder of integers on a million of them; × = times np.copyto of as many float32",
        ["step", "threads", "bits", "encode ×", "decode ×", "encode M/s", "decode M/s"],
        (
            [
                show.number(c.step),
                f"{c.threads}",
                f"{c.bits:.3f}",
                f"{c.encode_ratio:.2f}",
                f"{c.decode_ratio:.2f}",
                f"{c.encode_millions:.0f}",
                f"{c.decode_millions:.0f}",
            ]
            for c in coders
        ),
    )
    show.line()


def sim(rows: "Sequence[Speed]", clocks: "Sequence[Timelines]") -> None:
    """Engines against the bare loop, and the clock alone."""
    show.table(
        "The paper's CNN, 20 images a client, end to end; × = times a bare PyTorch loop in the same rounds",
        [
            "engine",
            "quantizers",
            "workers",
            "updates/s",
            "bare loop/s",
            "×",
            "× (tuned loop)",
            "not training",
        ],
        (
            [
                row.engine,
                row.quantizers,
                str(row.workers),
                f"{row.updates_per_second:.0f}",
                f"{row.bare_per_second:.1f}",
                f"{row.ratio:.2f}",
                f"{row.ratio_tuned:.2f}",
                f"{100 * row.not_training:.1f} %",
            ]
            for row in rows
        ),
    )
    show.table(
        "\nThe clock alone",
        ["timeline", "million events/s"],
        ([row.name, f"{row.events_per_second / 1e6:.1f}"] for row in clocks),
    )


def memory(rows: "Sequence[Memory]") -> None:
    """Peak memory by case."""
    show.table(
        "Peak resident memory of all processes together",
        ["case", "model", "clients", "in flight", "MB", "MB, shared memory in each", "MB on disk"],
        (
            [
                row.name,
                row.model,
                f"{row.clients:,}",
                f"{row.in_flight:,}",
                f"{row.megabytes:,.0f}",
                f"{row.megabytes_in_full:,.0f}",
                f"{row.spilled_megabytes:,.0f}",
            ]
            for row in rows
        ),
    )


def federation(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Rates against the raw broker, latency and connected clients."""
    rows = {
        f"{part}, {kind}": numbers for part in ("updates", "synced") for kind, numbers in parts[part].items()
    }
    rows |= {name: numbers for name, numbers in parts.items() if "ratio" in numbers}
    show.table(
        "Against the raw broker with the same bytes, in the same rounds",
        ["part", "kB", "a second", "raw", "×"],
        [
            [
                name,
                f"{numbers['bytes'] / 1000:.1f}",
                f"{numbers.get('updates_per_second', numbers.get('deliveries_per_second')):,.0f}",
                f"{numbers['raw_per_second']:,.0f}",
                f"{numbers['ratio']:.2f}",
            ]
            for name, numbers in rows.items()
        ],
    )
    show.line(f"\nThe defaults take {parts['updates']['defaults']['to_last']:.2f} of 4-bit QSGD's updates/s.")
    late, crowd = parts["latency"], parts["clients"]
    show.line(
        f"\nUpload to acknowledgement at {late['updates_per_second']:,.0f}/s: median {late['p50_ms']:.2f}, "
        f"99 % within {late['p99_ms']:.1f} ms\n{crowd['connected']:,} connected clients for "
        f"{crowd['held_seconds']:.0f} s: server {crowd['server_mb']:,.0f} MB, "
        f"broker {crowd['broker_mb']:,.0f} MB"
    )
