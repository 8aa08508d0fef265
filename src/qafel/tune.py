"""Search for the quantizers that reach a target with the fewest bytes and few more uploads than FedBuff.

Successive halving: all pairs of a grid run with the first seed, the better half of them with the next, and so
on, until every seed has been used or the budget of runs is spent. FedBuff runs with every seed. A candidate's
cost is its MB, both ways together, divided by FedBuff's on the same seeds; uploads above the allowance raise
it steeply. The best candidate is the cheapest of those that ran with the largest number of seeds.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel import report
from qafel.errors import ConfigError
from qafel.files import write_json
from qafel.records import provenance
from qafel.sim import Result, Settings
from qafel.sim.batch import Outcome, State, run_all

CLIENTS = ("rotated:bits=0.3", "rotated:bits=0.45", "rotated:bits=0.7", "dither:step=2")
SERVERS = ("deadzone:step=1.4", "deadzone:step=1.8", "deadzone:step=2.2", "deadzone:step=2.8")
ALLOWANCE = 1.05
STEEP = 4
"""Exponent: uploads 1 % above the allowance raise the cost by 4 %."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of quantizers and its costs to the target, in units of FedBuff's on the same seeds."""

    client: str
    server: str
    seeds: int
    reached: int
    uploads: float
    up: float
    """FedBuff's MB up divided by this pair's."""
    down: float
    cost: float
    """MB both ways over FedBuff's, raised where uploads are above the allowance."""
    mb_up: float
    mb_down: float


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    best: Candidate
    within: bool
    """Whether the best is within the allowance."""
    candidates: list[Candidate]
    """The cheapest first."""
    runs: int
    figure: str


Tell = Callable[[str, float], None]


def tune(
    settings: Settings,
    out: Path,
    *,
    seeds: int = 3,
    budget: int = 40,
    jobs: int | None = None,
    clients: Sequence[str] = CLIENTS,
    servers: Sequence[str] = SERVERS,
    tell: Tell = lambda _what, _share: None,
) -> Tuned:
    """Find the best pair of quantizers for these settings; runs that finished in ``out`` are reused."""
    if settings.target is None:
        raise ConfigError("tuning needs a target, an accuracy to reach: --set target=0.9")
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    pairs = [(client, server) for client in clients for server in servers]
    least = seeds + len(pairs)
    if budget < least:
        raise ConfigError(
            f"--budget must be at least {least} runs, {seeds} of FedBuff and one of each pair, got {budget}"
        )
    race = _Race(settings, out, jobs, budget, tell)
    race.run({f"fedbuff-seed{k}": race.settings(k, algorithm="fedbuff") for k in range(seeds)})
    left = pairs
    for seed in range(seeds):
        left = left[: max(1, budget - race.done)]
        race.run({_name(pair, seed): race.settings(seed, pair=pair) for pair in left})
        left = sorted(left, key=lambda pair: _evaluate(pair, race.outcomes, seed + 1).cost)
        left = left[: max(2, math.ceil(len(left) / 2))]
        if race.done >= budget:
            break
    candidates = sorted((_evaluate(pair, race.outcomes, seeds) for pair in pairs), key=_order)
    best = candidates[0]
    tuned = Tuned(
        best=best,
        within=best.reached == best.seeds and best.uploads <= ALLOWANCE,
        candidates=candidates,
        runs=race.done,
        figure=str(draw(candidates, out / "tune.png")),
    )
    body = {"tuned": tuned, "settings": settings.to_toml(), **provenance("qafel", "numpy", "numba", "torch")}
    write_json(out / "tune.json", body)
    return tuned


class _Race:
    """The runs so far, and the budget for all of them."""

    def __init__(self, settings: Settings, out: Path, jobs: int | None, budget: int, tell: Tell) -> None:
        self._settings, self._out, self._jobs, self._budget, self._tell = settings, out, jobs, budget, tell
        self.outcomes: dict[str, Outcome] = {}

    @property
    def done(self) -> int:
        return len(self.outcomes)

    def settings(self, seed: int, *, pair: tuple[str, str] | None = None, **changes: Any) -> Settings:
        """The settings of one run."""
        if pair is not None:
            changes = {"algorithm": "qafel", "client_quantizer": pair[0], "server_quantizer": pair[1]}
        return msgspec.structs.replace(self._settings, seed=self._settings.seed + seed, **changes)

    def run(self, wanted: Mapping[str, Settings]) -> None:
        """Run these settings, and keep their outcomes."""
        part: dict[str, float] = {}

        def tell(state: State) -> None:
            part[state.name] = 1.0 if state.finished else min(1.0, state.uploads / self._settings.uploads)
            share = (self.done + sum(part.values())) / self._budget
            self._tell(f"{state.name}: {state.uploads:,} uploads", min(1.0, share))

        self.outcomes |= run_all(wanted, self._out / "runs", jobs=self._jobs, tell=tell)


def _name(pair: tuple[str, str], seed: int) -> str:
    plain = "_".join(pair).translate({ord(":"): "-", ord("="): "", ord(","): "-", ord("+"): "-"})
    return f"{plain}-seed{seed}"


def _evaluate(pair: tuple[str, str], outcomes: Mapping[str, Outcome], seeds: int) -> Candidate:
    """The costs of a pair, against FedBuff on the seeds that both ran."""
    both = []
    ran = 0
    for seed in range(seeds):
        mine, theirs = outcomes.get(_name(pair, seed)), outcomes.get(f"fedbuff-seed{seed}")
        if mine is None:
            continue
        ran += 1
        if isinstance(mine, Result) and isinstance(theirs, Result):
            a, b = mine.summary.target, theirs.summary.target
            if a and b:
                both.append((a, b))

    def mean(value: Callable[[Mapping[str, float], Mapping[str, float]], float]) -> float:
        return statistics.fmean(value(a, b) for a, b in both) if both else math.nan

    uploads = mean(lambda a, b: a["uploads"] / b["uploads"])
    share = (
        mean(lambda a, b: (a["bytes_up"] + a["bytes_down"]) / (b["bytes_up"] + b["bytes_down"]))
        * max(1.0, uploads / ALLOWANCE) ** STEEP
    )
    return Candidate(
        client=pair[0],
        server=pair[1],
        seeds=ran,
        reached=len(both),
        uploads=uploads,
        up=mean(lambda a, b: b["bytes_up"] / a["bytes_up"]),
        down=mean(lambda a, b: b["bytes_down"] / a["bytes_down"]),
        cost=share if ran and len(both) == ran else math.inf,
        mb_up=mean(lambda a, _: a["bytes_up"] / 1e6),
        mb_down=mean(lambda a, _: a["bytes_down"] / 1e6),
    )


def _order(candidate: Candidate) -> tuple[int, float]:
    return -candidate.seeds, candidate.cost


def draw(candidates: Sequence[Candidate], path: Path) -> Path:
    """MB up against MB down of every candidate that reached the target; the colour is its uploads."""
    plt = report.pyplot()
    figure, axis = plt.subplots(figsize=(6.4, 4.6))
    there = [c for c in candidates if c.reached]
    if there:
        dots = axis.scatter(
            [c.mb_up for c in there],
            [c.mb_down for c in there],
            c=[c.uploads for c in there],
            s=[30 + 30 * c.seeds for c in there],
            cmap="viridis_r",
        )
        figure.colorbar(dots, label="uploads ÷ FedBuff's")
        edge = [c for c in there if not any(o.mb_up < c.mb_up and o.mb_down < c.mb_down for o in there)]
        edge.sort(key=lambda c: c.mb_up)
        axis.plot(
            [c.mb_up for c in edge], [c.mb_down for c in edge], color="#999999", linewidth=0.8, zorder=0
        )
        best = candidates[0]
        if best.reached:
            where = (best.mb_up, best.mb_down)
            axis.annotate(
                f"{best.client}\n{best.server}", where, xytext=(8, 8), textcoords="offset points", fontsize=8
            )
    axis.set_xlabel("MB up")
    axis.set_ylabel("MB down")
    report.save(figure, path)
    return path
