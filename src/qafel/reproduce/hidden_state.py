"""The study of the hidden state: QAFeL against naive quantization, and servers that do not contract."""

import math
from collections.abc import Sequence

import msgspec

from qafel.reproduce import cells, figures
from qafel.reproduce.claims import at_least, at_most, every
from qafel.reproduce.rows import Pair, by_seed, run_cells
from qafel.reproduce.study import Claim, Options, Study, plus_minus
from qafel.runs.comparison import Diverged, Outcome, spell
from qafel.runs.intervals import Interval, mean_interval, ratio_interval
from qafel.runs.result import Result
from qafel.runs.summary import mean_std
from qafel.tables import Columns, Table

TOLERANCE = 0.02
"""Two points of accuracy: what separates a run that learns as FedBuff does from one that does not."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a cell's runs: (mean, standard deviation) over the seeds that did not diverge."""

    label: str
    accuracy: Pair
    error: Pair
    """‖x − x̂‖."""
    accuracies: list[float | None]
    """By seed; None where the run diverged."""
    errors: list[float | None]
    diverged: str | None


COLUMNS: Columns = {
    "algorithm": "{.label}",
    "accuracy": lambda end: plus_minus(end.accuracy, 3),
    "‖x − x̂‖": lambda end: f"{end.error[0]:.3g}" if math.isfinite(end.error[0]) else "–",
    "diverged": lambda end: "yes" if end.diverged else "no",
}


def hidden_state(options: Options) -> Study:
    """QAFeL against naive quantization, and a server quantizer that is no contraction."""
    chosen = cells.hidden_state()
    runs = run_cells(options, chosen, uploads=cells.HIDDEN_UPLOADS)
    ends, error, accuracy = {}, [], []
    for cell in chosen:
        outcomes = runs.outcomes[cell.name]
        ended = [outcome for outcome in outcomes if isinstance(outcome, Result)]
        ends[cell.name] = _end(cell.label, outcomes, ended)
        if not ended:
            continue
        xs = [point.uploads for point in ended[0].points[1:]]
        points = [[run.points[k + 1] for run in ended] for k in range(len(xs))]
        smoothed = [mean_std([p.smoothed["accuracy"] for p in group])[0] for group in points]
        accuracy.append((cell.label, xs, smoothed))
        if cell.name != "hidden-fedbuff":
            error.append((cell.label, xs, [mean_std([p.residual for p in group])[0] for group in points]))
    path = runs.folder / "hidden-state"
    panels = [("client uploads", "accuracy", accuracy), ("client uploads", "‖x − x̂‖", error)]
    drawn = figures.lines(path, panels, logarithmic=("", "y"))
    title = f"The hidden state: {runs.data}, {runs.shared['uploads']:,} uploads"
    return runs.finish(
        "hidden-state",
        tables=[Table.of(title, COLUMNS, ends.values())],
        claims=_claims(ends),
        numbers={"results": ends},
        notes=[f"{end.label}: {end.diverged}" for end in ends.values() if end.diverged],
        figures=drawn,
    )


def _end(label: str, outcomes: Sequence[Outcome], ended: list[Result]) -> Ended:
    accuracy, error = ([f(run) for run in ended] for f in (_accuracy, _error))
    accuracies, errors = (
        [f(run) if isinstance(run, Result) else None for run in outcomes] for f in (_accuracy, _error)
    )
    diverged = next((outcome.sentence for outcome in outcomes if isinstance(outcome, Diverged)), None)
    return Ended(label, mean_std(accuracy), mean_std(error), accuracies, errors, diverged)


def _accuracy(run: Result) -> float:
    return run.summary.accuracy


def _error(run: Result) -> float:
    return run.points[-1].residual


def _claims(ends: dict[str, Ended]) -> list[Claim]:
    good, naive = ends["hidden-qafel-bucketed"], ends["hidden-naive-bucketed"]
    whole, fixed = ends["hidden-qafel-whole"], ends["hidden-qafel-contracted"]
    best = ends["hidden-fedbuff"]

    def less(end: Ended) -> Interval:
        """How much less accurate than FedBuff, over paired seeds; not a number if one has diverged."""
        return mean_interval(by_seed(best.accuracies) - by_seed(end.accuracies))

    def learns(bits: int, kind: str) -> list[Claim]:
        mine, plain = (ends[f"hidden-{algorithm}-{kind}"] for algorithm in ("qafel", "naive"))
        return [
            Claim(
                f"at {bits} bits QAFeL is at most 2 points less accurate than FedBuff",
                at_most(less(mine), TOLERANCE),
                below(mine),
            ),
            Claim(
                f"at {bits} bits naive quantization is at least 2 points less accurate than FedBuff",
                at_least(less(plain), TOLERANCE),
                below(plain),
            ),
        ]

    def below(end: Ended) -> str:
        mine, theirs = (plus_minus(one.accuracy, 3) for one in (end, best))
        return f"{mine} against {theirs}: {_points(less(end))} less"

    ratio = ratio_interval(by_seed(naive.errors), by_seed(good.errors))
    lost = f"{whole.accuracies.count(None)} of {len(whole.accuracies)} seeds"
    return [
        Claim(
            "x̂ is nearer to x with the hidden state than with naive quantization",
            at_least(ratio, 1),
            f"‖x − x̂‖ at the end: {good.error[0]:.3g} against {naive.error[0]:.3g}, {spell(ratio)}",
        ),
        *learns(4, "bucketed"),
        *learns(2, "coarse"),
        Claim(
            "4-bit QSGD with one L2 norm over the whole vector diverges as a server quantizer",
            all(accuracy is None for accuracy in whole.accuracies) and good.diverged is None,
            f"{lost}; {whole.diverged}" if whole.diverged else lost,
        ),
        Claim(
            "its contraction does not diverge, and is at least 2 points less accurate than FedBuff",
            every([fixed.diverged is None, at_least(less(fixed), TOLERANCE)]),
            below(fixed),
        ),
    ]


def _points(difference: Interval) -> str:
    """A difference of accuracies with its interval, in percentage points."""
    return spell(difference, " points", scale=100, form=".1f")
