"""Search for the quantizers that learn with the fewest bytes and few more uploads than FedBuff.

Successive halving: all pairs of a grid run with the first seed, the better half of them with the next, and so
on, until every seed has been used or the budget of runs is spent. FedBuff runs with every seed. A candidate's
cost is its MB, both ways together, divided by FedBuff's on the same seeds, where their mean curves cross the
level of ``qafel.runs.curves``; uploads above the allowance raise it steeply. The best candidate is the
cheapest of those that ran with the largest number of seeds.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from qafel import report
from qafel.errors import ConfigError
from qafel.files import write_json
from qafel.records import provenance
from qafel.runs.comparison import Outcome, common_metric, spell
from qafel.runs.curves import SHARE, Against, against
from qafel.runs.result import Result
from qafel.sim import PACKAGES, Settings
from qafel.sim.batch import reserve, run_all, work_folder
from qafel.sim.grid import of_algorithm, run_name
from qafel.sim.processes import Progress
from qafel.tables import Columns, Table

CLIENTS = ("rotated:bits=0.3", "rotated:bits=0.45", "rotated:bits=0.7", "dither:step=2")
SERVERS = ("deadzone:step=1.4", "deadzone:step=1.8", "deadzone:step=2.2", "deadzone:step=2.8")
FEDBUFF = None
"""Stands for the runs of FedBuff where the other runs have a pair of quantizers."""
ALLOWANCE = 1.05
STEEP = 4
"""Exponent: uploads 1 % above the allowance raise the cost by 4 %."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of quantizers against FedBuff on the same seeds, by their mean curves."""

    client: str
    server: str
    seeds: int
    diverged: int
    against: Against | None
    cost: float
    """MB both ways over FedBuff's, raised where uploads are above the allowance; infinite where the mean
    curve does not reach the level, or a run diverged."""

    @property
    def label(self) -> str:
        """Both quantizers."""
        return f"{self.client}, {self.server}"

    @property
    def reached(self) -> bool:
        """Whether it can be compared with FedBuff."""
        return math.isfinite(self.cost)


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    best: Candidate
    within: bool
    """Whether the best is within the allowance."""
    candidates: list[Candidate]
    """The cheapest first."""
    runs: int
    figure: str


def tune(
    settings: Settings,
    out: str | Path | None = None,
    *,
    seeds: int = 3,
    budget: int = 40,
    jobs: int | None = None,
    clients: Sequence[str] = CLIENTS,
    servers: Sequence[str] = SERVERS,
    progress: Progress = lambda *_: None,
) -> Tuned:
    """Find the best pair of quantizers for these settings; runs that finished in ``out`` are reused.

    ``out`` is by default a new folder in runs/, or the one in which the same search was interrupted.
    """
    if settings.target is not None:
        raise ConfigError("tuning compares whole curves; leave the target out, and set uploads")
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    pairs = [(client, server) for client in clients for server in servers]
    least = seeds + len(pairs)
    if budget < least:
        raise ConfigError(
            f"the budget must be at least {least} runs, {seeds} of FedBuff and one of each pair, got {budget}"
        )
    request = {"kind": "tune", "settings": settings.to_toml(), "clients": clients, "servers": servers}
    folder = reserve(Path(out) if out is not None else work_folder(Path("runs"), "tune", request), request)
    race = _Race(settings, folder, jobs, budget, progress)
    race.run([FEDBUFF], range(seeds))
    left = pairs
    for seed in range(seeds):
        left = left[: max(1, budget - len(race.outcomes))]
        race.run(left, [seed])
        left = sorted(left, key=lambda pair: race.candidate(pair, seed + 1).cost)
        left = left[: max(2, math.ceil(len(left) / 2))]
        if len(race.outcomes) >= budget:
            break
    candidates = sorted((race.candidate(pair, seeds) for pair in pairs), key=lambda c: (-c.seeds, c.cost))
    best = candidates[0]
    tuned = Tuned(
        best=best,
        within=best.against is not None and best.reached and best.against.ratio[0] <= ALLOWANCE,
        candidates=candidates,
        runs=len(race.outcomes),
        figure=str(draw(candidates, folder / "tune.png")),
    )
    body = {"tuned": tuned, "settings": settings.to_toml(), **provenance(*PACKAGES)}
    write_json(folder / "tune.json", body)
    return tuned


Pair = tuple[str, str]


class _Race:
    """The runs so far, and the budget for all of them."""

    def __init__(
        self, settings: Settings, out: Path, jobs: int | None, budget: int, progress: Progress
    ) -> None:
        self._settings, self._out, self._jobs, self._budget, self._progress = (
            settings,
            out,
            jobs,
            budget,
            progress,
        )
        self.outcomes: dict[str, Outcome] = {}

    def run(self, pairs: Sequence[Pair | None], seeds: Iterable[int]) -> None:
        """Run these pairs with these seeds, and keep the outcomes."""
        wanted = {_name(pair, seed): self._chosen(pair, seed) for pair in pairs for seed in seeds}
        before = len(self.outcomes)

        def progress(what: str, share: float) -> None:
            self._progress(what, min(1.0, (before + share * len(wanted)) / self._budget))

        self.outcomes |= run_all(wanted, self._out / "runs", jobs=self._jobs, progress=progress)

    def _chosen(self, pair: Pair | None, seed: int) -> Settings:
        changes = of_algorithm("fedbuff")
        if pair:
            changes = {"algorithm": "qafel", "client_quantizer": pair[0], "server_quantizer": pair[1]}
        return msgspec.structs.replace(self._settings, seed=self._settings.seed + seed, **changes)

    def candidate(self, pair: Pair, seeds: int) -> Candidate:
        """The costs of a pair, against FedBuff on the seeds that both ran."""
        ran = [seed for seed in range(seeds) if _name(pair, seed) in self.outcomes]
        mine, theirs = ([self.outcomes[_name(which, seed)] for seed in ran] for which in (pair, FEDBUFF))
        ended, base = ([run for run in runs if isinstance(run, Result)] for runs in (mine, theirs))
        compared = against(ended, base, "fedbuff", common_metric([*ended, *base])) if ended and base else None
        diverged, cost = len(mine) - len(ended), math.inf
        if compared is not None and not diverged and math.isfinite(compared.uploads):
            cost = compared.share_of_bytes * max(1.0, compared.ratio[0] / ALLOWANCE) ** STEEP
        return Candidate(
            client=pair[0],
            server=pair[1],
            seeds=len(ran),
            diverged=diverged,
            against=compared,
            cost=cost,
        )


def _name(pair: Pair | None, seed: int) -> str:
    return run_name("_".join(pair) if pair else "fedbuff", seed)


COLUMNS: Columns = {
    "client, server": "{.label}",
    "seeds": "{.seeds}",
    "uploads ÷ FedBuff": lambda c: spell(c.against.ratio) if c.reached else "–",
    "times fewer up": lambda c: spell(c.against.fewer_up) if c.reached else "–",
    "times fewer down": lambda c: spell(c.against.fewer_down) if c.reached else "–",
    "MB up": lambda c: f"{c.against.mb_up:.2f}" if c.reached else "–",
    "MB down": lambda c: f"{c.against.mb_down:.2f}" if c.reached else "–",
}


def table(tuned: Tuned) -> Table:
    """The candidates, the best first."""
    known = next((c.against for c in tuned.candidates if c.against is not None), None)
    metric = known.metric if known else "accuracy"
    goal = f"to {100 * SHARE:.0f} % of FedBuff's gain in {metric}"
    title = f"MB and uploads {goal}, by mean curves [95 % interval]; {tuned.runs} runs"
    return Table.of(title, COLUMNS, tuned.candidates)


def draw(candidates: Sequence[Candidate], path: Path) -> Path:
    """MB up against MB down of every candidate that can be compared; the colour is its uploads.

    Candidates are numbered from the cheapest on, and the numbers are explained beside the figure.
    """
    room = 0.075 * max(34, *(len(candidate.label) + 8 for candidate in candidates))
    height = max(4.6, 0.24 * len(candidates))
    figure, (axis, beside) = report.subplots(2, 6.2 + room, height, width_ratios=[6.2, room])
    places = [(k, c, c.against) for k, c in enumerate(candidates, 1) if c.reached and c.against is not None]
    if places:
        xs, ys = [a.mb_up for _, _, a in places], [a.mb_down for _, _, a in places]
        sizes, ratios = [30 + 30 * c.seeds for _, c, _ in places], [a.ratio[0] for _, _, a in places]
        dots = axis.scatter(xs, ys, c=ratios, s=sizes, cmap="viridis_r")
        figure.colorbar(dots, ax=axis, label="uploads ÷ FedBuff's")
        edge = sorted((x, y) for x, y in zip(xs, ys, strict=True) if not _beaten(x, y, xs, ys))
        axis.plot(*zip(*edge, strict=True), color="#999999", linewidth=0.8, zorder=0)
        for (number, _, _), x, y in zip(places, xs, ys, strict=True):
            axis.annotate(str(number), (x, y), xytext=(6, 5), textcoords="offset points", fontsize=8)
        for which, values in (("x", xs), ("y", ys)):
            report.spread_axis(axis, which, values)
    names = [f"{number:>2}  {c.label} ({c.seeds})" for number, c, _ in places]
    text = "\n".join(["client, server quantizer (seeds)", *names])
    beside.axis("off")
    beside.text(0.0, 1.0, text, transform=beside.transAxes, fontsize=8, va="top")
    axis.set_xlabel("MB up")
    axis.set_ylabel("MB down")
    report.save(figure, path)
    return path


def _beaten(x: float, y: float, xs: Sequence[float], ys: Sequence[float]) -> bool:
    """Whether a point has one with fewer MB in both directions."""
    return any(a < x and b < y for a, b in zip(xs, ys, strict=True))
