"""Tables of ``qafel bench``."""

from collections.abc import Mapping
from typing import Any

from qafel.cli import show
from qafel.tables import Columns

CODEC: Columns = {
    "spec": "{.spec}",
    "d": "{.size:,}",
    "threads": "{.threads}",
    "bits/coord": "{.bits:.2f}",
    "NMSE": lambda row: show.number(row.nmse, 2),
    "copy µs": lambda row: show.number(row.copy_us),
    "encode ×": "{.encode_ratio:.2f}",
    "decode-and-add ×": "{.decode_add_ratio:.2f}",
}
POINTS: Columns = {
    "spec": "{.spec}",
    "unbiased": lambda point: show.yes(point.unbiased),
    "bits/coord": "{.bits:.3f}",
    "kB": "{.kilobytes:.2f}",
    "NMSE": lambda point: show.number(point.nmse),
}
CODERS: Columns = {
    "step": lambda coder: show.number(coder.step),
    "threads": "{.threads}",
    "bits": "{.bits:.3f}",
    "encode ×": "{.encode_ratio:.2f}",
    "decode ×": "{.decode_ratio:.2f}",
    "encode M/s": "{.encode_millions:.0f}",
    "decode M/s": "{.decode_millions:.0f}",
}
SPEEDS: Columns = {
    "engine": "{.engine}",
    "quantizers": "{.quantizers}",
    "workers": "{.workers}",
    "updates/s": "{.updates_per_second:.0f}",
    "bare loop/s": "{.bare_per_second:.1f}",
    "×": "{.ratio:.2f}",
    "× (tuned loop)": "{.ratio_tuned:.2f}",
    "not training": lambda row: f"{100 * row.not_training:.1f} %",
}
CLOCKS: Columns = {
    "timeline": "{.name}",
    "million events/s": lambda row: f"{row.events_per_second / 1e6:.1f}",
}
MEMORY: Columns = {
    "case": "{.name}",
    "model": "{.model}",
    "clients": "{.clients:,}",
    "in flight": "{.in_flight:,}",
    "MB": "{.megabytes:,.0f}",
    "MB, shared memory in each": "{.megabytes_in_full:,.0f}",
    "MB on disk": "{.spilled_megabytes:,.0f}",
}


def federation(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Rates against the raw broker, latency, a flood and connected clients."""
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
    late, crowd, flood = parts["latency"], parts["clients"], parts["flood"]
    show.line(
        f"\nUpload to acknowledgement at {late['updates_per_second']:,.0f}/s: median {late['p50_ms']:.2f}, "
        f"99 % within {late['p99_ms']:.1f} ms\nRequest to answer: median "
        f"{flood['without']['p50_ms']:.1f}, 99 % within {flood['without']['p99_ms']:.1f} ms; while another "
        f"client sends {flood['flood_per_second']:,.0f} messages/s: median {flood['with']['p50_ms']:.1f}, "
        f"99 % within {flood['with']['p99_ms']:.1f} ms\n{crowd['connected']:,} connected clients for "
        f"{crowd['held_seconds']:.0f} s: server {crowd['server_mb']:,.0f} MB, "
        f"broker {crowd['broker_mb']:,.0f} MB"
    )
