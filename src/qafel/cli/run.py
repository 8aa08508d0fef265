"""``qafel run``, ``qafel compare``, ``qafel demo`` and ``qafel timeline``."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from qafel.cli import show
from qafel.errors import ConfigError
from qafel.files import write_json

if TYPE_CHECKING:
    from qafel.runs.result import Result
    from qafel.sim import Simulation
    from qafel.sim.comparison import Group, Groups, Row

CLIENTS = 7474
"""Default number of clients of a timeline: the training clients of the paper."""
Changes = Annotated[
    list[str] | None, Option("--set", help="A setting, key=value; may be repeated.", metavar="KEY=VALUE")
]
WorkersOption = Annotated[int | None, Option("--workers", help="Worker processes; default: one per core.")]


class Live:
    """A progress line: uploads/s, the main metric, MB, staleness, time to go."""

    def __init__(self, bar: Any, name: str) -> None:
        self._bar, self._name, self._last = bar, name, -1.0
        self._task = bar.add_task(f"{name}: preparing", total=None, figures="")
        self._started = False

    def __call__(self, run: "Simulation", name: str | None = None) -> None:
        """Show how far the run is."""
        from qafel.runs.result import main_metric

        seconds = run.seconds["total"]
        if name is not None and name != self._name and self._started:
            self._task, self._last = self._bar.add_task(name, figures=""), -1.0
        self._name, self._started = name or self._name, True
        if self._last < 0:
            self._bar.update(self._task, description=self._name, total=run.settings.uploads)
        if seconds - self._last < 0.2 and self._last >= 0:
            return
        self._last = seconds
        tracker, totals = run.tracker, run.tracker.totals
        smoothed = tracker.points[-1].smoothed if tracker.points else {}
        name = main_metric(smoothed)
        figures = (
            f"{totals.uploads / seconds if seconds else 0:,.0f}/s  "
            f"{show.metric(name, smoothed.get(name, math.nan))}  "
            f"↑{totals.bytes_up / 1e6:,.1f} ↓{totals.bytes_down / 1e6:,.1f} MB  "
            f"staleness {tracker.mean_staleness:.1f}"
        )
        self._bar.update(self._task, completed=totals.uploads, figures=figures)


@contextmanager
def live(name: str, quiet: bool) -> Iterator[Live]:
    """The progress line of a run."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(12),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    ]
    with Progress(
        *columns, console=show.err, transient=True, disable=quiet or not show.err.is_terminal
    ) as bar:
        yield Live(bar, name)


@contextmanager
def resumable() -> Iterator[None]:
    """Print how to continue after Ctrl-C, and exit."""
    from qafel.sim import Stopped

    try:
        yield
    except Stopped as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(show.INTERRUPTED) from None


def run(
    config: Annotated[
        Path | None, Argument(help="A TOML file of settings; default: all at their defaults.")
    ] = None,
    change: Changes = None,
    out: Annotated[Path | None, Option(help="A new folder; default: runs/NAME-N.")] = None,
    resume: Annotated[Path | None, Option(help="Continue the run in this folder.")] = None,
    workers: WorkersOption = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also export for TensorBoard.")] = False,
    checkpoint: Annotated[float, Option(help="Seconds between checkpoints.", min=0)] = 30.0,
    json: show.Json = False,
) -> None:
    """Simulate training on a virtual clock, with real frames, and write a run folder.

    Example: qafel run --set algorithm=fedbuff --set uploads=2000 --out runs/mine
    """
    from qafel import sim
    from qafel.runs.folder import new_folder

    if resume is None:
        chosen = sim.read_settings(config, change or ())
        folder = out or new_folder(Path("runs"), config.stem if config else chosen.algorithm)
        start: Callable[..., Result] = partial(sim.run, chosen)
    elif config is not None or change or out is not None:
        raise ConfigError("--resume continues with the settings of the run; remove CONFIG, --set and --out")
    else:
        folder, start = resume, sim.resume
    with live(folder.name, json) as bar, resumable():
        callbacks = [sim.TensorBoard(folder / "tensorboard")] if tensorboard else []
        result = start(
            folder, workers=workers, progress=bar, callbacks=callbacks, checkpoint_seconds=checkpoint
        )
    if json:
        show.json({"folder": str(folder), **msgspec.structs.asdict(result.summary)})
        return
    print_result(result, folder)


def print_result(result: "Result", folder: Path) -> None:
    """The table of one run, and the paths of its folder and figure."""
    s = result.summary
    mode = "broadcast" if s.downlink == "broadcast" else "downloaded"
    row = {
        "algorithm": s.algorithm,
        s.metric: show.metric(s.metric, s.smoothed.get(s.metric, math.nan)),
        "uploads": f"{s.uploads:,}",
        "MB up": f"{s.bytes_up / 1e6:,.2f}",
        f"MB {mode}": f"{s.bytes_down / 1e6:,.2f}",
        "staleness": f"{s.staleness['mean']:.1f}",
        "in flight": f"{s.concurrency['mean']:.0f}",
        "time": show.number(s.time),
    }
    title = f"{s.algorithm}: {s.clients:,} clients, {s.size:,} parameters; ended by {s.reason}"
    show.table(title, list(row), [list(row.values())])
    show.line(f"\n{s.uploads / s.seconds['total']:,.0f} uploads/s, {s.version:,} server steps")
    others = [f"{name} {show.metric(name, value)}" for name, value in s.smoothed.items() if name != s.metric]
    if others:
        show.line(f"Also measured: {', '.join(others)}")
    if s.held_out:
        show.line(f"Held out: {s.held_out}")
    if s.target:
        reached = f"{s.target['uploads']:,.0f} uploads, {s.target['bytes_up'] / 1e6:,.2f} MB up"
        show.line(f"Target {s.settings['target']} reached after {reached}")
    show.line(f"Run folder: {folder}")
    if (folder / "curves.png").exists():
        show.line(f"Figure: {folder / 'curves.png'}")


def compare(
    runs: Annotated[list[str], Argument(help="Configs (TOML), finished run folders, or algorithms.")],
    change: Changes = None,
    seeds: Annotated[int, Option(help="Runs of each config, with consecutive seeds.")] = 1,
    out: Annotated[Path, Option(help="Folder for the runs and the figure.")] = Path("runs/compare"),
    workers: WorkersOption = None,
    json: show.Json = False,
) -> None:
    """Compare several runs in one table and one figure; finished runs in --out are reused.

    Example: qafel compare qafel fedbuff --set uploads=3000 --seeds 3 --out runs/mine
    """
    from qafel.sim import comparison

    show.at_least_one(seeds=seeds)
    wanted = comparison.select(runs, change or (), seeds)
    show.out_folder(out)
    _, answer = run_and_compare(wanted, out / "compare.png", json, workers)
    write_json(out / "compare.json", answer)
    print_comparison(answer, f"Comparison over {seeds} seed{'s' * (seeds > 1)}", json)


def run_and_compare(
    wanted: "Mapping[str, Group]", figure: Path, json: bool, workers: int | None = None
) -> "tuple[Groups, dict[str, Any]]":
    """The results by name; the path of their figure, and the rows of their table."""
    from qafel.runs.result import figure as draw
    from qafel.sim import comparison

    with live(next(iter(wanted)), json) as bar, resumable():
        results = comparison.compare(
            wanted, figure.parent, workers=workers, progress=lambda name, run: bar(run, name)
        )
    return results, {"figure": str(draw(results, figure)), "rows": comparison.table(results)}


def print_comparison(answer: dict[str, Any], title: str, json: bool) -> None:
    """The table of a comparison, with ratios to the first row, and the path of its figure; or JSON."""
    if json:
        show.json(answer)
        return
    rows: list[Row] = answer["rows"]
    first = rows[0]
    target = any(row.reached is not None for row in rows)
    metrics = {row.metric for row in rows}
    metric = metrics.pop() if len(metrics) == 1 else "loss"
    columns = ["run", metric, "uploads", "MB up", "MB down", "virtual time"] + ["reached"] * target
    cells = []
    for row in rows:
        reached = [f"{row.reached}/{row.runs}"] if row.reached is not None else ["–"] * target
        mean, spread = row.metrics.get(metric, (math.nan, 0.0))
        value = show.metric(metric, mean) + (f" ± {show.metric(metric, spread)}" if row.runs > 1 else "")
        megabytes = [_spread(pair, 1e-6, 2, row.runs) for pair in (row.bytes_up, row.bytes_down)]
        uploads, time = _spread(row.uploads, 1, 0, row.runs), _spread(row.time, 1, 1, row.runs)
        cells.append([row.name, value, uploads, *megabytes, time, *reached])
    for row in rows[1:]:
        names = ("uploads", "bytes_up", "bytes_down", "time")
        ratios = [_ratio(getattr(row, name)[0], getattr(first, name)[0]) for name in names]
        cells.append([f"{row.name} ÷ {first.name}", "", *ratios, *[""] * target])
    show.table(title, columns, cells)
    show.line(f"\nFigure: {answer['figure']}")


def _spread(pair: tuple[float, float], unit: float, digits: int, runs: int) -> str:
    if math.isnan(pair[0]):
        return "–"
    mean = f"{pair[0] * unit:,.{digits}f}"
    return mean if runs == 1 else f"{mean} ± {pair[1] * unit:,.{digits}f}"


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2f}×" if b and not math.isnan(a / b) else "–"


def demo(
    seed: Annotated[int, Option(help="Seed of the faces, the clock, the batches and the quantizers.")] = 0,
    uploads: Annotated[int, Option(help="Client uploads of each algorithm.")] = 5000,
    out: Annotated[Path | None, Option(help="Folder for the runs; default: a new one in runs/.")] = None,
    json: show.Json = False,
) -> None:
    """Compare QAFeL with FedBuff: 7,474 asynchronous clients, drawn faces, the paper's CNN, real frames.

    Example: qafel demo --uploads 1000 --out runs/demo
    """
    from qafel import report
    from qafel.runs.folder import new_folder
    from qafel.sim import Settings

    show.at_least_one(uploads=uploads)
    report.pyplot()
    shared = Settings(uploads=uploads, seed=seed, evaluate_every=min(250, uploads))
    runs = {name: [msgspec.structs.replace(shared, algorithm=name)] for name in ("qafel", "fedbuff")}
    out = show.out_folder(out or new_folder(Path("runs"), "demo"))
    results, answer = run_and_compare(runs, out / "demo.png", json)
    answer["runs"] = [found[0].summary for found in results.values()]
    clients = results["qafel"][0].summary.clients
    print_comparison(answer, f"Smiling or not: {uploads:,} uploads of {clients:,} clients", json)


def timeline(
    config: Annotated[Path | None, Argument(help="A TOML file of settings.")] = None,
    change: Changes = None,
    out: Annotated[Path | None, Option(help="Also draw the staleness to this PNG file.")] = None,
    json: show.Json = False,
) -> None:
    """Simulate the clock without training: concurrency and staleness of these settings.

    Example: qafel timeline --set rate=125 --set uploads=100000
    """
    from qafel import report, sim
    from qafel.sim.dry_run import run_timeline

    chosen = sim.read_settings(config, change or ())
    result = run_timeline(chosen, clients=chosen.clients or CLIENTS)
    if out:
        report.histogram(out, dict(enumerate(result.staleness)), "staleness", "updates")
    if json:
        show.json(result)
        return
    total = sum(result.staleness)
    mean = sum(tau * n for tau, n in enumerate(result.staleness)) / total if total else 0.0
    row = {
        "clock": chosen.arrival_process,
        "in flight (mean)": f"{result.concurrency:.1f}",
        "staleness (mean)": f"{mean:.2f}",
        "staleness (max)": f"{max(0, len(result.staleness) - 1)}",
        "steps": f"{result.steps:,}",
        "lost": f"{result.lost:,}",
        "turned away": f"{result.turned_away:,}",
        "rejected": f"{result.rejected:,}",
    }
    title = f"{result.events:,} events, {result.uploads:,} uploads in {result.time:,.1f} units of time"
    show.table(title, list(row), [list(row.values())])
    if out:
        show.line(f"\nFigure: {out}")
