"""Runs side by side: one table and one figure, mean ± standard deviation over seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from qafel import sim
from qafel.config import ALGORITHMS
from qafel.errors import ConfigError
from qafel.runs.result import Result, figure, load, mean_std
from qafel.sim.settings import Settings, read_settings
from qafel.sim.simulation import Simulation
from qafel.tasks.settings import unknown

Groups = dict[str, list[Result]]
COLUMNS = ("accuracy", "uploads", "bytes_up", "bytes_down", "time")


class Row(msgspec.Struct, frozen=True):
    """One group of the table: (mean, standard deviation) of each number.

    Where the settings have a target, uploads, bytes and time are those that it took to reach it.
    """

    name: str
    runs: int
    reached: int | None
    """How many runs reached the target; None without one."""
    accuracy: tuple[float, float]
    uploads: tuple[float, float]
    bytes_up: tuple[float, float]
    bytes_down: tuple[float, float]
    time: tuple[float, float]


def select(names: Sequence[str], changes: Iterable[str], seeds: int) -> dict[str, Path | list[Settings]]:
    """What to compare: finished runs by folder, and configs or algorithms, each once per seed."""
    changes = list(changes)
    groups: dict[str, Path | list[Settings]] = {}
    for name in names:
        path = Path(name)
        what: Path | list[Settings]
        if path.is_dir() and (name not in ALGORITHMS or (path / "summary.json").exists()):
            label, what = path.name, path
            load(path)
        else:
            if name in ALGORITHMS:
                chosen = read_settings(None, [f"algorithm={name}", *changes])
            elif path.is_file():
                chosen = read_settings(path, changes)
            else:
                raise unknown("run folder, config file or algorithm", name, ALGORITHMS)
            label = path.stem if path.is_file() else name
            what = [msgspec.structs.replace(chosen, seed=chosen.seed + k) for k in range(seeds)]
        if label in groups:
            raise ConfigError(f"two runs to compare are called {label}; rename one")
        groups[label] = what
    return groups


def compare(
    wanted: Mapping[str, Path | list[Settings]],
    out: Path,
    *,
    workers: int | None = None,
    progress: Callable[[str, Simulation], None] = lambda _name, _run: None,
) -> Groups:
    """Run each group in ``out``; finished runs are loaded, interrupted ones are resumed."""
    for name, what in wanted.items():
        for chosen in [] if isinstance(what, Path) else what:
            check(chosen, out / f"{name}-seed{chosen.seed}")
    results: Groups = {}
    for name, what in wanted.items():
        results[name] = [load(what)] if isinstance(what, Path) else []
        for chosen in [] if isinstance(what, Path) else what:
            tell = partial(progress, f"{name}, seed {chosen.seed}")
            results[name].append(one(chosen, out / f"{name}-seed{chosen.seed}", workers, tell))
    return results


def check(chosen: Settings, folder: Path) -> None:
    """Raise ConfigError if a folder holds a run of other settings."""
    config = folder / "config.toml"
    if config.exists() and not config.read_text(encoding="utf-8").startswith(sim.header(chosen)):
        raise ConfigError(f"{folder} holds a run with other settings; choose another --out")


def one(chosen: Settings, folder: Path, workers: int | None, tell: Callable[[Simulation], None]) -> Result:
    """The run of these settings in a folder: read, resumed, or run."""
    if (folder / "summary.json").exists():
        return load(folder)
    if (folder / "config.toml").exists():
        return sim.resume(folder, workers=workers, progress=tell)
    return sim.run(chosen, folder, workers=workers, progress=tell)


def table(results: Groups) -> list[Row]:
    """The rows of the table."""
    return [_row(name, runs) for name, runs in results.items()]


def _row(name: str, runs: list[Result]) -> Row:
    target = runs[0].summary.settings.get("target")
    there = [run for run in runs if run.summary.target is not None]
    if target is None:
        costs = {c: mean_std([getattr(run.summary, c) for run in runs]) for c in COLUMNS[1:]}
    else:
        costs = {c: mean_std([(run.summary.target or {})[c] for run in there]) for c in COLUMNS[1:]}
    accuracy = mean_std([run.summary.accuracy for run in runs])
    return Row(name, len(runs), None if target is None else len(there), accuracy, **costs)


def draw(results: Groups, path: Path) -> Path:
    """The figure."""
    return figure(results, path)
