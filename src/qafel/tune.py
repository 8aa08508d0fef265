"""Search for the quantizers that reach a target with the fewest bytes and few more uploads than FedBuff.

Successive halving: all pairs of a grid run with the first seed, the better half of them with the next, and so
on, until every seed has been used or the budget of runs is spent. FedBuff runs with every seed. A candidate's
cost is its MB, both ways together, divided by FedBuff's on the same seeds; uploads above the allowance raise
it steeply. The best candidate is the cheapest of those that ran with the largest number of seeds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from qafel import report
from qafel.errors import ConfigError
from qafel.files import write_json
from qafel.records import provenance
from qafel.runs.result import mean_std
from qafel.sim import PACKAGES, Settings
from qafel.sim.batch import Outcome, State, run_all
from qafel.sim.comparison import both_reached

CLIENTS = ("rotated:bits=0.3", "rotated:bits=0.45", "rotated:bits=0.7", "dither:step=2")
SERVERS = ("deadzone:step=1.4", "deadzone:step=1.8", "deadzone:step=2.2", "deadzone:step=2.8")
FEDBUFF = None
"""In place of a pair."""
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
        within=best.reached == best.seeds and best.uploads <= ALLOWANCE,
        candidates=candidates,
        runs=len(race.outcomes),
        figure=str(draw(candidates, out / "tune.png")),
    )
    body = {"tuned": tuned, "settings": settings.to_toml(), **provenance(*PACKAGES)}
    write_json(out / "tune.json", body)
    return tuned


Pair = tuple[str, str]


class _Race:
    """The runs so far, and the budget for all of them."""

    def __init__(self, settings: Settings, out: Path, jobs: int | None, budget: int, tell: Tell) -> None:
        self._settings, self._out, self._jobs, self._budget, self._tell = settings, out, jobs, budget, tell
        self.outcomes: dict[str, Outcome] = {}

    def run(self, pairs: Sequence[Pair | None], seeds: Iterable[int]) -> None:
        """Run these pairs with these seeds, and keep the outcomes."""
        wanted = {_name(pair, seed): self._chosen(pair, seed) for pair in pairs for seed in seeds}
        part: dict[str, float] = {}

        def tell(state: State) -> None:
            part[state.name] = 1.0 if state.finished else min(1.0, state.uploads / self._settings.uploads)
            share = (len(self.outcomes) + sum(part.values())) / self._budget
            self._tell(f"{state.name}: {state.uploads:,} uploads", min(1.0, share))

        self.outcomes |= run_all(wanted, self._out / "runs", jobs=self._jobs, tell=tell)

    def _chosen(self, pair: Pair | None, seed: int) -> Settings:
        changes = {"algorithm": "fedbuff"}
        if pair:
            changes = {"algorithm": "qafel", "client_quantizer": pair[0], "server_quantizer": pair[1]}
        return msgspec.structs.replace(self._settings, seed=self._settings.seed + seed, **changes)

    def candidate(self, pair: Pair, seeds: int) -> Candidate:
        """The costs of a pair, against FedBuff on the seeds that both ran."""
        ran = [seed for seed in range(seeds) if _name(pair, seed) in self.outcomes]
        mine, theirs = ([self.outcomes[_name(which, seed)] for seed in ran] for which in (pair, FEDBUFF))
        both = both_reached(mine, theirs)

        def mean(values: Iterable[float]) -> float:
            return mean_std(list(values))[0]

        uploads = mean(a["uploads"] / b["uploads"] for a, b in both)
        share = mean((a["bytes_up"] + a["bytes_down"]) / (b["bytes_up"] + b["bytes_down"]) for a, b in both)
        return Candidate(
            client=pair[0],
            server=pair[1],
            seeds=len(ran),
            reached=len(both),
            uploads=uploads,
            up=mean(b["bytes_up"] / a["bytes_up"] for a, b in both),
            down=mean(b["bytes_down"] / a["bytes_down"] for a, b in both),
            cost=share * max(1.0, uploads / ALLOWANCE) ** STEEP if 0 < len(both) == len(ran) else math.inf,
            mb_up=mean(a["bytes_up"] / 1e6 for a, _ in both),
            mb_down=mean(a["bytes_down"] / 1e6 for a, _ in both),
        )


def _name(pair: Pair | None, seed: int) -> str:
    name = "_".join(pair) if pair else "fedbuff"
    return name.translate(str.maketrans(":,+", "---", "=")) + f"-seed{seed}"


def draw(candidates: Sequence[Candidate], path: Path) -> Path:
    """MB up against MB down of every candidate that reached the target; the colour is its uploads."""
    figure, axis = report.pyplot().subplots(figsize=(6.4, 4.6))
    there = [c for c in candidates if c.reached]
    if there:
        sizes, uploads = [30 + 30 * c.seeds for c in there], [c.uploads for c in there]
        dots = axis.scatter(*_places(there), c=uploads, s=sizes, cmap="viridis_r")
        figure.colorbar(dots, label="uploads ÷ FedBuff's")
        edge = [c for c in there if not any(o.mb_up < c.mb_up and o.mb_down < c.mb_down for o in there)]
        edge.sort(key=lambda c: c.mb_up)
        axis.plot(*_places(edge), color="#999999", linewidth=0.8, zorder=0)
        best = candidates[0]
        if best.reached:
            beside = {"xytext": (8, 8), "textcoords": "offset points", "fontsize": 8}
            axis.annotate(f"{best.client}\n{best.server}", (best.mb_up, best.mb_down), **beside)
    axis.set_xlabel("MB up")
    axis.set_ylabel("MB down")
    report.save(figure, path)
    return path


def _places(candidates: Sequence[Candidate]) -> tuple[list[float], list[float]]:
    return [c.mb_up for c in candidates], [c.mb_down for c in candidates]
