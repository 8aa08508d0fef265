"""The simulator: asynchronous federated training on a virtual clock, in real frames.

``simulate(data=…, model=…, algorithm=…, uploads=…)`` runs and returns a ``Result``; the names are those of
``Settings``. ``resume(folder)`` goes on with a run that was interrupted, ``load(folder)`` reads one that has
ended.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import ConfigError, FrameError, QafelWarning, StateError
from qafel.records import provenance
from qafel.runs import output
from qafel.runs.folder import RunFolder
from qafel.runs.result import Point, Result, Summary, load
from qafel.sim.clock import Clock
from qafel.sim.settings import Settings, read, settings
from qafel.sim.simulation import CHECKPOINT_SECONDS, Simulation
from qafel.sim.summary import summarise
from qafel.sim.timeline import Event, Timeline

__all__ = [
    "Clock",
    "Event",
    "Point",
    "Result",
    "Settings",
    "Simulation",
    "Stopped",
    "Summary",
    "Timeline",
    "load",
    "read",
    "resume",
    "settings",
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
    """Run a simulation; ``out`` is a folder for it, ``workers`` the number of processes (one per core)."""
    return run(settings(values), None if out is None else Path(out), workers=workers, progress=progress)


def run(
    chosen: Settings,
    out: Path | None = None,
    *,
    workers: int | None = None,
    progress: Progress = lambda _: None,
    tensorboard: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Result:
    """Run these settings; in a folder, save the run every so many seconds."""
    output.check(tensorboard)
    learner = chosen.learner()
    folder = None if out is None else RunFolder.create(out, chosen.to_toml())
    try:
        simulation = Simulation(
            chosen,
            learner,
            workers=workers,
            folder=folder,
            layout=learner.layout,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )
        return _finish(simulation, tensorboard)
    except BaseException:
        if folder is not None and folder.checkpoint() is None:
            folder.remove()  # nothing in it to go on from
        raise
    finally:
        if folder is not None:
            folder.close()


def resume(
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress = lambda _: None,
    tensorboard: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    **functions: Any,
) -> Result:
    """Go on with the run in a folder, to the same bytes as if it had never been interrupted.

    A run whose data or model was a function that cannot be imported gets them again: ``model=…, data=…``.
    """
    output.check(tensorboard)
    folder = RunFolder.open(Path(out))
    try:
        chosen = read(folder.path / "config.toml")
        config = chosen.to_toml()
        if functions:
            chosen = msgspec.structs.replace(chosen, **functions)
        if chosen.to_toml() != config:
            raise ConfigError("a run is resumed with its own settings; only functions are handed in again")
        learner = chosen.learner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            simulation = Simulation(
                chosen,
                learner,
                workers=workers,
                folder=folder,
                layout=learner.layout,
                checkpoint_seconds=checkpoint_seconds,
                progress=progress,
            )
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
    except FrameError as error:
        raise StateError(f"the checkpoint is damaged: {error}; start the run anew") from error


def _finish(simulation: Simulation, tensorboard: bool) -> Result:
    """Run to the end, and write down what came out."""
    simulation.run()
    if simulation.stopped:
        folder = simulation.folder
        how = f"; continue with: qafel run --resume {folder.path}" if folder else ""
        raise Stopped(f"stopped after {simulation.uploads:,} uploads{how}")
    summary = summarise(simulation, provenance(*PACKAGES))
    layout = simulation.server.job.layout
    folder = simulation.folder
    result = Result(summary, simulation.points, simulation.x.copy(), layout, folder.path if folder else None)
    if folder is not None:
        output.write(folder, result, tensorboard=tensorboard)
    return result


class Stopped(KeyboardInterrupt):
    """The run was interrupted by Ctrl-C; its folder can be resumed."""
