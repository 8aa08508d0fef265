"""Tables of ``qafel bench``."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from qafel.cli import show
from qafel.tables import Columns, Table

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
RATES: Columns = {
    "what": "{0[0]}",
    "kB": lambda row: f"{row[1]['bytes'] / 1000:.1f}",
    "qafel": lambda row: f"{row[1].get('updates_per_second', row[1].get('deliveries_per_second')):,.0f}",
    "raw broker": lambda row: f"{row[1]['raw_per_second']:,.0f}",
    "×": lambda row: f"{row[1]['ratio']:.2f}",
}
WAITS: Columns = {
    "from … to": "{0[0]}",
    "median": lambda row: f"{row[1]['p50_ms']:.2f}",
    "99 % within": lambda row: f"{row[1]['p99_ms']:.1f}",
}


def codec(
    rows: Iterable[Any], coders: Sequence[Any], points: Sequence[Any], first: Collection[str]
) -> list[Table]:
    """Bits against error, the coder of integers, and the codecs: ``first`` in a table of their own."""
    parts: dict[str, list[Any]] = {"The codecs": [], "Other codecs": []}
    for row in rows:
        parts["The codecs" if row.spec in first else "Other codecs"].append(row)
    title = "{}; × = times np.copyto of the same array in the same rounds"
    results = [Table.of(title.format(name), CODEC, part) for name, part in parts.items() if part]
    if points:
        title = "The coder of integers on a million of them; × = times np.copyto of as many float32"
        results.append(Table.of(title, CODERS, coders))
        title = "On vectors of a real run (x − x̂ for biased quantizers), means over early, midway and late"
        results.append(Table.of(title, POINTS, points))
    return results


def sim(speeds: Iterable[Any], clocks: Iterable[Any]) -> list[Table]:
    """Whole runs, and the clock alone."""
    title = (
        "The paper's CNN, 20 images a client, end to end; × = times a bare PyTorch loop in the same rounds"
    )
    return [Table.of(title, SPEEDS, speeds), Table.of("The clock alone", CLOCKS, clocks)]


def memory(rows: Iterable[Any]) -> list[Table]:
    """The memory of all processes."""
    return [Table.of("Peak resident memory of all processes together", MEMORY, rows)]


def federation(parts: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Rates against the raw broker, waiting times, and connected clients."""
    rows = {
        f"{name}, {kind}": numbers
        for part, name in (("updates", "updates"), ("synced", "updates, each synced to disk"))
        for kind, numbers in parts[part].items()
    }
    loop = f"uploads of {parts['loop']['clients']:,} clients, each with receipt and next lease"
    rows |= {
        loop if name == "loop" else name.replace("fan-out", "increments delivered,"): numbers
        for name, numbers in parts.items()
        if "ratio" in numbers
    }
    late, crowd, flood = parts["latency"], parts["clients"], parts["flood"]
    waits = {
        f"upload to acknowledgement, at {late['updates_per_second']:,.0f} a second": late,
        "request to answer": flood["without"],
        f"the same beside a client that sends {flood['flood_per_second']:,.0f} messages a second": flood[
            "with"
        ],
    }
    sizes = {"server": crowd["server_mb"], "broker": crowd["broker_mb"]}
    return [
        Table.of("Per second; the raw broker moves the same bytes in the same rounds", RATES, rows.items()),
        Table.of("Waiting, in milliseconds", WAITS, waits.items()),
        Table(
            f"Memory with {crowd['connected']:,} connected clients for {crowd['held_seconds']:.0f} s",
            ["process", "MB"],
            [[name, f"{megabytes:,.0f}"] for name, megabytes in sizes.items()],
        ),
    ]
