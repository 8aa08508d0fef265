"""The theorem, measured: R = mean ‖∇f‖² and ‖x − x̂‖² of real runs against the bound, term by term."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from qafel import theory as formulas
from qafel.coding.threads import cores
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
from qafel.reproduce.study import Options, Printed, Study, finish
from qafel.sim.batch import State, Tell, in_parallel, store

SIDES = ("both", "client", "server")


def theory(options: Options) -> Study:
    """R and ‖x − x̂‖² against the bound, term by term; what bits, sides and T do to both."""
    folder = options.folder("theory")
    kept = folder / "theory"
    kept.mkdir(parents=True, exist_ok=True)
    lengths = QUICK_STEPS if options.quick else STEPS
    middle = lengths[-1]
    exact = {"client_quantizer": "identity", "server_quantizer": "identity"}
    cells: dict[str, tuple[dict[str, str], int]] = {
        f"{side}-{bits}-T{middle}": (quantizers(side, bits), middle) for side in SIDES for bits in BITS
    }
    for steps in lengths:
        cells[f"fedbuff-T{steps}"] = exact, steps
        for side in SIDES:
            cells[f"{side}-2-T{steps}"] = quantizers(side, 2), steps
    seeds = range(options.seeds)
    files = {(name, seed): kept / f"{name}-seed{seed}.json" for name in cells for seed in seeds}
    done: dict[str, float] = {}

    def tell(state: State) -> None:
        done[state.name] = 1.0
        options.tell(state.name, len(done) / len(files))

    tasks = {
        f"{name}, seed {seed}": partial(_one, *cells[name], seed, f"{name}, seed {seed}", file)
        for (name, seed), file in files.items()
        if not file.exists()
    }
    in_parallel(tasks, cores() if options.jobs is None else options.jobs, tell)
    found = {
        name: [msgspec.json.decode(files[name, seed].read_bytes(), type=Measured) for seed in seeds]
        for name in cells
    }
    return _study(cells, found, lengths, folder, options.seeds)


def _one(chosen: dict[str, str], steps: int, seed: int, name: str, file: Path, tell: Tell) -> None:
    store(file, measure(chosen, steps, seed))
    tell(State(name, steps * BUFFER, 0.0, finished=True))


def _study(
    cells: Mapping[str, tuple[dict[str, str], int]],
    found: Mapping[str, list[Measured]],
    lengths: Sequence[int],
    folder: Path,
    seeds: int,
) -> Study:
    runs_as = {
        name: setting(chosen, steps, max(run.max_staleness for run in found[name]))
        for name, (chosen, steps) in cells.items()
    }
    bounds = {name: formulas.bound(s) for name, s in runs_as.items()}
    measured = {name: statistics.fmean(run.mean_gradient for run in runs) for name, runs in found.items()}
    errors = {name: statistics.fmean(run.mean_error for run in runs) for name, runs in found.items()}
    limits = {name: bounds[name].server_quantization / (3 * runs_as[name].smoothness ** 2) for name in bounds}
    last = lengths[-1]
    base = f"fedbuff-T{last}"
    excess = {
        (side, bits): [
            mine.mean_gradient - theirs.mean_gradient
            for mine, theirs in zip(found[f"{side}-{bits}-T{last}"], found[base], strict=True)
        ]
        for side in SIDES
        for bits in BITS
    }
    means = {which: statistics.fmean(values) for which, values in excess.items()}
    terms = {
        name: [getattr(bounds[f"both-2-T{steps}"], name) for steps in lengths]
        for name in ("client_quantization", "server_quantization", "cross")
    }
    slopes = {name: _slope(lengths, values) for name, values in terms.items()}
    measured_side = {
        side: [measured[f"{side}-2-T{t}"] - measured[f"fedbuff-T{t}"] for t in lengths]
        for side in ("client", "server")
    }
    apart = [max(a.max_staleness for a in runs) for runs in found.values()]
    claims = [
        Claim(
            "the mean squared gradient norm stays below the theorem's bound in every run's setting",
            all(measured[name] <= bounds[name].total for name in cells),
            f"measured/bound from {min(measured[n] / bounds[n].total for n in cells):.1e} to "
            f"{max(measured[n] / bounds[n].total for n in cells):.1e}; learning-rate condition at most "
            f"{max(formulas.condition(s) for s in runs_as.values()):.2f} (must be ≤ 1)",
        ),
        Claim(
            "the mean of ‖x − x̂‖² stays below its bound",
            all(
                errors[name] <= limits[name]
                for name in cells
                if "fedbuff" not in name and "client" not in name
            ),
            ", ".join(
                f"{name}: {errors[name]:.2e} ≤ {limits[name]:.2e}"
                for name in (f"both-2-T{last}", f"both-8-T{last}")
            ),
        ),
        Claim(
            "R_QAFeL → R_FedBuff as bits grow",
            abs(means["both", BITS[-1]]) < abs(means["both", BITS[0]]) / 10,
            ", ".join(f"{bits} bits: {means['both', bits]:+.2e}" for bits in BITS)
            + f" over R_FedBuff = {measured[base]:.3e}",
        ),
        Claim(
            "the client's quantizer costs more than the server's at equal bits",
            means["client", 2] > means["server", 2],
            f"2 bits: client {means['client', 2]:+.2e}, server {means['server', 2]:+.2e} "
            f"(in the bound: {bounds[f'client-2-T{last}'].client_quantization:.2e} and "
            f"{bounds[f'server-2-T{last}'].server_quantization:.2e})",
        ),
        Claim(
            "the server's and the cross term are of smaller order in T than the client's",
            slopes["server_quantization"] < slopes["client_quantization"] - 0.25
            and slopes["cross"] < slopes["client_quantization"] - 0.25,
            ", ".join(f"{name}: T^{slope:.2f}" for name, slope in slopes.items()),
        ),
    ]
    rows = [
        [
            name,
            f"{measured[name]:.3e}",
            f"{bounds[name].total:.3e}",
            *(f"{getattr(bounds[name], term):.1e}" for term in bounds[name].__dataclass_fields__),
            f"{errors[name]:.1e}",
            f"{limits[name]:.1e}",
        ]
        for name in cells
    ]
    drawn = figures.lines(
        folder / "theory",
        [
            (
                "bits",
                "|R − R of FedBuff|",
                [
                    ("bound, both sides", BITS, [_excess(bounds, f"both-{b}-T{last}", base) for b in BITS]),
                    *((side, BITS, [abs(means[side, bits]) for bits in BITS]) for side in SIDES),
                ],
            ),
            (
                "server steps T",
                "terms of the bound, 2 bits",
                [(name.replace("_", " "), lengths, values) for name, values in terms.items()],
            ),
            (
                "server step t",
                "‖x − x̂‖²",
                [(f"{bits} bits", *_curve(found[f"both-{bits}-T{last}"], last)) for bits in (2, 4, 8)]
                + [("bound, 2 bits", (1, last), (limits[f"both-2-T{last}"],) * 2)],
            ),
        ],
        logarithmic=("y", "xy", "xy"),
    )
    return finish(
        "theory",
        folder,
        data="theory",
        tables=[
            Printed(
                f"R = mean ‖∇f‖² against the bound, mean of {seeds} seeds; staleness up to {max(apart)}",
                [
                    "run",
                    "measured R",
                    "bound",
                    *next(iter(bounds.values())).__dataclass_fields__,
                    "‖x − x̂‖²",
                    "its bound",
                ],
                rows,
            )
        ],
        claims=claims,
        numbers={
            "measured": measured,
            "bounds": {name: {**vars(b), "total": b.total} for name, b in bounds.items()},
            "settings": {name: vars(s) for name, s in runs_as.items()},
            "errors": errors,
            "error bounds": limits,
            "excess over FedBuff by T, 2 bits": measured_side,
            "orders in T": slopes,
        },
        figures=drawn,
    )


def _excess(bounds: Mapping[str, formulas.Bound], name: str, base: str) -> float:
    """How much larger the bound is than FedBuff's at the same staleness."""
    both = bounds[name].total - bounds[name].staleness, bounds[base].total - bounds[base].staleness
    return both[0] - both[1]


def _slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    return math.log(values[-1] / values[0]) / math.log(lengths[-1] / lengths[0])


def _curve(runs: Sequence[Measured], steps: int) -> tuple[list[int], list[float]]:
    """Some steps, evenly spread on a logarithmic axis, and the mean over seeds of ‖x − x̂‖² there."""
    chosen = sorted({round(steps ** (k / 200)) for k in range(201)})
    return chosen, [statistics.fmean(run.errors[t] for run in runs) for t in chosen]
