"""Runs side by side: the seeds of one configuration are one row of a table, and one line of a figure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import ConfigError, unknown
from qafel.runs.curves import SHARE, Against, against, common_seeds
from qafel.runs.groups import check_seeds, group
from qafel.runs.intervals import Interval
from qafel.runs.result import Result, figure_of, load
from qafel.runs.summary import main_metric, mean_std, shown
from qafel.tables import Table, Tabular

Pair = tuple[float, float]
"""Mean and standard deviation."""
MAX_HEADING = 20
COSTS = ("uploads", "bytes_up", "bytes_down", "time")


class Diverged(msgspec.Struct, frozen=True):
    """A run that diverged, with its error message."""

    sentence: str
    settings: str
    """Settings of the run as TOML."""
    functions: str = ""
    """The fingerprint of its functions."""


Outcome = Result | Diverged
Run = Result | str | Path
"""A result, or the folder of a run that has ended."""
Target = dict[str, float]
"""What it took to reach the target: uploads, bytes up and down, time."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration: (mean, standard deviation) over its seeds that did not diverge."""

    name: str
    runs: int
    diverged: int
    reached: int | None
    """How many runs reached the target; None without one."""
    metric: str
    """The metric that stands for the runs."""
    metrics: dict[str, Pair]
    """The smoothed metrics at the end."""
    uploads: Pair
    bytes_up: Pair
    bytes_down: Pair
    time: Pair
    targets: list[Target | None]
    """What it took each seed to reach the target for the first time."""
    against: Against | None
    """Against the reference; None for the reference itself."""


class Comparison(Tabular):
    """Groups of runs beside a reference: ``rows``, ``tables()``, ``figure()``, ``frame()``, ``to_csv()``."""

    def __init__(
        self, groups: Mapping[str, Sequence[Outcome]], reference: str | None = None, share: float = SHARE
    ) -> None:
        if not groups:
            raise ConfigError("there is no run to compare")
        check_share(share)
        self.groups = {name: list(runs) for name, runs in groups.items()}
        self.results = {
            name: [run for run in runs if isinstance(run, Result)] for name, runs in self.groups.items()
        }
        self.reference = _reference(self.results, reference)
        self.share = share
        self.metric = common_metric([run for runs in self.results.values() for run in runs])
        self.rows = [self._row(name) for name in self.groups]

    def __repr__(self) -> str:
        return f"Comparison({', '.join(f'{name}: {len(runs)}' for name, runs in self.groups.items())})"

    def _row(self, name: str) -> Row:
        runs, base = self.results[name], self.results[self.reference]
        summaries = [run.summary for run in runs]
        names = [
            metric
            for metric in (summaries[0].smoothed if summaries else ())
            if all(metric in summary.smoothed for summary in summaries)
        ]
        targeted = any(summary.settings.get("target") is not None for summary in summaries)
        known: Any = {cost: mean_std([getattr(summary, cost) for summary in summaries]) for cost in COSTS}
        return Row(
            name=name,
            runs=len(self.groups[name]),
            diverged=len(self.groups[name]) - len(runs),
            reached=sum(summary.target is not None for summary in summaries) if targeted else None,
            metric=summaries[0].metric if summaries else self.metric,
            metrics={metric: mean_std([s.smoothed[metric] for s in summaries]) for metric in names},
            targets=[summary.target for summary in summaries] if targeted else [],
            against=against(runs, base, self.reference, self.metric, self.share)
            if name != self.reference
            else None,
            **known,
        )

    def tables(self, title: str = "") -> list[Table]:
        """What the runs reached and sent; and, with several seeds, how they compare with the reference.

        One seed is too few to compare curves: then the first table has the ratios of whole runs.
        """
        first = Table.of(title or "Runs", self._columns(), self.rows)
        compared = [row for row in self.rows if row.against is not None and len(row.against.seeds) > 1]
        if not compared:
            first.rows.extend(self._ratios(len(first.columns)))
            return [first]
        named = {row.against.level: row.against for row in compared if row.against is not None}
        one = next(iter(named.values()))
        level = f"{self.metric} {shown(self.metric, one.level)}, {100 * self.share:.0f} % of the gain"
        goal = level if len(named) == 1 else f"{100 * self.share:.0f} % of the gain in {self.metric}"
        short = f"÷ {self.reference if len(self.reference) <= MAX_HEADING else 'reference'}"
        columns: Any = {
            "run": "{.name}",
            "seeds": lambda row: str(len(row.against.seeds)),
            "uploads": lambda row: _number(row.against.uploads, 0),
            short: lambda row: spell(row.against.ratio),
            "MB up": lambda row: _number(row.against.mb_up, 2),
            "times fewer up": lambda row: spell(row.against.fewer_up),
            "MB down": lambda row: _number(row.against.mb_down, 2),
            "times fewer down": lambda row: spell(row.against.fewer_down),
        }
        return [
            first,
            Table.of(f"To {goal} of {self.reference}; mean curves [95 % interval]", columns, compared),
        ]

    def _ratios(self, columns: int) -> list[list[str]]:
        """For each other row: the uploads, MB and time of the reference, divided by those of the row."""
        base = next(row for row in self.rows if row.name == self.reference)
        lines = []
        for row in self.rows:
            if row is not base and row.runs > row.diverged:
                pairs = [(getattr(base, cost)[0], getattr(row, cost)[0]) for cost in COSTS]
                cells = [f"{a / b:.2f}×" if b and math.isfinite(a / b) else "–" for a, b in pairs]
                before = ["", ""] if any(one.runs > 1 for one in self.rows) else [""]
                line = [f"{self.reference} ÷ {row.name}", *before, *cells]
                lines.append(line + [""] * (columns - len(line)))
        return lines

    def _columns(self) -> Any:
        columns: Any = {"run": "{.name}"}
        if any(row.runs > 1 for row in self.rows):
            columns["seeds"] = "{.runs}"
        columns |= {
            self.metric: lambda row: _spread(row.metrics.get(self.metric), row.runs, self.metric),
            "uploads": lambda row: _pair(row.uploads, 1, 0, row.runs),
            "MB up": lambda row: _pair(row.bytes_up, 1e-6, 2, row.runs),
            "MB down": lambda row: _pair(row.bytes_down, 1e-6, 2, row.runs),
            "time": lambda row: _pair(row.time, 1, 1, row.runs),
        }
        if any(row.reached is not None for row in self.rows):
            columns["reached"] = lambda row: "–" if row.reached is None else f"{row.reached}/{row.runs}"
        if any(row.diverged for row in self.rows):
            columns["diverged"] = "{0.diverged}/{0.runs}"
        return columns

    @property
    def notes(self) -> list[str]:
        """Warnings about the runs, one sentence each."""
        runs = [run.summary for results in self.results.values() for run in results]
        runs.sort(key=lambda summary: -summary.concurrency["mean"])
        crowded = next((summary.notes for summary in runs if summary.notes), [])
        base = self.results[self.reference]
        common = {
            row.name: len(common_seeds(self.results[row.name], base, self.metric))
            for row in self.rows
            if row.name != self.reference
        }
        lost = [
            f"{name} is not compared: {count} seeds ended both here and in {self.reference}; 2 are needed"
            for name, count in common.items()
            if max(common.values()) > 1 > count - 1
        ]
        vain = [row.name for row in self.rows if row.against is None and common.get(row.name, 0) > 1]
        if vain:
            lost.append(
                f"{', '.join(vain)} cannot be compared: the curve of {self.reference} has no gain in "
                f"{self.metric}, or values that are not numbers"
            )
        return crowded + lost

    def figure(self, path: str | Path | None = None) -> Any:
        """The main metric against uploads, MB up, MB down and time: a matplotlib figure, which is also
        written to ``path``.
        """
        return figure_of(self.results, self.metric, path)

    def records(self) -> list[dict[str, Any]]:
        """A flat record of numbers for each configuration, for CSV files and data frames."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"run": row.name, "seeds": row.runs, "diverged": row.diverged}
            pairs = {**row.metrics, **{cost: getattr(row, cost) for cost in COSTS}}
            for name, (mean, deviation) in pairs.items():
                record |= {name: mean, f"{name} std": deviation}
            if row.reached is not None:
                record["reached"] = row.reached
            if (a := row.against) is not None:
                record |= {"reference": a.reference, "level": a.level, "uploads to level": a.uploads}
                record |= {"MB up to level": a.mb_up, "MB down to level": a.mb_down}
                intervals = {"uploads ratio": a.ratio, "fewer up": a.fewer_up, "fewer down": a.fewer_down}
                for name, values in intervals.items():
                    record |= dict(zip((name, f"{name} low", f"{name} high"), values, strict=True))
            records.append(record)
        return records

    def _repr_html_(self) -> str:
        return "\n".join(table.html() for table in self.tables())


def check_share(share: float) -> None:
    """Raise ConfigError for a share of the gain that is not between 0 and 1."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of the gain must be between 0 and 1, got {share}")


def compare(
    runs: Iterable[Run] | Mapping[str, Run | Sequence[Run]],
    *,
    reference: str | None = None,
    share: float = SHARE,
) -> Comparison:
    """Compare results, or run folders: those that differ only in their seed are one row.

    A mapping names the rows itself. ``reference`` is the row that the others are compared with, by default
    FedBuff's, otherwise the first. ``share`` is the part of its gain up to which they are compared.
    """
    if isinstance(runs, Mapping):
        named = {name: [_loaded(run) for run in _listed(some)] for name, some in runs.items()}
        for some in named.values():
            check_seeds(some)
        return Comparison(named, reference, share)
    return Comparison(group([_loaded(run) for run in _listed(runs)]), reference, share)


def _listed(runs: Any) -> list[Any]:
    return [runs] if isinstance(runs, Result | str | Path) else list(runs)


def _loaded(run: Any) -> Result:
    if isinstance(run, Result):
        return run
    if isinstance(run, str | Path):
        return load(run)
    raise ConfigError(f"a run to compare is a Result or its folder, got {type(run).__name__}")


def common_metric(runs: Sequence[Result]) -> str:
    """The metric that stands for all of the runs."""
    names, smoothed = {run.summary.metric for run in runs}, [run.summary.smoothed for run in runs]
    shared = [name for name in (smoothed[0] if smoothed else ()) if all(name in one for one in smoothed)]
    if smoothed and not shared:
        measured = " and ".join(sorted({", ".join(one) or "nothing" for one in smoothed}))
        raise ConfigError(f"the runs have no metric in common; they measured {measured}")
    return names.pop() if len(names) == 1 and names <= set(shared) else main_metric(shared)


def _reference(results: Mapping[str, Sequence[Result]], chosen: str | None) -> str:
    if chosen is not None:
        if chosen not in results:
            raise unknown("reference", chosen, results)
        return chosen
    plain = [name for name, runs in results.items() if runs and runs[0].summary.algorithm == "fedbuff"]
    ended = [name for name, runs in results.items() if runs]
    return (plain if len(plain) == 1 else [*ended, *results])[0]


def spell(values: Interval, unit: str = "×", scale: float = 1.0, form: str = ".2f") -> str:
    """A value and its interval as text."""
    value, low, high = (
        format(scale * part, form) if math.isfinite(part) else {math.inf: "∞", -math.inf: "−∞"}.get(part, "–")
        for part in values
    )
    if not math.isfinite(values[0]) or (unit == "×" and values[0] == 0):
        return "–"
    return f"{value}{unit}" if math.isnan(values[1]) else f"{value}{unit} [{low}, {high}]"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–" if math.isnan(value) else "∞"


def _pair(pair: Pair, unit: float, digits: int, runs: int) -> str:
    if math.isnan(pair[0]):
        return "–"
    mean, spread = (f"{value * unit:,.{digits}f}" for value in pair)
    return mean if runs == 1 or float(spread.replace(",", "")) == 0 else f"{mean} ± {spread}"


def _spread(pair: Pair | None, runs: int, metric: str) -> str:
    if pair is None or math.isnan(pair[0]):
        return "–"
    return shown(metric, pair[0]) if runs == 1 else f"{shown(metric, pair[0])} ± {shown(metric, pair[1])}"
