"""The simulator: asynchronous federated training on a virtual clock, in real frames.

``simulate(data=…, model=…, algorithm=…, uploads=…)`` runs and returns a ``Result``; the names are those of
``Settings``. ``resume(folder)`` continues a run that was interrupted, ``load(folder)`` reads one that has
ended.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel import wire
from qafel.errors import ConfigError, FormatError, FrameError, QafelWarning, StateError, Stopped
from qafel.records import provenance
from qafel.runs.folder import RunFolder
from qafel.runs.result import Point, Result, Summary, check_extras, load
from qafel.sim.settings import Settings, make_settings, read_settings
from qafel.sim.simulation import CHECKPOINT_SECONDS, Simulation
from qafel.sim.timeline import Event, Timeline

__all__ = [
    "Event",
    "Point",
    "Result",
    "Settings",
    "Simulation",
    "Stopped",
    "Summary",
    "Timeline",
    "load",
    "make_settings",
    "read_settings",
    "resume",
    "simulate",
]

Progress = Callable[[Simulation], None]
PACKAGES = ("qafel", "numpy", "numba", "torch")


def simulate(
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    progress: Progress = lambda _: None,
    **values: Any,
) -> Result:
    """Run a simulation; ``out`` is a folder for it, ``workers`` the number of processes (default: cores)."""
    return run(make_settings(values), None if out is None else Path(out), workers=workers, progress=progress)


def run(
    chosen: Settings,
    out: Path | None = None,
    *,
    workers: int | None = None,
    progress: Progress = lambda _: None,
    tensorboard: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Result:
    """Run these settings; in a folder, save a checkpoint every ``checkpoint_seconds``."""
    check_extras(tensorboard=tensorboard)
    options: Any = {"workers": workers, "checkpoint_seconds": checkpoint_seconds, "progress": progress}
    learner = chosen.learner()
    settings = _resolved(chosen, learner)
    folder = None if out is None else RunFolder.create(out, header(chosen) + settings.to_toml())
    try:
        simulation = Simulation(settings, learner, folder=folder, layout=learner.layout, **options)
        return _finish(simulation, tensorboard)
    except BaseException:
        if folder is not None and folder.checkpoint() is None:
            folder.remove()  # there is nothing to resume from
        raise
    finally:
        if folder is not None:
            folder.close()


def header(chosen: Settings) -> str:
    """The first line of config.toml: a fingerprint of the settings as they were asked for."""
    return f"# requested settings: {wire.fingerprint(chosen.to_toml().encode()):016x}\n"


def _resolved(chosen: Settings, learner: Any) -> Settings:
    """The settings with the values that follow from the model, the data and the algorithm."""
    job = chosen.job(learner.x.size, learner.layout)
    return chosen.resolved(
        job, clients=learner.clients, arrivals=chosen.arrival_process, engine=learner.engine_name
    )


def resume(
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress = lambda _: None,
    tensorboard: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    **functions: Any,
) -> Result:
    """Continue the run in a folder, to the same bytes as if it had never been interrupted.

    If its data or model was a function that cannot be imported, pass it again: ``model=…, data=…``.
    """
    check_extras(tensorboard=tensorboard)
    options: Any = {"workers": workers, "checkpoint_seconds": checkpoint_seconds, "progress": progress}
    folder = RunFolder.open(Path(out))
    try:
        chosen = read_settings(folder.path / "config.toml")
        config = chosen.to_toml()
        if functions:
            chosen = msgspec.structs.replace(chosen, **functions)
        if chosen.to_toml() != config:
            raise ConfigError("a run is resumed with its own settings; only functions can be passed again")
        learner = chosen.learner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            simulation = Simulation(chosen, learner, folder=folder, layout=learner.layout, **options)
            saved = folder.checkpoint()
            if saved is None:
                folder.truncate(0)
            else:
                _restore(simulation, saved)
        return _finish(simulation, tensorboard)
    finally:
        folder.close()


def _restore(simulation: Simulation, saved: bytes) -> None:
    try:
        simulation.resume(saved)
    except FormatError as error:
        raise StateError(f"the checkpoint cannot be resumed: {error}; start the run again") from error
    except FrameError as error:
        raise StateError(f"the checkpoint is damaged: {error}; start the run again") from error


def _finish(simulation: Simulation, tensorboard: bool) -> Result:
    """Run to the end and write the result."""
    simulation.run()
    tracker, server, folder = simulation.tracker, simulation.server, simulation.folder
    if simulation.stopped:
        how = f"; continue with: qafel run --resume {folder.path}" if folder else ""
        raise Stopped(f"stopped after {tracker.totals.uploads:,} uploads{how}")
    seconds = simulation.spent
    busy = simulation.workers * (seconds["total"] - seconds["evaluation"])
    seconds["not training"] = max(0.0, 1 - seconds["training"] / busy) if busy > 0 else 0.0
    summary = tracker.summary(
        server,
        clients=simulation.learner.clients,
        workers=simulation.workers,
        seconds=seconds,
        provenance=provenance(*PACKAGES),
    )
    path = folder.path if folder else None
    result = Result(summary, tracker.points, simulation.x.copy(), server.job.layout, path)
    if folder is not None:
        result.write(folder, tensorboard=tensorboard)
    return result
