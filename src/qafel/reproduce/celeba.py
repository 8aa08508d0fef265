"""The studies with the paper's CNN: its two tables and its figures."""

import math
from collections.abc import Mapping, Sequence

from qafel.reproduce import cells, claims, figures
from qafel.reproduce.claims import Claim
from qafel.reproduce.rows import Row
from qafel.reproduce.runs import run_cells
from qafel.reproduce.study import Options, Printed, Study, finish, plus_minus

PAIRED = 5
"""Seeds of 4/4 against FedBuff; the other cells of the tables have three."""
TITLES = {
    "affine": "Table 1, affine quantizer, as the paper measured",
    "bucketed": "Table 1, QSGD in max-norm buckets of 256",
}
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
    return _table1("table1", options, ("affine", "bucketed"))


def quantizers(options: Options) -> Study:
    """The three-panel figure from table 1."""
    return _table1("quantizers", options, ("affine",))


def _table1(name: str, options: Options, kinds: Sequence[str]) -> Study:
    seeds = options.seeds if options.quick else max(options.seeds, PAIRED)
    many = {"": options.seeds, "fedbuff": seeds, **{f"{kind}-4-4": seeds for kind in kinds}}
    runs = run_cells(options, [cell for kind in kinds for cell in cells.table1(kind)], many)
    max_uploads = runs.shared["uploads"]
    tables, held, numbers, drawn = [], [], {}, []
    for kind in kinds:
        rows = runs.rows(cells.table1(kind), options.seeds)
        named = {row.name: row for row in rows}
        four = runs.paired(f"{kind}-4-4")
        tables.append(_table(f"{TITLES[kind]}: {runs.goal}", rows))
        held += [
            Claim(f"{kind}: {claim.text}", claim.held, claim.numbers)
            for claim in claims.table1(named, four, max_uploads, kind)
        ]
        numbers[kind] = {"rows": rows, "4/4 against FedBuff": four}
        drawn += figures.quantizers(runs.folder / f"quantizers-{kind}", named, kind, max_uploads)
    return finish(
        name,
        runs.folder,
        data=runs.data,
        tables=tables,
        claims=held,
        numbers={**runs.origin, **numbers},
        notes=runs.notes,
        figures=drawn,
    )


def table2(options: Options) -> Study:
    """A server that sends the top 10 % of the coordinates."""
    runs = run_cells(options, cells.table2())
    rows = runs.rows(cells.table2(), options.seeds)
    pairs = {row.name: runs.paired(row.name) for row in rows[1:]}
    return finish(
        "table2",
        runs.folder,
        data=runs.data,
        tables=[_table(f"Table 2, top 10 % server: {runs.goal}", rows)],
        claims=claims.table2(rows[1:], pairs, runs.shared["uploads"]),
        numbers={**runs.origin, "rows": rows, "against FedBuff": pairs},
        notes=runs.notes,
        figures=figures.table2(runs.folder / "table2", rows, runs.shared["uploads"]),
    )


def concurrency(options: Options) -> Study:
    """100, 500 and 1,000 clients in flight, with the weight 1/√(1 + τ)."""
    runs = run_cells(options, cells.concurrency(), uploads=cells.CONCURRENT_UPLOADS)
    rows = runs.rows(cells.concurrency(), options.seeds)
    pairs = {n: runs.paired(f"qafel-{n}", f"fedbuff-{n}") for n in cells.RATES}
    named = {row.name: row for row in rows}
    title = f"Concurrency, 1/√(1 + τ): {runs.goal}"
    return finish(
        "concurrency",
        runs.folder,
        data=runs.data,
        tables=[_table(title, rows, references={f"qafel-{n}": f"fedbuff-{n}" for n in cells.RATES})],
        claims=claims.concurrency(pairs),
        numbers={
            **runs.origin,
            "rows": rows,
            "against FedBuff": {str(n): p for n, p in pairs.items()},
        },
        notes=runs.notes,
        figures=figures.concurrency(runs.folder / "concurrency", named, list(cells.RATES)),
    )


def _table(title: str, rows: Sequence[Row], references: Mapping[str, str] | None = None) -> Printed:
    named = {row.name: row for row in rows}
    lines = []
    for row in rows:
        reference = named[(references or {}).get(row.name, row.name if references else "fedbuff")]
        lines.append(
            [
                row.label,
                "{:g} ± {:g}".format(*row.paper_thousands) if row.paper_thousands else "–",
                _reached(row),
                _rounded(row.paper_kb_up, 3),
                _rounded(row.kb_up, 3),
                _rounded(row.paper_kb_down, 3),
                _rounded(row.kb_down, 3),
                _rounded(row.paper_mb_up, 2),
                _rounded(row.formula_mb_up, 2),
                _rounded(row.mb_up[0], 2),
                _rounded(row.paper_mb_down, 2),
                _rounded(row.formula_mb_down, 2),
                _rounded(row.mb_down[0], 2),
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
    return plus_minus(row.thousands, 2) + some


def _rounded(value: float | None, digits: int) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _fewer(reference: float, value: float) -> str:
    return _rounded(reference / value if value else None, 2)
