"""The simulator: asynchronous federated training on a virtual clock, in real frames.

``simulate(data=…, model=…, algorithm=…, uploads=…)`` runs and returns a ``Result``; the names are those of
``Settings``. Model, data, loss, metrics, optimizer or the whole training may be your own. ``resume(folder)``
continues a run that was interrupted, ``load(folder)`` reads one that has ended. ``compare([…])`` puts results
side by side, and ``sweep({…})`` runs every combination of some values.
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from qafel import wire
from qafel.errors import ConfigError, FormatError, FrameError, QafelWarning, StateError, Stopped
from qafel.extras import require
from qafel.records import provenance
from qafel.runs.callbacks import Csv, EarlyStopping, TensorBoard
from qafel.runs.comparison import Comparison, compare
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result, load
from qafel.runs.summary import Point, Summary
from qafel.runs.tracker import Callback
from qafel.sim.settings import Settings, make_settings, read_settings
from qafel.sim.simulation import CHECKPOINT_SECONDS, Simulation
from qafel.sim.timeline import Event, Timeline
from qafel.tasks.settings import FUNCTIONS

if TYPE_CHECKING:
    from qafel.sim.grid import sweep

__all__ = [
    "Comparison",
    "Csv",
    "EarlyStopping",
    "Event",
    "Point",
    "Result",
    "Settings",
    "Simulation",
    "Stopped",
    "Summary",
    "TensorBoard",
    "Timeline",
    "compare",
    "load",
    "make_settings",
    "metric",
    "read_settings",
    "resume",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "metric":  # it needs PyTorch, and importing the simulator must not
        from qafel.tasks.measures import metric

        return metric
    if name == "sweep":  # its module imports this one
        from qafel.sim.grid import sweep

        return sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Progress = Callable[[Simulation], None]
P = ParamSpec("P")
R = TypeVar("R")
PACKAGES = ("qafel", "numpy", "numba", "torch")


class Options(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keywords of ``simulate``: the settings, and how they are run."""

    out: str | Path | None = None
    """A folder for the run."""
    workers: int | None = None
    """The number of processes; by default one per core."""
    callbacks: Sequence[Callback] = ()
    """Called with every evaluation; one that returns True ends the run."""
    progress: Progress | None = None
    """Called after every event; by default a notebook shows a bar."""
    events: bool = False
    """Also write events.jsonl into the folder, for the dashboard's timeline."""


def _keywords_of(kind: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the keywords of a class: editors complete them, and type checkers check them."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
        return function

    return decorate


@_keywords_of(Options)
def simulate(*, out: str | Path | None = None, **keywords: Any) -> Result:
    """Run a simulation; the keywords are ``Settings``, and how they are run (``Options``).

    ``out`` is a folder for the run, ``workers`` the number of processes (by default one per core);
    ``callbacks`` are called with every evaluation, and one that returns True ends the run. ``events`` writes
    events.jsonl into the folder, for the dashboard's timeline; ``progress`` is called after every event, by
    default with a bar in a notebook.
    """
    names = set(Options.__struct_fields__) - set(Settings.__struct_fields__)
    options = {name: keywords.pop(name) for name in names & set(keywords)}
    return run(make_settings(keywords), None if out is None else Path(out), **options)


def run(
    chosen: Settings,
    out: Path | None = None,
    *,
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    events: bool = False,
) -> Result:
    """Run these settings; in a folder, save a checkpoint every ``checkpoint_seconds``."""
    if events and out is None:
        raise ConfigError("events are written into the folder of a run; name one")
    need_extras(chosen, saved=out is not None)
    learner = chosen.learner()
    settings = chosen.resolved(learner, arrivals=chosen.arrival_process)
    drawn = "" if settings.clients else f"# clients = {learner.clients}, drawn with the seed\n"
    folder = None if out is None else RunFolder.create(out, header(chosen) + drawn + settings.to_toml())
    try:
        simulation = Simulation(
            settings,
            learner,
            workers=workers,
            folder=folder,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
            callbacks=callbacks,
            events=events,
        )
        return _finish(simulation)
    except BaseException:
        if folder is not None and folder.checkpoint() is None:
            folder.remove()  # there is nothing to resume from
        raise
    finally:
        if folder is not None:
            folder.close()


def need_extras(chosen: Settings, *more: str, saved: bool = True) -> None:
    """Raise MissingExtraError, before a run starts, for all that it needs to run and to be saved."""
    require("this run", *chosen.extras, *(["torch"] if saved else []), *more)


def header(chosen: Settings) -> str:
    """The first line of config.toml: a fingerprint of the settings as they were asked for."""
    return f"# requested settings: {wire.fingerprint(chosen.to_toml().encode()):016x}\n"


def resume(
    out: str | Path,
    *,
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    **functions: Any,
) -> Result:
    """Continue the run in a folder, to the same bytes as if it had never been interrupted.

    Objects that cannot be imported are passed again: ``resume(folder, model=net, loss=…)``. Callbacks see the
    saved evaluations again.
    """
    folder = RunFolder.open(Path(out))
    try:
        chosen = _with_functions(read_settings(folder.path / "config.toml"), functions)
        need_extras(chosen)
        learner = chosen.learner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            simulation = Simulation(
                chosen,
                learner,
                workers=workers,
                folder=folder,
                checkpoint_seconds=checkpoint_seconds,
                progress=progress,
                callbacks=callbacks,
            )
            saved = folder.checkpoint()
            if saved is None:
                folder.truncate(0)
            else:
                _restore(simulation, saved)
        return _finish(simulation)
    finally:
        folder.close()


def _with_functions(chosen: Settings, functions: dict[str, Any]) -> Settings:
    """The settings with objects that are passed again, under the same names as before."""
    for name in functions:
        if name not in FUNCTIONS:
            raise ConfigError(f"a run is resumed with its own settings; {name!r} cannot be changed")
    again = msgspec.structs.replace(chosen, **functions)
    for name in functions:
        before, now = chosen.values()[name], again.values()[name]
        if before != now:
            raise ConfigError(f"{name} was {before} when the run began, and is {now} now; pass the same one")
    return again


def _restore(simulation: Simulation, saved: bytes) -> None:
    try:
        simulation.resume(saved)
    except FormatError as error:
        raise StateError(f"the checkpoint cannot be resumed: {error}; start the run again") from error
    except FrameError as error:
        raise StateError(f"the checkpoint is damaged: {error}; start the run again") from error


def _finish(simulation: Simulation) -> Result:
    """Run to the end and write the result."""
    simulation.run()
    tracker, server, folder = simulation.tracker, simulation.server, simulation.folder
    if simulation.stopped:
        how = f"; it can be resumed from {folder.path}" if folder else ""
        raise Stopped(f"stopped after {tracker.totals.uploads:,} uploads{how}")
    seconds = simulation.spent
    busy = simulation.workers * (seconds["total"] - seconds["evaluation"])
    seconds["not training"] = max(0.0, 1 - seconds["training"] / busy) if busy > 0 else 0.0
    summary = tracker.summary(
        server,
        clients=simulation.learner.clients,
        workers=simulation.workers,
        seconds=seconds,
        fingerprint=f"{simulation.learner.fingerprint:016x}",
        held_out=getattr(getattr(simulation.learner, "population", None), "held_out_from", ""),
        provenance=provenance(*PACKAGES),
    )
    path = folder.path if folder else None
    result = Result(summary, tracker.points, simulation.x.copy(), server.job.layout, path)
    if folder is not None:
        result.write(folder)
    return result
