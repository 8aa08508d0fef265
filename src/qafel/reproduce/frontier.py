"""Beyond the paper: FedBuff, this package's defaults and the paper's four bits on five real tasks.

The defaults were chosen on the first two tasks, with seeds from 0 to 9. Here those tasks
have other seeds, and the other tasks had no part in the choice. Runs have no target: their mean curves are
compared over paired seeds (``qafel.runs.curves``).
"""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from qafel.config import CLIENT_QUANTIZER, LOOKAHEAD, SERVER_QUANTIZER
from qafel.errors import ConfigError
from qafel.reproduce import figures
from qafel.reproduce.study import Options, Study, commits, finish, plus_minus
from qafel.runs.comparison import Comparison, spell
from qafel.runs.comparison import Row as Compared
from qafel.runs.intervals import Interval
from qafel.sim import make_settings
from qafel.tables import Columns, Table

FEDBUFF = {"FedBuff": {"algorithm": "fedbuff"}}
DEFAULT: dict[str, dict[str, Any]] = {"default": {}}
AHEAD = {"FedBuff, look-ahead": {"algorithm": "fedbuff", "lookahead": LOOKAHEAD}}
AFFINE = {"affine:4": {"client_quantizer": "affine:4", "server_quantizer": "affine:4", "lookahead": 0.0}}
QUICK = {"uploads": 300, "evaluate_every": 50}
QUICK_SEEDS = 2


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
        range(20),
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
        range(40),
        {**FEDBUFF, **DEFAULT},
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


class Row(msgspec.Struct, frozen=True):
    """One configuration on one task, with FedBuff's row."""

    task: str
    mine: Compared
    base: Compared

    def against(self, ratio: str) -> Interval:
        """One of the ratios to FedBuff; NaN where the two cannot be compared."""
        compared = self.mine.against
        return (math.nan,) * 3 if compared is None else getattr(compared, ratio)

    def fewer(self, cost: str) -> float:
        """FedBuff's bytes over these, of whole runs."""
        return float(getattr(self.base, cost)[0] / getattr(self.mine, cost)[0])


def _metric(row: Row) -> str:
    mine, base = (
        plus_minus((100 * v[0], 100 * v[1]), 1) for v in (r.metrics[r.metric] for r in (row.mine, row.base))
    )
    return f"{mine} ({base})"


COLUMNS: Columns = {
    "task": "{.task}",
    "run": "{.mine.name}",
    "seeds": "{.mine.runs}",
    "accuracy, % (FedBuff's)": _metric,
    "whole run: × fewer up": lambda row: f"{row.fewer('bytes_up'):.1f}",
    "× fewer down": lambda row: f"{row.fewer('bytes_down'):.1f}",
    "to 95 % of FedBuff's gain: uploads ÷ FedBuff's": lambda row: spell(row.against("ratio")),
    "times fewer up": lambda row: spell(row.against("fewer_up")),
    "times fewer down": lambda row: spell(row.against("fewer_down")),
}


def frontier(options: Options) -> Study:
    """FedBuff, the defaults and the paper's four bits on the tasks whose data is there."""
    chosen = _tasks(options)
    folder = options.folder(options.data or "digits")
    groups = {}
    for name, task in chosen.items():
        seeds = task.seeds[:QUICK_SEEDS] if options.quick else task.seeds
        shared = {**task.settings, **(QUICK if options.quick else {}), **options.changes}
        shared["data"] = _path(task, options.data)
        for run, settings in task.runs.items():
            groups[_label(name, run)] = [
                make_settings({**shared, **settings, "seed": seed}, "the changes") for seed in seeds
            ]
    outcomes = options.run(groups, folder)
    comparisons, rows, drawn = {}, [], []
    for name, task in chosen.items():
        compared = comparisons[name] = Comparison({run: outcomes[_label(name, run)] for run in task.runs})
        base, *others = compared.rows
        rows += [Row(name, mine, base) for mine in others]
        drawn += figures.save(compared.figure(), folder / f"frontier-{_slug(name)}")
    title = f"The defaults ({CLIENT_QUANTIZER}, {SERVER_QUANTIZER}, lookahead {LOOKAHEAD}) beside FedBuff"
    table = Table.of(title, COLUMNS, rows)
    mean = _mean(rows)
    table.rows.append(["mean", "default", "", "", *(f"{value:.2f}" for value in mean.values())])
    return finish(
        "frontier",
        folder,
        data=options.data or "digits",
        tables=[table],
        claims=[],
        numbers={
            "mean of the tasks": mean,
            "tasks": {name: compared.rows for name, compared in comparisons.items()},
            "commits of the runs": commits(outcomes),
        },
        notes=[note for compared in comparisons.values() for note in compared.notes],
        figures=drawn,
    )


def _mean(rows: list[Row]) -> dict[str, float]:
    """The defaults on the mean of the tasks."""
    mine = [row for row in rows if row.mine.name in DEFAULT]
    return {
        "whole run, fewer up": fmean(row.fewer("bytes_up") for row in mine),
        "whole run, fewer down": fmean(row.fewer("bytes_down") for row in mine),
        "uploads": fmean(row.against("ratio")[0] for row in mine),
        "fewer up": fmean(row.against("fewer_up")[0] for row in mine),
        "fewer down": fmean(row.against("fewer_down")[0] for row in mine),
    }


def _tasks(options: Options) -> dict[str, Task]:
    """The tasks with this data: all of them for a folder, otherwise those of one file or name."""
    data = Path(options.data or "digits")
    if not data.is_dir():
        chosen = {name: task for name, task in TASKS.items() if task.file == data.name}
        if not chosen:
            files = dict.fromkeys(task.file for task in TASKS.values())
            raise ConfigError(f"the frontier runs on {', '.join(files)}, or a folder with them, got {data}")
        return chosen
    missing = [t.file for t in TASKS.values() if Path(t.file).suffix and not (data / t.file).is_file()]
    if missing:
        raise ConfigError(f"{data} has no {missing[0]}; docs/reproduction.md says where the data comes from")
    return TASKS


def _path(task: Task, data: str | None) -> str:
    if not Path(task.file).suffix:
        return task.file
    place = Path(data or ".")
    return str(place / task.file if place.is_dir() else place)


def _label(task: str, run: str) -> str:
    return f"{_slug(task)}-{_slug(run)}"


def _slug(name: str) -> str:
    return name.lower().replace(",", "").replace(" ", "-").replace(":", "-")
