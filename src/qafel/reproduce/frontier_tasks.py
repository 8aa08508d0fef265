"""The five tasks of the frontier study, their runs and their seeds."""

from pathlib import Path
from typing import Any

import msgspec

from qafel.config import LOOKAHEAD
from qafel.errors import ConfigError

FEDBUFF = {"FedBuff": {"algorithm": "fedbuff"}}
DEFAULT: dict[str, dict[str, Any]] = {"default": {}}
LOOKING = "FedBuff, look-ahead"
AHEAD = {LOOKING: {"algorithm": "fedbuff", "lookahead": LOOKAHEAD}}
AFFINE = {"affine:4": {"client_quantizer": "affine:4", "server_quantizer": "affine:4", "lookahead": 0.0}}


class Task(msgspec.Struct, frozen=True):
    """What is learned, with which seeds and how."""

    file: str
    """A file in the folder of the data; one without a suffix is built in."""
    seeds: range
    runs: dict[str, dict[str, Any]]
    settings: dict[str, Any]


SMILES: dict[str, Any] = {"model": "cnn", "held_out": 0.1, "evaluate_every": 100, "smoothing": 7}
TASKS = {
    "SMILEs": Task(
        "smiles32.npz",
        range(10, 30),
        {**FEDBUFF, **DEFAULT, **AFFINE, **AHEAD},
        {**SMILES, "uploads": 6000},
    ),
    "SMILEs, label skew": Task(
        "smiles32.npz",
        range(10, 30),
        {**FEDBUFF, **DEFAULT, **AFFINE},
        {**SMILES, "uploads": 8000, "partition": "skewed:0.5"},
    ),
    "CIFAR-10": Task(
        "cifar10.npz",
        range(10, 30),
        {**FEDBUFF, **DEFAULT},
        {
            "model": "cnn",
            "partition": "dirichlet:0.5",
            "clients": 200,
            "uploads": 6000,
            "evaluate_every": 200,
            "smoothing": 5,
        },
    ),
    "Shakespeare": Task(
        "shakespeare.txt",
        range(20),
        {**FEDBUFF, **DEFAULT},
        {
            "model": "lstm",
            "steps": 10,
            "batch_size": 16,
            "rate": 20.0,
            "uploads": 2000,
            "evaluate_every": 100,
            "held_out_samples": 500,
        },
    ),
    "digits": Task(
        "digits",
        range(20, 60),
        {**FEDBUFF, **DEFAULT, **AHEAD},
        {
            "model": "mlp",
            "partition": "dirichlet:1",
            "clients": 60,
            "epochs": 2,
            "uploads": 6000,
            "evaluate_every": 100,
            "smoothing": 7,
        },
    ),
}


def tasks_of(place: str) -> dict[str, Task]:
    """The tasks with this data: all of them for a folder, otherwise those of one file or name."""
    data = Path(place)
    built_in = {task.file for task in TASKS.values() if not Path(task.file).suffix}
    if place in built_in or not data.is_dir():
        chosen = {name: task for name, task in TASKS.items() if task.file == data.name}
        if not chosen:
            files = dict.fromkeys(task.file for task in TASKS.values())
            raise ConfigError(f"the frontier runs on {', '.join(files)}, or a folder with them, got {data}")
        return chosen
    missing = [t.file for t in TASKS.values() if Path(t.file).suffix and not (data / t.file).is_file()]
    if missing:
        raise ConfigError(f"{data} has no {missing[0]}; docs/reproduction.md says where the data comes from")
    return TASKS


def file_of(task: Task, data: str) -> str:
    """The data of a task in a folder, or what was named instead of one."""
    if not Path(task.file).suffix:
        return task.file
    place = Path(data)
    return str(place / task.file if place.is_dir() else place)
