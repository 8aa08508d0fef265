"""Many runs, several at a time. Runs that finished in the folder are read, interrupted ones are resumed.

A run that diverges is a result: its error message is stored beside the other runs.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from qafel.coding.threads import cores
from qafel.errors import ConfigError, DivergenceError, QafelError, QafelWarning
from qafel.files import write_json
from qafel.sim import Result, Settings, Simulation, Stopped, comparison, load

STOPPED = "stopped; run the same command again to continue"


class Diverged(msgspec.Struct, frozen=True):
    """A run that diverged, with its error message."""

    sentence: str
    settings: str
    """Settings of the run as TOML."""


class State(msgspec.Struct, frozen=True):
    """Progress of a run."""

    name: str
    uploads: int
    accuracy: float
    finished: bool = False


Outcome = Result | Diverged
Tell = Callable[[State], None]


def run_all(
    wanted: Mapping[str, Settings], out: Path, *, jobs: int | None = None, tell: Tell = lambda _: None
) -> dict[str, Outcome]:
    """Run each of the settings in the folder ``out``/NAME, ``jobs`` at a time (default: one per core)."""
    jobs = cores() if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    out.mkdir(parents=True, exist_ok=True)
    for name, chosen in wanted.items():
        comparison.check(chosen, out / name)
    todo = [name for name, chosen in wanted.items() if _finished(out / name, chosen) is None]
    workers = max(1, cores() // jobs)
    tasks = {name: partial(_one, wanted[name], out / name, workers) for name in todo}
    in_parallel(tasks, jobs, tell)
    outcomes: dict[str, Outcome] = {}
    for name, chosen in wanted.items():
        outcome = _finished(out / name, chosen)
        if outcome is None:
            raise QafelError(f"the run {name} has not ended; run the same command again to continue")
        outcomes[name] = outcome
    return outcomes


def _finished(folder: Path, chosen: Settings) -> Outcome | None:
    file = folder.with_name(folder.name + ".diverged")
    if file.exists():
        diverged = msgspec.json.decode(file.read_bytes(), type=Diverged)
        if diverged.settings != chosen.to_toml():
            raise ConfigError(f"{file} belongs to a run with other settings; choose another --out")
        return diverged
    return load(folder) if (folder / "summary.json").exists() else None


def _one(chosen: Settings, folder: Path, workers: int, tell: Tell) -> None:
    last = -1

    def progress(run: Simulation) -> None:
        nonlocal last
        if run.tracker.totals.uploads - last >= 100:
            last, points = run.tracker.totals.uploads, run.tracker.points
            tell(State(folder.name, last, points[-1].smoothed.get("accuracy", 0.0) if points else 0.0))

    try:
        comparison.one(chosen, folder, workers, progress)
    except DivergenceError as error:
        write_json(folder.with_name(folder.name + ".diverged"), Diverged(str(error), chosen.to_toml()))
    tell(State(folder.name, last, 0.0, finished=True))


def run_to_the_end(simulation: Simulation) -> None:
    """Run; raise Stopped if the run was interrupted."""
    simulation.run()
    if simulation.stopped:
        raise Stopped(STOPPED)


def in_parallel(tasks: Mapping[str, Callable[[Tell], None]], jobs: int | None, tell: Tell) -> None:
    """Call each task in a process of its own, ``jobs`` at a time (default: one per core).

    With one job, tasks are called in this process.
    """
    jobs = cores() if jobs is None else jobs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)  # these settings are the paper's, not the user's
        if jobs > 1 and hasattr(os, "fork"):
            _fork(tasks, jobs, tell)
        else:
            for task in tasks.values():
                task(tell)


def _fork(tasks: Mapping[str, Callable[[Tell], None]], jobs: int, tell: Tell) -> None:
    context = multiprocessing.get_context("fork")
    waiting = list(tasks)
    running: dict[Any, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, name, tasks[name]))
                process.start()
                theirs.close()
                running[mine] = process
            for pipe in wait(list(running), 1.0):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv_bytes()
                except EOFError:
                    process = running.pop(pipe)
                    process.join()
                    if process.exitcode:
                        raise QafelError(
                            f"a run ended with exit code {process.exitcode}; "
                            "run the same command again to continue"
                        ) from None
                    continue
                if message.startswith(b"!"):
                    raise QafelError(message[1:].decode())
                tell(msgspec.json.decode(message, type=State))
    except KeyboardInterrupt:
        raise Stopped(STOPPED) from None
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _child(pipe: Connection, name: str, task: Callable[[Tell], None]) -> None:
    """Run a task in its own process group: Ctrl-C reaches only the parent, which then stops its children."""
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: save and stop when the parent dies
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            task(lambda state: pipe.send_bytes(msgspec.json.encode(state)))
        except QafelError as error:
            pipe.send_bytes(b"!" + str(error).encode())
        except Exception as error:
            pipe.send_bytes(f"!{name} failed: {type(error).__name__}: {error}".encode())
        os._exit(0)  # a signal during a regular shutdown would print a traceback
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the parent is gone or asked to stop
