"""Beyond the paper: FedBuff, this package's defaults and the paper's four bits on five real tasks.

The defaults were chosen on the first two tasks, with seeds from 0 to 9. Here those tasks have other seeds,
and so have the others whose runs were looked at before. Runs have no target: their mean curves are compared
over paired seeds (``qafel.runs.curves``), at the level of ``qafel compare`` and at others. The defaults look
ahead, which full precision can do as well: FedBuff with the same look-ahead is a second reference.
"""

import math
from functools import partial
from statistics import fmean

import msgspec

from qafel.config import CLIENT_QUANTIZER, LOOKAHEAD, SERVER_QUANTIZER
from qafel.reproduce import figures
from qafel.reproduce.frontier_tasks import DEFAULT, FEDBUFF, LOOKING, file_of, tasks_of
from qafel.reproduce.study import Options, Origin, Study, finish, plus_minus, rounded
from qafel.runs.comparison import Comparison, spell
from qafel.runs.comparison import Row as Compared
from qafel.runs.curves import SHARE, against
from qafel.runs.intervals import Interval
from qafel.tables import Columns, Table

QUICK = {"uploads": 300, "evaluate_every": 50}
QUICK_SEEDS = 2
DECIDED = ("algorithm", "client_quantizer", "server_quantizer", "lookahead")
"""Settings that the runs have, or leave at the defaults that are measured."""
LEVELS = {
    "to 90 % of the gain": ("accuracy", 0.9),
    "95 %": ("accuracy", SHARE),
    "98 %": ("accuracy", 0.98),
    "95 % of the gain in loss": ("loss", SHARE),
}
"""(Metric, share of FedBuff's gain) at which the defaults are compared with FedBuff."""


class Row(msgspec.Struct, frozen=True):
    """One configuration on one task, with the row of its reference."""

    task: str
    mine: Compared
    base: Compared

    def against(self, ratio: str) -> Interval:
        """One of the ratios to the reference; NaN where the two cannot be compared."""
        compared = self.mine.against
        return (math.nan,) * 3 if compared is None else getattr(compared, ratio)

    def fewer(self, cost: str) -> float:
        """The reference's bytes over these, of whole runs."""
        return float(getattr(self.base, cost)[0] / getattr(self.mine, cost)[0])

    @property
    def seeds(self) -> str:
        """How many seeds are compared, and how many runs diverged."""
        diverged = self.mine.diverged + self.base.diverged
        compared = len(self.mine.against.seeds) if self.mine.against else 0
        return f"{compared} ({diverged} diverged)" if diverged else f"{compared}"


def _metric(row: Row) -> str:
    mine, base = (
        plus_minus((100 * v[0], 100 * v[1]), 1)
        for v in (r.metrics.get(r.metric, (math.nan, math.nan)) for r in (row.mine, row.base))
    )
    return f"{mine} ({base})"


TO_LEVEL: Columns = {
    f"to {100 * SHARE:.0f} % of its gain: uploads ÷ its": lambda row: spell(row.against("ratio")),
    f"to {100 * SHARE:.0f} %: × fewer MB up": lambda row: spell(row.against("fewer_up")),
    f"to {100 * SHARE:.0f} %: × fewer MB down": lambda row: spell(row.against("fewer_down")),
}
COLUMNS: Columns = {
    "task": "{.task}",
    "run": "{.mine.name}",
    "seeds": "{.seeds}",
    "accuracy, % (FedBuff's)": _metric,
    "whole run: × fewer MB up": lambda row: rounded(row.fewer("bytes_up"), 1),
    "whole run: × fewer MB down": lambda row: rounded(row.fewer("bytes_down"), 1),
    **TO_LEVEL,
}
PRICE: Columns = {"task": "{.task}", "seeds": "{.seeds}", **TO_LEVEL}


class Levels(msgspec.Struct, frozen=True):
    """The defaults' uploads over FedBuff's on one task, at several levels."""

    task: str
    ratios: dict[str, Interval]
    first: str
    """How many seeds reach the usual level before FedBuff's run with the same seed."""

    @classmethod
    def of(cls, task: str, compared: Comparison) -> "Levels":
        """Compare the two on one task."""
        mine, base = (compared.results[run] for run in (*DEFAULT, *FEDBUFF))
        ratios = {}
        for level, (metric, share) in LEVELS.items():
            one = against(mine, base, compared.reference, metric, share)
            ratios[level] = (math.nan,) * 3 if one is None else one.ratio
        usual = next(row.against for row in compared.rows if row.name in DEFAULT)
        pairs = list(zip(usual.by_seed, usual.reference_by_seed, strict=True)) if usual else []
        sooner = sum(a is not None and (b is None or a < b) for a, b in pairs)
        return cls(task, ratios, f"{sooner} of {len(pairs)}")


def frontier(options: Options) -> Study:
    """FedBuff, the defaults and the paper's four bits on the tasks with this data."""
    data = options.data or "digits"
    chosen = tasks_of(data)
    groups = {}
    for name, task in chosen.items():
        seeds = task.seeds[:QUICK_SEEDS] if options.quick else task.seeds
        protocol = {**task.settings, **(QUICK if options.quick else {}), "data": file_of(task, data)}
        for run, settings in task.runs.items():
            groups[_label(name, run)] = options.settings(protocol, settings, seeds, DECIDED)
    folder = options.folder(data)
    outcomes = options.run(groups, folder)
    compared = {
        name: Comparison({run: outcomes[_label(name, run)] for run in task.runs})
        for name, task in chosen.items()
    }
    rows = [Row(name, mine, one.rows[0]) for name, one in compared.items() for mine in one.rows[1:]]
    price = [_price(name, one) for name, one in compared.items() if LOOKING in one.groups]
    levels = [Levels.of(name, one) for name, one in compared.items()]
    return finish(
        "frontier",
        folder,
        data=data,
        tables=_tables(rows, price, levels),
        claims=[],
        numbers={
            "mean of the tasks": _mean(rows),
            "tasks": {name: one.rows for name, one in compared.items()},
            f"beside {LOOKING}": {row.task: row.mine for row in price},
            "other levels": levels,
        },
        origin=Origin.of(outcomes),
        notes=[note for one in compared.values() for note in one.notes],
        figures=[
            path
            for name, one in compared.items()
            for path in figures.save(one.figure(), folder / f"frontier-{_slug(name)}")
        ],
    )


def _price(task: str, compared: Comparison) -> Row:
    """The defaults beside FedBuff that looks ahead as far."""
    both = Comparison({run: compared.groups[run] for run in (*DEFAULT, LOOKING)}, LOOKING)
    return Row(task, *both.rows)


def _tables(rows: list[Row], price: list[Row], levels: list[Levels]) -> list[Table]:
    title = f"The defaults ({CLIENT_QUANTIZER}, {SERVER_QUANTIZER}, lookahead {LOOKAHEAD}) beside FedBuff"
    beside = Table.of(title, COLUMNS, rows)
    if len(levels) > 1:
        means = (rounded(value, 2) for value in _mean(rows).values())
        beside.rows.append(["mean", "default", "", "", *means])
    at: Columns = {
        "task": "{.task}",
        **{level: partial(_ratio, level) for level in LEVELS},
        "seeds that are first": "{.first}",
    }
    tables = [beside, Table.of("Uploads of the defaults ÷ FedBuff's, at other levels", at, levels)]
    if price:
        tables.insert(1, Table.of(f"The defaults beside {LOOKING}: what the quantizers cost", PRICE, price))
    return tables


def _ratio(level: str, row: Levels) -> str:
    return spell(row.ratios[level])


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


def _label(task: str, run: str) -> str:
    return f"{_slug(task)}-{_slug(run)}"


def _slug(name: str) -> str:
    return name.lower().replace(",", "").replace(" ", "-").replace(":", "-")
