"""The theorem, measured: R = mean ‖∇f‖² and ‖x − x̂‖² of real runs against the bound, term by term."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qafel import theory as formulas
from qafel.reproduce import figures, problem
from qafel.reproduce.claims import at_least
from qafel.reproduce.problem import BITS, Measured, quantizers
from qafel.reproduce.study import Claim, Computation, Options, Study, finish
from qafel.runs.intervals import mean_interval
from qafel.tables import Columns, Table

SIDES = ("both", "client", "server")
TERMS = ("client_quantization", "server_quantization", "cross")

Cells = dict[str, tuple[dict[str, str], int]]
"""(Quantizers, server steps) by name: SIDE-BITS-TSTEPS and fedbuff-TSTEPS."""


def theory(options: Options) -> Study:
    """R and ‖x − x̂‖² against the bound, term by term, for several bits, sides and T."""
    folder = options.folder("theory")
    lengths = problem.QUICK_STEPS if options.quick else problem.STEPS
    cells = _cells(lengths)
    tasks = {
        name: Computation(steps * problem.BUFFER, partial(problem.measure, chosen, steps))
        for name, (chosen, steps) in cells.items()
    }
    kept = folder / "theory" / f"{problem.rates(lengths[-1])[0]:.9g}"  # other rates are other runs
    measured = options.compute(tasks, kept, Measured)
    beside = {name: Beside(name, *cell, measured[name]) for name, cell in cells.items()}
    analysis = Analysis(beside, lengths)
    return finish(
        "theory",
        folder,
        data="theory",
        tables=[_table(analysis, options.seeds)],
        claims=_claims(analysis),
        numbers=_numbers(analysis),
        figures=_draw(analysis, folder / "theory"),
    )


def _cells(lengths: Sequence[int]) -> Cells:
    """All bits and sides at the largest T; FedBuff and 2 bits at every T."""
    last = lengths[-1]
    cells = {f"{side}-{bits}-T{last}": (quantizers(side, bits), last) for side in SIDES for bits in BITS}
    for steps in lengths:
        exact = {"client_quantizer": "identity", "server_quantizer": "identity"}
        cells[f"fedbuff-T{steps}"] = exact, steps
        cells |= {f"{side}-2-T{steps}": (quantizers(side, 2), steps) for side in SIDES}
    return cells


class Beside:
    """The runs of a cell beside the bound of the theorem."""

    def __init__(self, name: str, chosen: dict[str, str], steps: int, runs: Sequence[Measured]) -> None:
        self.name, self.runs = name, runs
        self.staleness = max(run.max_staleness for run in runs)
        self.setting = problem.setting(chosen, steps, self.staleness)
        self.bound = formulas.bound(self.setting)
        self.gradient = statistics.fmean(run.mean_gradient for run in runs)
        """R, mean over the seeds."""
        self.error = statistics.fmean(run.mean_error for run in runs)
        """‖x − x̂‖², mean over the seeds."""
        self.limit = formulas.hidden_state_bound(self.setting)
        """The bound on the mean of ‖x − x̂‖²."""


class Analysis:
    """What follows from all cells together."""

    def __init__(self, cells: Mapping[str, Beside], lengths: Sequence[int]) -> None:
        self.cells, self.lengths = cells, lengths
        self.fedbuff = self.at("fedbuff")
        self.by_seed = {
            (side, bits): [
                mine.mean_gradient - theirs.mean_gradient
                for mine, theirs in zip(self.at(f"{side}-{bits}").runs, self.fedbuff.runs, strict=True)
            ]
            for side in SIDES
            for bits in BITS
        }
        """R − R of FedBuff at the largest T, over paired seeds, by (side, bits)."""
        self.excess = {cell: statistics.fmean(values) for cell, values in self.by_seed.items()}
        """Its mean over the seeds."""
        self.terms = {
            name: [getattr(cells[f"both-2-T{steps}"].bound, name) for steps in lengths] for name in TERMS
        }
        """Terms of the bound for 2 bits, at every T."""
        span = math.log(lengths[-1] / lengths[0])
        self.slopes = {name: math.log(values[-1] / values[0]) / span for name, values in self.terms.items()}
        """The order of each term in T."""

    def over(self, name: str, steps: int) -> float:
        """R of a cell less FedBuff's, after some steps."""
        return self.cells[f"{name}-T{steps}"].gradient - self.cells[f"fedbuff-T{steps}"].gradient

    def at(self, name: str) -> Beside:
        """A cell at the largest T."""
        return self.cells[f"{name}-T{self.lengths[-1]}"]


def _claims(a: Analysis) -> list[Claim]:
    cells = a.cells.values()
    ratios = [cell.gradient / cell.bound.total for cell in cells]
    ends = [a.by_seed["both", bits] for bits in (BITS[0], BITS[-1])]
    sides = [a.by_seed[side, 2] for side in ("client", "server")]
    condition = max(formulas.condition(cell.setting) for cell in cells)
    return [
        Claim(
            "the mean squared gradient norm stays below the theorem's bound in every run's setting",
            all(run.mean_gradient <= cell.bound.total for cell in cells for run in cell.runs),
            f"measured/bound from {min(ratios):.1e} to {max(ratios):.1e}; "
            f"learning-rate condition at most {condition:.2f} (must be ≤ 1)",
        ),
        Claim(
            "the mean of ‖x − x̂‖² stays below its bound",
            all(
                run.mean_error <= cell.limit
                for cell in cells
                for run in cell.runs
                if not cell.name.startswith(("fedbuff", "client"))
            ),
            ", ".join(f"{c.name}: {c.error:.2e} ≤ {c.limit:.2e}" for c in (a.at("both-2"), a.at("both-8"))),
        ),
        Claim(
            "R_QAFeL → R_FedBuff as bits grow",
            at_least(mean_interval([abs(few) / 10 - abs(many) for few, many in zip(*ends, strict=True)]), 0),
            ", ".join(f"{bits} bits: {a.excess['both', bits]:+.2e}" for bits in BITS)
            + f" over R_FedBuff = {a.fedbuff.gradient:.3e}",
        ),
        Claim(
            "the client's quantizer costs more than the server's at equal bits",
            at_least(mean_interval([mine - theirs for mine, theirs in zip(*sides, strict=True)]), 0),
            f"2 bits: client {a.excess['client', 2]:+.2e}, server {a.excess['server', 2]:+.2e} "
            f"(in the bound: {a.at('client-2').bound.client_quantization:.2e} and "
            f"{a.at('server-2').bound.server_quantization:.2e})",
        ),
    ]


def _table(a: Analysis, seeds: int) -> Table:
    columns: Columns = {
        "run": "{.name}",
        "measured R": "{.gradient:.3e}",
        "bound": "{.bound.total:.3e}",
        **{_words(term): f"{{.bound.{term}:.1e}}" for term in formulas.Bound.__dataclass_fields__},
        "‖x − x̂‖²": "{.error:.1e}",
        "its bound": "{.limit:.1e}",
    }
    staleness = max(cell.staleness for cell in a.cells.values())
    title = f"R = mean ‖∇f‖² against the bound, mean of {seeds} seeds; staleness up to {staleness}"
    return Table.of(title, columns, a.cells.values())


def _numbers(a: Analysis) -> dict[str, Any]:
    cells = a.cells
    return {
        "measured": {name: cell.gradient for name, cell in cells.items()},
        "bounds": {name: {**vars(c.bound), "total": c.bound.total} for name, c in cells.items()},
        "settings": {name: vars(cell.setting) for name, cell in cells.items()},
        "errors": {name: cell.error for name, cell in cells.items()},
        "error bounds": {name: cell.limit for name, cell in cells.items()},
        "excess over FedBuff by T, 2 bits": {
            side: [a.over(f"{side}-2", steps) for steps in a.lengths] for side in ("client", "server")
        },
        "excess over FedBuff by seed": {f"{side}, {bits} bits": v for (side, bits), v in a.by_seed.items()},
        "orders of the bound's terms in T": a.slopes,
    }


def _draw(a: Analysis, path: Path) -> list[Path]:
    last = a.lengths[-1]
    bits_panel = [
        ("bound, both sides", BITS, [_bound_excess(a, bits) for bits in BITS]),
        *((side, BITS, [abs(a.excess[side, bits]) for bits in BITS]) for side in SIDES),
    ]
    terms_panel = [
        *((_words(name), a.lengths, values) for name, values in a.terms.items()),
        ("R − R of FedBuff (client)", a.lengths, [a.over("client-2", steps) for steps in a.lengths]),
    ]
    error_panel = [
        *((f"{bits} bits", *_curve(a.at(f"both-{bits}").runs, last)) for bits in (2, 4, 8)),
        ("bound, 2 bits", (1, last), (a.at("both-2").limit,) * 2),
    ]
    return figures.lines(
        path,
        [
            ("bits", "|R − R of FedBuff|", bits_panel),
            ("server steps T", "terms of the bound at 2 bits", terms_panel),
            ("server step t", "‖x − x̂‖²", error_panel),
        ],
        logarithmic=("y", "xy", "xy"),
    )


def _words(term: str) -> str:
    return term.replace("_", " ")


def _bound_excess(a: Analysis, bits: int) -> float:
    """How much larger the bound is than FedBuff's at the same staleness."""
    mine, base = a.at(f"both-{bits}").bound, a.fedbuff.bound
    return (mine.total - mine.staleness) - (base.total - base.staleness)


def _curve(runs: Sequence[Measured], steps: int) -> tuple[list[int], list[float]]:
    """Steps that are evenly spread on a logarithmic axis, and the mean over seeds of ‖x − x̂‖² there."""
    chosen = sorted({round(steps ** (k / 200)) for k in range(201)})
    return chosen, [statistics.fmean(run.errors[t] for run in runs) for t in chosen]
