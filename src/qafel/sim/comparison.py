"""Runs side by side: one table and one figure, mean ± standard deviation over seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from qafel import sim
from qafel.config import ALGORITHMS
from qafel.errors import ConfigError
from qafel.runs.result import Result, load, mean_std
from qafel.sim.settings import Settings, read_settings
from qafel.sim.simulation import Simulation
from qafel.tasks.values import PYTHON, unknown

Groups = dict[str, list[Result]]
Group = Sequence[Settings] | Sequence[Result]
"""Runs to make, or that have ended."""
Target = dict[str, float]
"""What it took to reach the target: uploads, bytes up and down, time."""
COSTS = ("uploads", "bytes_up", "bytes_down", "time")


class Row(msgspec.Struct, frozen=True):
    """One group of the table: (mean, standard deviation) of each number.

    Where the settings have a target, uploads, bytes and time are those that it took to reach it.
    """

    name: str
    runs: int
    reached: int | None
    """How many runs reached the target; None without one."""
    metric: str
    """The metric that stands for the runs."""
    metrics: dict[str, tuple[float, float]]
    """The smoothed metrics at the end."""
    uploads: tuple[float, float]
    bytes_up: tuple[float, float]
    bytes_down: tuple[float, float]
    time: tuple[float, float]


def select(names: Sequence[str], changes: Iterable[str], seeds: int) -> dict[str, Group]:
    """What to compare: finished runs by folder, and configs or algorithms, each once per seed."""
    changes = list(changes)
    groups: dict[str, Group] = {}
    for name in names:
        path = Path(name)
        what: Group
        if path.is_dir() and (name not in ALGORITHMS or (path / "summary.json").exists()):
            label, what = path.name, [load(path)]
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
    wanted: Mapping[str, Group],
    out: Path,
    *,
    workers: int | None = None,
    progress: Callable[[str, Simulation], None] = lambda _name, _run: None,
) -> Groups:
    """Run each group in ``out``; finished runs are loaded, interrupted ones are resumed."""
    for name, what in wanted.items():
        for chosen in what:
            if isinstance(chosen, Settings):
                check(chosen, out / f"{name}-seed{chosen.seed}")

    def result(name: str, chosen: Settings | Result) -> Result:
        if isinstance(chosen, Result):
            return chosen
        tell = partial(progress, f"{name}, seed {chosen.seed}")
        return one(chosen, out / f"{name}-seed{chosen.seed}", workers, tell)

    return {name: [result(name, chosen) for chosen in what] for name, what in wanted.items()}


def check(chosen: Settings, folder: Path) -> None:
    """Raise ConfigError if a folder holds a run of other settings."""
    config = folder / "config.toml"
    if config.exists() and not config.read_text(encoding="utf-8").startswith(sim.header(chosen)):
        raise ConfigError(f"{folder} holds a run with other settings; choose another --out")
    if config.exists() and PYTHON in chosen.to_toml():
        raise ConfigError(
            f"{folder} holds a run of objects that have no name to compare them by; choose another --out"
        )


def one(chosen: Settings, folder: Path, workers: int | None, tell: Callable[[Simulation], None]) -> Result:
    """The run of these settings in a folder: read, resumed, or run."""
    if (folder / "summary.json").exists():
        return load(folder)
    if (folder / "config.toml").exists():
        return sim.resume(folder, workers=workers, progress=tell)
    return sim.run(chosen, folder, workers=workers, progress=tell)


def reached(run: object) -> Target | None:
    """What it took a run to reach its target; None if it did not, or diverged."""
    return run.summary.target if isinstance(run, Result) else None


def both_reached(mine: Iterable[object], theirs: Iterable[object]) -> list[tuple[Target, Target]]:
    """What it took two groups of runs, seed by seed, where both reached the target."""
    pairs = ((reached(a), reached(b)) for a, b in zip(mine, theirs, strict=False))
    return [(a, b) for a, b in pairs if a and b]


def table(results: Groups) -> list[Row]:
    """The rows of the table."""
    return [_row(name, runs) for name, runs in results.items()]


def _row(name: str, runs: list[Result]) -> Row:
    names = [name for name in runs[0].summary.smoothed if all(name in run.summary.smoothed for run in runs)]
    metrics = {name: mean_std([run.summary.smoothed[name] for run in runs]) for name in names}
    known: Any = {"metric": runs[0].summary.metric, "metrics": metrics}
    if runs[0].summary.settings.get("target") is None:
        known |= {cost: mean_std([getattr(run.summary, cost) for run in runs]) for cost in COSTS}
        return Row(name, len(runs), None, **known)
    there = [target for run in runs if (target := reached(run))]
    known |= {cost: mean_std([target[cost] for target in there]) for cost in COSTS}
    return Row(name, len(runs), len(there), **known)
