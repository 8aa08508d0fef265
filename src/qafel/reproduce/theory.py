"""The theorem, measured: R = mean ‖∇f‖² and ‖x − x̂‖² of real runs against the bound, term by term."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from qafel import theory as formulas
from qafel.reproduce import figures
from qafel.reproduce.claims import Claim
from qafel.reproduce.problem import (
    BITS,
    BUFFER,
    QUICK_STEPS,
    STEPS,
    Measured,
    measure,
    quantizers,
    setting,
)
from qafel.reproduce.study import Computation, Options, Printed, Study, finish

SIDES = ("both", "client", "server")
TERMS = ("client_quantization", "server_quantization", "cross")

Cells = dict[str, tuple[dict[str, str], int]]
"""(Quantizers, server steps) by name: SIDE-BITS-TSTEPS and fedbuff-TSTEPS."""


def theory(options: Options) -> Study:
    """R and ‖x − x̂‖² against the bound, term by term, for several bits, sides and T."""
    folder = options.folder("theory")
    lengths = QUICK_STEPS if options.quick else STEPS
    cells = _cells(lengths)
    seeds = range(options.seeds)
    tasks = {
        f"{name}-seed{seed}": Computation(steps * BUFFER, partial(_measure, chosen, steps, seed))
        for name, (chosen, steps) in cells.items()
        for seed in seeds
    }
    measured = options.compute(tasks, folder / "theory", Measured)
    runs = {name: [measured[f"{name}-seed{seed}"] for seed in seeds] for name in cells}
    analysis = Analysis(cells, runs, lengths)
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
    cells: Cells = {
        f"{side}-{bits}-T{last}": (quantizers(side, bits), last) for side in SIDES for bits in BITS
    }
    for steps in lengths:
        cells[f"fedbuff-T{steps}"] = (
            {"client_quantizer": "identity", "server_quantizer": "identity"},
            steps,
        )
        for side in SIDES:
            cells[f"{side}-2-T{steps}"] = quantizers(side, 2), steps
    return cells


def _measure(chosen: dict[str, str], steps: int, seed: int, tell: Callable[[int], None]) -> Measured:
    del tell
    return measure(chosen, steps, seed)


@dataclass(frozen=True)
class Analysis:
    """Runs beside the bound of the theorem, by cell."""

    cells: Cells
    runs: Mapping[str, Sequence[Measured]]
    lengths: Sequence[int]

    @property
    def last(self) -> int:
        """The largest T."""
        return self.lengths[-1]

    @property
    def base(self) -> str:
        """FedBuff at the largest T."""
        return f"fedbuff-T{self.last}"

    @cached_property
    def settings(self) -> dict[str, formulas.Setting]:
        """The runs as the theorem describes them."""
        return {
            name: setting(chosen, steps, max(run.max_staleness for run in self.runs[name]))
            for name, (chosen, steps) in self.cells.items()
        }

    @cached_property
    def bounds(self) -> dict[str, formulas.Bound]:
        """The bound on R."""
        return {name: formulas.bound(s) for name, s in self.settings.items()}

    @cached_property
    def measured(self) -> dict[str, float]:
        """R, mean over the seeds."""
        return {name: statistics.fmean(run.mean_gradient for run in runs) for name, runs in self.runs.items()}

    @cached_property
    def errors(self) -> dict[str, float]:
        """Mean ‖x − x̂‖² over the seeds."""
        return {name: statistics.fmean(run.mean_error for run in runs) for name, runs in self.runs.items()}

    @cached_property
    def limits(self) -> dict[str, float]:
        """The bound on the mean of ‖x − x̂‖²."""
        return {
            name: bound.server_quantization / (3 * self.settings[name].smoothness ** 2)
            for name, bound in self.bounds.items()
        }

    @cached_property
    def excess(self) -> dict[tuple[str, int], float]:
        """R − R of FedBuff at the largest T, mean over paired seeds, by (side, bits)."""
        return {
            (side, bits): statistics.fmean(
                mine.mean_gradient - theirs.mean_gradient
                for mine, theirs in zip(
                    self.runs[f"{side}-{bits}-T{self.last}"], self.runs[self.base], strict=True
                )
            )
            for side in SIDES
            for bits in BITS
        }

    @cached_property
    def terms(self) -> dict[str, list[float]]:
        """Terms of the bound for 2 bits, at every T."""
        return {
            name: [getattr(self.bounds[f"both-2-T{steps}"], name) for steps in self.lengths] for name in TERMS
        }

    @cached_property
    def slopes(self) -> dict[str, float]:
        """The order of each term in T."""
        span = math.log(self.lengths[-1] / self.lengths[0])
        return {name: math.log(values[-1] / values[0]) / span for name, values in self.terms.items()}


def _claims(a: Analysis) -> list[Claim]:
    ratios = [a.measured[name] / a.bounds[name].total for name in a.cells]
    return [
        Claim(
            "the mean squared gradient norm stays below the theorem's bound in every run's setting",
            all(a.measured[name] <= a.bounds[name].total for name in a.cells),
            f"measured/bound from {min(ratios):.1e} to "
            f"{max(ratios):.1e}; learning-rate condition at most "
            f"{max(formulas.condition(s) for s in a.settings.values()):.2f} (must be ≤ 1)",
        ),
        Claim(
            "the mean of ‖x − x̂‖² stays below its bound",
            all(
                a.errors[name] <= a.limits[name]
                for name in a.cells
                if "fedbuff" not in name and "client" not in name
            ),
            ", ".join(
                f"{name}: {a.errors[name]:.2e} ≤ {a.limits[name]:.2e}"
                for name in (f"both-2-T{a.last}", f"both-8-T{a.last}")
            ),
        ),
        Claim(
            "R_QAFeL → R_FedBuff as bits grow",
            abs(a.excess["both", BITS[-1]]) < abs(a.excess["both", BITS[0]]) / 10,
            ", ".join(f"{bits} bits: {a.excess['both', bits]:+.2e}" for bits in BITS)
            + f" over R_FedBuff = {a.measured[a.base]:.3e}",
        ),
        Claim(
            "the client's quantizer costs more than the server's at equal bits",
            a.excess["client", 2] > a.excess["server", 2],
            f"2 bits: client {a.excess['client', 2]:+.2e}, server {a.excess['server', 2]:+.2e} "
            f"(in the bound: {a.bounds[f'client-2-T{a.last}'].client_quantization:.2e} and "
            f"{a.bounds[f'server-2-T{a.last}'].server_quantization:.2e})",
        ),
        Claim(
            "the server's and the cross term are of smaller order in T than the client's",
            max(a.slopes["server_quantization"], a.slopes["cross"]) < a.slopes["client_quantization"] - 0.25,
            ", ".join(f"{name}: T^{slope:.2f}" for name, slope in a.slopes.items()),
        ),
    ]


def _table(a: Analysis, seeds: int) -> Printed:
    terms = list(formulas.Bound.__dataclass_fields__)
    staleness = max(run.max_staleness for runs in a.runs.values() for run in runs)
    return Printed(
        f"R = mean ‖∇f‖² against the bound, mean of {seeds} seeds; staleness up to {staleness}",
        ["run", "measured R", "bound", *terms, "‖x − x̂‖²", "its bound"],
        [
            [
                name,
                f"{a.measured[name]:.3e}",
                f"{a.bounds[name].total:.3e}",
                *(f"{getattr(a.bounds[name], term):.1e}" for term in terms),
                f"{a.errors[name]:.1e}",
                f"{a.limits[name]:.1e}",
            ]
            for name in a.cells
        ],
    )


def _numbers(a: Analysis) -> dict[str, Any]:
    return {
        "measured": a.measured,
        "bounds": {name: {**vars(b), "total": b.total} for name, b in a.bounds.items()},
        "settings": {name: vars(s) for name, s in a.settings.items()},
        "errors": a.errors,
        "error bounds": a.limits,
        "excess over FedBuff by T, 2 bits": {
            side: [a.measured[f"{side}-2-T{t}"] - a.measured[f"fedbuff-T{t}"] for t in a.lengths]
            for side in ("client", "server")
        },
        "orders in T": a.slopes,
    }


def _draw(a: Analysis, path: Path) -> list[Path]:
    last = a.last
    bits_panel = [
        ("bound, both sides", BITS, [_bound_excess(a, bits) for bits in BITS]),
        *((side, BITS, [abs(a.excess[side, bits]) for bits in BITS]) for side in SIDES),
    ]
    terms_panel = [(name.replace("_", " "), a.lengths, values) for name, values in a.terms.items()]
    error_panel = [
        *((f"{bits} bits", *_curve(a.runs[f"both-{bits}-T{last}"], last)) for bits in (2, 4, 8)),
        ("bound, 2 bits", (1, last), (a.limits[f"both-2-T{last}"],) * 2),
    ]
    return figures.lines(
        path,
        [
            ("bits", "|R − R of FedBuff|", bits_panel),
            ("server steps T", "terms of the bound, 2 bits", terms_panel),
            ("server step t", "‖x − x̂‖²", error_panel),
        ],
        logarithmic=("y", "xy", "xy"),
    )


def _bound_excess(a: Analysis, bits: int) -> float:
    """How much larger the bound is than FedBuff's at the same staleness."""
    mine, base = a.bounds[f"both-{bits}-T{a.last}"], a.bounds[a.base]
    return (mine.total - mine.staleness) - (base.total - base.staleness)


def _curve(runs: Sequence[Measured], steps: int) -> tuple[list[int], list[float]]:
    """Steps that are evenly spread on a logarithmic axis, and the mean over seeds of ‖x − x̂‖² there."""
    chosen = sorted({round(steps ** (k / 200)) for k in range(201)})
    return chosen, [statistics.fmean(run.errors[t] for run in runs) for t in chosen]
