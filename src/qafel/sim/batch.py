"""Many runs, several at a time: the engine of ``compare``, ``sweep``, ``tune`` and ``reproduce``.

Runs that finished in the folder are read, interrupted ones are resumed. A run that diverges is a result: its
error message is stored beside the other runs.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from qafel import files, sim
from qafel.errors import ConfigError, DivergenceError, QafelError, Stopped
from qafel.machine import cores
from qafel.runs.comparison import Diverged, Outcome
from qafel.runs.folder import new_folder
from qafel.runs.result import Result, load
from qafel.sim.processes import Progress, TaskProgress, in_parallel
from qafel.sim.settings import Settings
from qafel.sim.simulation import Simulation
from qafel.tasks.settings import FUNCTIONS
from qafel.tasks.values import PYTHON

REQUEST = "request.json"
STEP = 50
"""Uploads between two messages about the progress of a run."""


def run_all(
    wanted: Mapping[str, Settings],
    out: Path,
    *,
    jobs: int | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, Outcome]:
    """Run each of the settings in the folder ``out``/NAME, ``jobs`` at a time (default: one per core)."""
    jobs = cores() if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    for chosen in wanted.values():
        sim.need_extras(chosen)
    with files.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, chosen in wanted.items():
        _check_config(chosen, out / name)
    ended = {name: _finished(out / name, chosen) for name, chosen in wanted.items()}
    _check_same(wanted, ended)
    todo = [name for name, outcome in ended.items() if outcome is None]
    workers = max(1, cores() // max(1, min(jobs, len(todo))))
    tasks = {name: partial(_one, wanted[name], out / name, workers) for name in todo}
    share = {name: 0.0 if outcome is None else 1.0 for name, outcome in ended.items()}

    def ended_so_far(task: TaskProgress) -> None:
        share[task.name] = task.share
        progress(f"{task.name}: {task.text}", sum(share.values()) / len(share))

    if jobs > 1 and len(todo) > 1:
        _preload()
    try:
        in_parallel(tasks, jobs, ended_so_far)
    except (Stopped, KeyboardInterrupt) as stopped:
        raise Stopped(f"stopped; repeat the command or call to continue in {out}") from stopped
    outcomes: dict[str, Outcome] = {}
    for name, chosen in wanted.items():
        outcome = ended[name] or _finished(out / name, chosen)
        if outcome is None:
            raise QafelError(f"the run {name} has not ended; repeat the command or call to continue in {out}")
        outcomes[name] = outcome
    return outcomes


def _preload() -> None:
    """Import, once for all processes, what takes long and every run needs."""
    for name in ("torch", "numba", "safetensors.numpy", "matplotlib.figure"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _finished(folder: Path, chosen: Settings) -> Outcome | None:
    """The outcome of a run in a folder; None if it has not ended. ConfigError if it is of other settings."""
    file = folder.with_name(folder.name + ".diverged")
    if file.exists():
        try:
            diverged = msgspec.json.decode(file.read_bytes(), type=Diverged)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file} is damaged ({error}); delete it, and the run is made again") from None
        if (diverged.settings, diverged.functions) != (chosen.to_toml(), chosen.functions):
            raise ConfigError(
                f"{file} belongs to a run with other settings or functions; delete it, or choose another "
                "folder"
            )
        return diverged
    return load(folder) if (folder / "summary.json").exists() else None


def _check_same(wanted: Mapping[str, Settings], ended: Mapping[str, Outcome | None]) -> None:
    """Raise ConfigError if runs that have ended had other functions, another model or other data.

    Where data or functions may have changed, the training of the first seed of each configuration is probed.
    """
    probed = set()
    for name, outcome in ended.items():
        chosen = wanted[name]
        named = isinstance(chosen.data, str) and not Path(chosen.data).exists()
        if not isinstance(outcome, Result) or (not chosen.functions and named):
            continue
        key = msgspec.structs.replace(chosen, seed=0).to_toml()
        changed = outcome.summary.functions != chosen.functions
        if not changed and key not in probed:
            probed.add(key)
            changed = outcome.summary.fingerprint != f"{chosen.learner().fingerprint:016x}"
        if changed:
            raise ConfigError(
                f"{outcome.folder} holds a run with another model, other data or other training; choose "
                "another folder"
            )


def _check_config(chosen: Settings, folder: Path) -> None:
    """Raise ConfigError if a folder holds a run of other settings."""
    config = folder / "config.toml"
    if config.exists() and not config.read_bytes().startswith(sim.header(chosen).encode()):
        raise ConfigError(f"{folder} holds a run with other settings; choose another folder")


def _one(chosen: Settings, folder: Path, workers: int, progress: Callable[[TaskProgress], None]) -> None:
    """Run, or resume, one of the runs."""
    last = -STEP

    def after_event(run: Simulation) -> None:
        nonlocal last
        totals = run.tracker.totals
        if totals.uploads - last < STEP and not run.tracker.reason:
            return
        last = totals.uploads
        sent = f"  ↑{totals.bytes_up / 1e6:,.1f} ↓{totals.bytes_down / 1e6:,.1f} MB"
        text = f"{last:,} uploads  {run.tracker.headline}{sent}"
        progress(TaskProgress(folder.name, min(0.999, last / chosen.uploads), text))

    try:
        if (folder / "config.toml").exists():
            objects = {name: getattr(chosen, name) for name in FUNCTIONS}
            again = {n: value for n, value in objects.items() if PYTHON in str(chosen.values()[n])}
            sim.resume(folder, workers=workers, progress=after_event, **again)
        else:
            sim.run(chosen, folder, workers=workers, progress=after_event)
    except DivergenceError as error:
        files.write_json(
            folder.with_name(folder.name + ".diverged"),
            Diverged(str(error), chosen.to_toml(), chosen.functions),
        )
    progress(TaskProgress(folder.name, 1.0, "ended"))


def reserve(folder: Path, request: Mapping[str, Any], name: str = REQUEST) -> Path:
    """Create an output folder and keep the request in it, in a file of this name.

    ConfigError if the folder holds the results of another request.
    """
    file, data = folder / name, files.to_json(request)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another folder")
    if name == REQUEST and not file.exists() and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not empty; choose another folder")
    if file.exists() and file.read_bytes() != data:
        raise ConfigError(
            f"{folder} holds results of something else, which {file} describes; choose another folder"
        )
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(file, data, sync=False)
    return folder


def work_folder(root: Path, name: str, request: Mapping[str, Any]) -> Path:
    """The folder ``root/name-N`` that holds this work already, or a new one."""
    data = files.to_json(request)
    for path in sorted(root.glob(f"{name}-*/{REQUEST}")) if root.exists() else ():
        if path.read_bytes() == data:
            return path.parent
    return new_folder(root, name)
