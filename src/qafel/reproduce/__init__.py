"""The paper, reproduced: every table, figure and claim by name.

    reproduce("table1", data="smiles32.npz", out=Path("runs/paper"))

runs what has not been run, and returns a ``Study``: rows next to the paper's, claims that held or not, and
the names of the JSON, CSV and figure files it wrote. An interrupted study continues where it stopped.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qafel.errors import ConfigError, unknown
from qafel.reproduce import catch_up, celeba, frontier, hidden_state, mushrooms, theory
from qafel.reproduce.study import SEEDS, Options, Study

STUDIES: dict[str, Callable[[Options], Study]] = {
    "table1": celeba.table1,
    "table2": celeba.table2,
    "concurrency": celeba.concurrency,
    "hidden-state": hidden_state.hidden_state,
    "mushrooms": mushrooms.mushrooms,
    "theory": theory.theory,
    "literal-qsgd": celeba.literal,
    "frontier": frontier.frontier,
    "catch-up": catch_up.catch_up,
}

OWN_PROTOCOL = ("mushrooms", "theory")
"""Studies that are not made of settings."""

__all__ = ["STUDIES", "Options", "Study", "reproduce"]


def reproduce(
    name: str,
    *,
    data: str | None = None,
    seeds: int | None = None,
    quick: bool = False,
    jobs: int | None = None,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[str, float], None] = lambda _what, _share: None,
) -> Study:
    """One study by name; ``changes`` are settings on top of its protocol. The default is five seeds."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    for option, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{option} must be at least 1, got {value}")
    if name == "frontier" and seeds is not None:
        raise ConfigError("frontier has seeds of its own for each task; leave the seeds out")
    if name in OWN_PROTOCOL and changes:
        raise ConfigError(f"{name} has a protocol of its own; settings cannot change it")
    if name == "theory" and data is not None:
        raise ConfigError("theory makes its own data; leave the data out")
    folder = None if out is None else Path(out)
    options = Options(name, data, seeds or SEEDS, quick, jobs, folder, dict(changes or {}), progress)
    return STUDIES[name](options)
