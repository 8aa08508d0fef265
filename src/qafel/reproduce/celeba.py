"""The studies with the paper's CNN: its two tables, its figures, and what the hidden state is for."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qafel.reproduce import cells, claims, figures
from qafel.reproduce.claims import Claim
from qafel.reproduce.rows import Paired, Row, paired, rows, seeds
from qafel.reproduce.study import Options, Printed, Study, finish
from qafel.runs.result import mean_std
from qafel.sim import Settings
from qafel.sim.batch import Diverged, Outcome

DATA = "faces"
PAIRED = 5
"""Seeds of 4/4 against FedBuff, where the tables have three."""
NEAR = 0.02
"""How far below FedBuff's accuracy still counts as learning as it does."""
COLUMNS = [
    "algorithm",
    "paper: uploads (k)",
    "uploads (k)",
    "paper: kB/upload",
    "kB/upload",
    "paper: kB/download",
    "kB/download",
    "paper: MB up",
    "MB up, paper's formula",
    "MB up",
    "paper: MB down",
    "MB down, paper's formula",
    "MB down",
    "× fewer up",
    "× fewer down",
]


def table1(options: Options) -> Study:
    """FedBuff and the nine pairs of bits, affine as the paper measured and QSGD in max-norm buckets."""
    found, shared, folder, data = _run(options, ("affine", "bucketed"))
    return _table1("table1", options, found, shared, folder, data, ("affine", "bucketed"))


def quantizers(options: Options) -> Study:
    """The three-panel figure from table 1."""
    found, shared, folder, data = _run(options, ("affine",))
    return _table1("quantizers", options, found, shared, folder, data, ("affine",))


def _run(options: Options, kinds: Sequence[str]) -> tuple[dict[str, Outcome], dict[str, Any], Path, str]:
    data = options.data or DATA
    folder, shared = options.folder(data), _shared(options, data)
    wanted: dict[str, Settings] = {}
    most = options.seeds if options.quick else max(options.seeds, PAIRED)
    for kind in kinds:
        many = {"": options.seeds, "fedbuff": most, f"{kind}-4-4": most}
        wanted |= cells.wanted(cells.table1(kind), shared, many)
    return options.run(wanted, folder), shared, folder, data


def _table1(
    name: str,
    options: Options,
    found: Mapping[str, Outcome],
    shared: Mapping[str, Any],
    folder: Path,
    data: str,
    kinds: Sequence[str],
) -> Study:
    titles = {
        "affine": "Table 1, affine quantizer, as the paper measured",
        "bucketed": "Table 1, QSGD in max-norm buckets of 256",
    }
    printed, held, numbers, drawn = [], [], {}, []
    for kind in kinds:
        here = rows(cells.table1(kind), found, options.seeds)
        named = {row.name: row for row in here}
        four = _paired(found, f"{kind}-4-4")
        printed.append(_printed(f"{titles[kind]}: {_goal(data, shared)}", here))
        mine = claims.table1(named, four, shared["uploads"], kind)
        held += [Claim(f"{kind}: {claim.text}", claim.held, claim.numbers) for claim in mine]
        numbers[kind] = {"rows": here, "4/4 against FedBuff": four}
        drawn += figures.quantizers(folder / f"quantizers-{kind}", named, kind, shared["uploads"])
    return finish(
        name,
        folder,
        data=data,
        tables=printed,
        claims=held,
        numbers={**_made(found, shared), **numbers},
        notes=_notes(found, shared),
        figures=drawn,
    )


def table2(options: Options) -> Study:
    """A server that sends the top 10 % of the coordinates."""
    data = options.data or DATA
    folder, shared = options.folder(data), _shared(options, data)
    found = options.run(cells.wanted(cells.table2(), shared, {"": options.seeds}), folder)
    here = rows(cells.table2(), found, options.seeds)
    pairs = {row.name: _paired(found, row.name) for row in here[1:]}
    order = [claims.thousands(row, shared["uploads"]) for row in here[1:]]
    title = f"Table 2, top 10 % server: {_goal(data, shared)}"
    held = [
        Claim(
            "with a top-10 % server, fewer client bits cost more uploads",
            order[0] <= order[1] <= order[2],
            " / ".join(f"{row.label}: {k:.2f} k" for row, k in zip(here[1:], order, strict=True)),
        ),
        Claim(
            "the biased top-10 % server sends fewer MB than FedBuff each way",
            all(min(pair.mb_up[0], pair.mb_down[0]) > 1 for pair in pairs.values() if pair.seeds),
            ", ".join(f"{n}: up {p.mb_up[0]:.1f}×, down {p.mb_down[0]:.1f}×" for n, p in pairs.items()),
        ),
    ]
    return finish(
        "table2",
        folder,
        data=data,
        tables=[_printed(title, here)],
        claims=held,
        numbers={**_made(found, shared), "rows": here, "against FedBuff": pairs},
        notes=_notes(found, shared),
        figures=figures.table2(folder / "table2", here, shared["uploads"]),
    )


def concurrency(options: Options) -> Study:
    """100, 500 and 1,000 clients in flight, with the weight 1/√(1 + τ)."""
    data = options.data or DATA
    folder, shared = options.folder(data), _shared(options, data, cells.CONCURRENT_UPLOADS)
    chosen = cells.concurrency()
    found = options.run(cells.wanted(chosen, shared, {"": options.seeds}), folder)
    here = rows(chosen, found, options.seeds)
    pairs = {n: _paired(found, f"qafel-{n}", f"fedbuff-{n}") for n in cells.RATES}
    named = {row.name: row for row in here}
    title = f"Concurrency, 1/√(1 + τ): {_goal(data, shared)}"
    return finish(
        "concurrency",
        folder,
        data=data,
        tables=[_printed(title, here, references={f"qafel-{n}": f"fedbuff-{n}" for n in cells.RATES})],
        claims=claims.concurrency(pairs),
        numbers={
            **_made(found, shared),
            "rows": here,
            "against FedBuff": {str(n): p for n, p in pairs.items()},
        },
        notes=_notes(found, shared),
        figures=figures.concurrency(folder / "concurrency", named, list(cells.RATES)),
    )


def hidden_state(options: Options) -> Study:
    """QAFeL against naive quantization, and a server quantizer that is no contraction."""
    data = options.data or DATA
    folder, shared = options.folder(data), _shared(options, data, cells.HIDDEN_UPLOADS)
    chosen = cells.hidden_state()
    found = options.run(cells.wanted(chosen, shared, {"": options.seeds}), folder)
    results: dict[str, dict[str, Any]] = {}
    error, accuracy = [], []
    for cell in chosen:
        outcomes = [found[name] for name in seeds(cell.name, found)]
        runs = [outcome for outcome in outcomes if not isinstance(outcome, Diverged)]
        sentence = next((o.sentence for o in outcomes if isinstance(o, Diverged)), None)
        results[cell.name] = {
            "label": cell.label,
            "accuracy": mean_std([run.summary.accuracy for run in runs]),
            "error": mean_std([run.points[-1].residual for run in runs]),
            "diverged": sentence,
        }
        if runs:
            xs = [point.uploads for point in runs[0].points[1:]]
            means = [[run.points[k + 1] for run in runs] for k in range(len(xs))]
            accuracy.append((cell.label, xs, [_mean([p.smoothed for p in points]) for points in means]))
            if cell.name != "hidden-fedbuff":
                error.append((cell.label, xs, [_mean([p.residual for p in points]) for points in means]))
    good, naive = results["hidden-qafel-bucketed"], results["hidden-naive-bucketed"]
    whole, fixed = results["hidden-qafel-whole"], results["hidden-qafel-contracted"]
    best = results["hidden-fedbuff"]["accuracy"][0]
    held = [
        Claim(
            "the hidden state keeps x̂ near x, where naive quantization does not",
            good["error"][0] < naive["error"][0] / 2,
            f"‖x − x̂‖ at the end: {good['error'][0]:.3g} against {naive['error'][0]:.3g}",
        ),
        *(
            Claim(
                f"at {bits} bits QAFeL learns as FedBuff does, and naive quantization does not",
                _accuracy(results, "qafel", kind) > best - NEAR > _accuracy(results, "naive", kind),
                f"accuracy {_accuracy(results, 'qafel', kind):.3f} against "
                f"{_accuracy(results, 'naive', kind):.3f} (FedBuff {best:.3f})",
            )
            for bits, kind in ((4, "bucketed"), (2, "coarse"))
        ),
        Claim(
            "4-bit QSGD with one L2 norm over the whole vector diverges as a server quantizer",
            whole["diverged"] is not None,
            whole["diverged"] or "it did not",
        ),
        Claim(
            "in max-norm buckets it converges; scaled to a contraction it is stable, if slow",
            fixed["diverged"] is None and good["accuracy"][0] > best - NEAR,
            f"accuracy {good['accuracy'][0]:.3f} (buckets), {fixed['accuracy'][0]:.3f} (contract:qsgd:4)",
        ),
    ]
    drawn = figures.lines(
        folder / "hidden-state",
        [("client uploads", "‖x − x̂‖", error)],
    )
    drawn += figures.lines(
        folder / "hidden-state-accuracy", [("client uploads", "accuracy", accuracy)], logarithmic=("",)
    )
    table = Printed(
        f"The hidden state: {data}, {shared['uploads']:,} uploads",
        ["algorithm", "accuracy", "‖x − x̂‖", "diverged"],
        [
            [
                r["label"],
                _plus_minus(r["accuracy"], 3),
                f"{r['error'][0]:.3g}" if math.isfinite(r["error"][0]) else "–",
                "yes" if r["diverged"] else "no",
            ]
            for r in results.values()
        ],
    )
    return finish(
        "hidden-state",
        folder,
        data=data,
        tables=[table],
        claims=held,
        numbers={**_made(found, shared), "results": results},
        notes=[f"{r['label']}: {r['diverged']}" for r in results.values() if r["diverged"]],
        figures=drawn,
    )


def _accuracy(results: Mapping[str, Any], algorithm: str, kind: str) -> float:
    return float(results[f"hidden-{algorithm}-{kind}"]["accuracy"][0])


def _shared(
    options: Options, data: str, uploads: tuple[int, int] = (cells.MOST_UPLOADS, cells.QUICK_UPLOADS)
) -> dict[str, Any]:
    return cells.base(data, quick=options.quick, changes=options.changes, uploads=uploads)


def _paired(found: Mapping[str, Outcome], cell: str, reference: str = "fedbuff") -> Paired:
    mine, theirs = ([found[name] for name in seeds(which, found)] for which in (cell, reference))
    return paired(mine, theirs, cell)


def _printed(title: str, here: Sequence[Row], references: Mapping[str, str] | None = None) -> Printed:
    named = {row.name: row for row in here}
    lines = []
    for row in here:
        reference = named[(references or {}).get(row.name, row.name if references else "fedbuff")]
        lines.append(
            [
                row.label,
                "{:g} ± {:g}".format(*row.paper_thousands) if row.paper_thousands else "–",
                _reached(row),
                _kb(row.paper_kb_up),
                _kb(row.kb_up),
                _kb(row.paper_kb_down),
                _kb(row.kb_down),
                _mb(row.paper_mb_up),
                _mb(row.formula_mb_up),
                _mb(row.mb_up[0]),
                _mb(row.paper_mb_down),
                _mb(row.formula_mb_down),
                _mb(row.mb_down[0]),
                _fewer(reference.mb_up[0], row.mb_up[0]),
                _fewer(reference.mb_down[0], row.mb_down[0]),
            ]
        )
    return Printed(title, COLUMNS, lines)


def _reached(row: Row) -> str:
    if row.diverged:
        return "diverged"
    best = max(row.best_accuracy, default=0.0)
    if not row.reached:
        return f"never (best {100 * best:.1f} %)"
    some = "" if row.reached == row.runs else f" ({row.reached} of {row.runs})"
    return _plus_minus(row.thousands, 2) + some


def _made(found: Mapping[str, Outcome], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol, and the commits that the runs were made at."""
    runs = [outcome for outcome in found.values() if not isinstance(outcome, Diverged)]
    return {
        "protocol": shared,
        "commits of the runs": sorted({str(r.summary.provenance["commit"]) for r in runs}),
    }


def _notes(found: Mapping[str, Outcome], shared: Mapping[str, Any]) -> list[str]:
    """What did not reach the target, run by run."""
    notes = []
    for name, outcome in found.items():
        if isinstance(outcome, Diverged):
            notes.append(f"{name} diverged: {outcome.sentence}")
        elif outcome.summary.target is None:
            best = outcome.summary.best_accuracy
            notes.append(
                f"{name} did not reach {100 * shared['target']:.0f} % in {outcome.summary.uploads:,} uploads "
                f"(best {100 * best:.1f} %); it is left out of the means, and counts with all of them in the "
                "claims"
            )
    return notes


def _goal(data: str, shared: Mapping[str, Any]) -> str:
    return f"{data}, to {100 * shared['target']:.0f} % accuracy on held-out samples"


def _plus_minus(pair: tuple[float, float], digits: int) -> str:
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}" if math.isfinite(pair[0]) else "–"


def _kb(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _mb(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _fewer(reference: float, value: float) -> str:
    ratio = reference / value if value else math.nan
    return f"{ratio:.2f}" if math.isfinite(ratio) else "–"


def _mean(values: Sequence[float]) -> float:
    return mean_std(list(values))[0]
