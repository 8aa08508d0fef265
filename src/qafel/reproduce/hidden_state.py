"""The study of the hidden state: QAFeL against naive quantization, and servers that do not contract."""

import math
from collections.abc import Mapping
from typing import Any

from qafel.reproduce import cells, figures
from qafel.reproduce.claims import Claim
from qafel.reproduce.figures import Line
from qafel.reproduce.runs import Runs, run_cells
from qafel.reproduce.study import Options, Printed, Study, finish, plus_minus
from qafel.runs.result import Result, mean_std
from qafel.sim.batch import Diverged

TOLERANCE = 0.02
"""A run learns as FedBuff does if its accuracy is at most this much lower."""

Results = Mapping[str, Mapping[str, Any]]


def hidden_state(options: Options) -> Study:
    """QAFeL against naive quantization, and a server quantizer that is no contraction."""
    runs = run_cells(options, cells.hidden_state(), uploads=cells.HIDDEN_UPLOADS)
    results = {cell.name: _result(cell.label, runs, cell.name) for cell in cells.hidden_state()}
    error, accuracy = _curves(runs)
    drawn = figures.lines(runs.folder / "hidden-state", [("client uploads", "‖x − x̂‖", error)])
    drawn += figures.lines(
        runs.folder / "hidden-state-accuracy", [("client uploads", "accuracy", accuracy)], logarithmic=("",)
    )
    return finish(
        "hidden-state",
        runs.folder,
        data=runs.data,
        tables=[_table(runs, results)],
        claims=_claims(results),
        numbers={**runs.origin, "results": results},
        notes=[f"{r['label']}: {r['diverged']}" for r in results.values() if r["diverged"]],
        figures=drawn,
    )


def _result(label: str, runs: Runs, cell: str) -> dict[str, Any]:
    ended = _ended(runs, cell)
    sentences = (outcome.sentence for outcome in runs.of(cell) if isinstance(outcome, Diverged))
    return {
        "label": label,
        "accuracy": mean_std([run.summary.accuracy for run in ended]),
        "error": mean_std([run.points[-1].residual for run in ended]),
        "diverged": next(sentences, None),
    }


def _ended(runs: Runs, cell: str) -> list[Result]:
    return [outcome for outcome in runs.of(cell) if isinstance(outcome, Result)]


def _curves(runs: Runs) -> tuple[list[Line], list[Line]]:
    """‖x − x̂‖ and accuracy against uploads, means over the seeds of every cell."""
    error: list[Line] = []
    accuracy: list[Line] = []
    for cell in cells.hidden_state():
        ended = _ended(runs, cell.name)
        if not ended:
            continue
        xs = [point.uploads for point in ended[0].points[1:]]
        points = [[run.points[k + 1] for run in ended] for k in range(len(xs))]
        accuracy.append(
            (cell.label, xs, [mean_std([p.smoothed["accuracy"] for p in group])[0] for group in points])
        )
        if cell.name != "hidden-fedbuff":
            error.append((cell.label, xs, [mean_std([p.residual for p in group])[0] for group in points]))
    return error, accuracy


def _claims(results: Results) -> list[Claim]:
    good, naive = results["hidden-qafel-bucketed"], results["hidden-naive-bucketed"]
    whole, fixed = results["hidden-qafel-whole"], results["hidden-qafel-contracted"]
    best = _accuracy(results, "fedbuff")
    return [
        Claim(
            "the hidden state keeps x̂ near x, where naive quantization does not",
            good["error"][0] < naive["error"][0] / 2,
            f"‖x − x̂‖ at the end: {good['error'][0]:.3g} against {naive['error'][0]:.3g}",
        ),
        *(_learns(results, bits, kind) for bits, kind in ((4, "bucketed"), (2, "coarse"))),
        Claim(
            "4-bit QSGD with one L2 norm over the whole vector diverges as a server quantizer",
            whole["diverged"] is not None,
            whole["diverged"] or "it did not",
        ),
        Claim(
            "in max-norm buckets it converges; scaled to a contraction it is stable, if slow",
            fixed["diverged"] is None and good["accuracy"][0] > best - TOLERANCE,
            f"accuracy {good['accuracy'][0]:.3f} (buckets), {fixed['accuracy'][0]:.3f} (contract:qsgd:4)",
        ),
    ]


def _learns(results: Results, bits: int, kind: str) -> Claim:
    best = _accuracy(results, "fedbuff")
    qafel, naive = (_accuracy(results, f"{algorithm}-{kind}") for algorithm in ("qafel", "naive"))
    return Claim(
        f"at {bits} bits QAFeL learns as FedBuff does, and naive quantization does not",
        qafel > best - TOLERANCE > naive,
        f"accuracy {qafel:.3f} against {naive:.3f} (FedBuff {best:.3f})",
    )


def _accuracy(results: Results, cell: str) -> float:
    return float(results[f"hidden-{cell}"]["accuracy"][0])


def _table(runs: Runs, results: Results) -> Printed:
    return Printed(
        f"The hidden state: {runs.data}, {runs.shared['uploads']:,} uploads",
        ["algorithm", "accuracy", "‖x − x̂‖", "diverged"],
        [
            [
                r["label"],
                plus_minus(r["accuracy"], 3),
                f"{r['error'][0]:.3g}" if math.isfinite(r["error"][0]) else "–",
                "yes" if r["diverged"] else "no",
            ]
            for r in results.values()
        ],
    )
