"""``qafel run`` and ``qafel timeline``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from qafel.cli import show
from qafel.cli.complete import change_completions
from qafel.errors import ConfigError
from qafel.runs.summary import shown

if TYPE_CHECKING:
    from qafel.runs.result import Result
    from qafel.sim import Simulation

CLIENTS = 7474
"""Default number of clients of a timeline: the training clients of the paper."""
Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="A setting, key=value; may be repeated. qafel settings lists them.",
        metavar="KEY=VALUE",
        autocompletion=change_completions,
    ),
]
WorkersOption = Annotated[int | None, Option("--workers", help="Worker processes; default: one per core.")]


class Live:
    """A progress line: uploads/s, the main metric, MB, staleness, time to go."""

    def __init__(self, bar: Any, name: str) -> None:
        self._bar, self._name, self._last = bar, name, -1.0
        self._task = bar.add_task(f"{name}: preparing", total=None, figures="")

    def __call__(self, run: "Simulation") -> None:
        """Show how far the run is."""
        seconds = run.seconds["total"]
        if self._last < 0:
            self._bar.update(self._task, description=self._name, total=run.settings.uploads)
        if seconds - self._last < 0.2 and self._last >= 0:
            return
        self._last = seconds
        tracker, totals = run.tracker, run.tracker.totals
        figures = (
            f"{totals.uploads / seconds if seconds else 0:,.0f}/s  {tracker.headline}  "
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
def resumable(how: str) -> Iterator[None]:
    """Print how to continue after Ctrl-C, and exit."""
    from qafel.sim import Stopped

    try:
        yield
    except Stopped as stopped:
        show.say(f"{str(stopped).partition(';')[0]}; {how}")
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
    events: Annotated[
        bool, Option("--events", help="Also write events.jsonl, for the dashboard's timeline.")
    ] = False,
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
        sim.need_extras(chosen, *(["tensorboard"] if tensorboard else []))
        folder = out or new_folder(Path("runs"), config.stem if config else chosen.algorithm)
        start: Callable[..., Result] = partial(sim.run, chosen, events=events)
    elif config is not None or change or out is not None or events:
        raise ConfigError(
            "--resume continues with the settings of the run; remove CONFIG, --set, --out and --events"
        )
    else:
        folder, start = resume, sim.resume
    how = f"continue with: qafel run --resume {folder}"
    with live(folder.name, json) as bar, resumable(how):
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
    show.print_table(result.table())
    show.line(f"\n{s.uploads / s.seconds['total']:,.0f} uploads/s, {s.version:,} server steps")
    others = [f"{name} {shown(name, value)}" for name, value in s.smoothed.items() if name != s.metric]
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
    show.look_at(folder)


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
        report.save(report.histogram(dict(enumerate(result.staleness)), "staleness", "updates"), out)
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
