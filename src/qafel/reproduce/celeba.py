"""The studies with the paper's CNN: its two tables, its figures, and its quantizer as its text has it."""

from collections.abc import Mapping

from qafel.reproduce import cells, claims, figures
from qafel.reproduce.rows import Paired, Row, run_cells
from qafel.reproduce.study import Options, Study, plus_minus, rounded
from qafel.runs.comparison import Comparison
from qafel.tables import Columns, Table

TITLES = {
    "affine": "Table 1, affine quantizer, as the paper measured",
    "bucketed": "Table 1, QSGD in max-norm buckets of 256",
}
SHORT = {"affine": "affine", "bucketed": "QSGD in buckets"}


def table1(options: Options) -> Study:
    """FedBuff and the nine pairs of bits: affine as the paper measured, and QSGD in max-norm buckets."""
    chosen = [cell for kind in TITLES for cell in cells.table1(kind)]
    runs = run_cells(options, chosen)
    tables, held, numbers, drawn = [], [], {}, []
    for kind in TITLES:
        rows = runs.rows(cells.table1(kind))
        pairs = _beside_fedbuff(rows)
        tables.append(_table(f"{TITLES[kind]}: {runs.goal}", rows))
        held += claims.table1(rows, pairs, kind, SHORT[kind])
        numbers[kind] = {"rows": list(rows.values()), "against FedBuff": pairs}
        drawn += figures.quantizers(runs.folder / f"quantizers-{kind}", rows, kind)
    return runs.finish("table1", tables=tables, claims=held, numbers=numbers, notes=runs.notes, figures=drawn)


def table2(options: Options) -> Study:
    """A server that sends the top 10 % of the coordinates."""
    runs = run_cells(options, cells.table2())
    rows = runs.rows(cells.table2())
    pairs = _beside_fedbuff(rows)
    return runs.finish(
        "table2",
        tables=[_table(f"Table 2, top 10 % server: {runs.goal}", rows)],
        claims=claims.table2([rows[name] for name in pairs], pairs),
        numbers={"rows": list(rows.values()), "against FedBuff": pairs},
        notes=runs.notes,
        figures=figures.table2(runs.folder / "table2", list(rows.values())),
    )


def concurrency(options: Options) -> Study:
    """100, 500 and 1,000 clients in flight, with the weight 1/√(1 + τ)."""
    runs = run_cells(options, cells.concurrency(), uploads=cells.CONCURRENT_UPLOADS)
    rows = runs.rows(cells.concurrency())
    pairs = {str(n): Paired.of(rows[f"qafel-{n}"], rows[f"fedbuff-{n}"]) for n in cells.RATES}
    references = {name: name.replace("qafel", "fedbuff") for name in rows}
    return runs.finish(
        "concurrency",
        tables=[_table(f"Concurrency, 1/√(1 + τ): {runs.goal}", rows, references)],
        claims=claims.concurrency(pairs),
        numbers={"rows": list(rows.values()), "against FedBuff": pairs},
        notes=runs.notes,
        figures=figures.concurrency(runs.folder / "concurrency", rows),
    )


def literal(options: Options) -> Study:
    """Clients with the QSGD of the paper's text, one L2 norm over the whole vector, by their mean curves."""
    chosen = cells.literal()
    runs = run_cells(options, chosen, uploads=cells.LITERAL_UPLOADS)
    comparison = Comparison({cell.label: runs.outcomes[cell.name] for cell in chosen})
    title = f"QSGD with one L2 norm at the clients: {runs.data}, {runs.shared['uploads']:,} uploads"
    return runs.finish(
        "literal-qsgd",
        tables=comparison.tables(title),
        claims=[],
        numbers={"rows": comparison.rows},
        notes=comparison.notes,
        figures=figures.save(comparison.figure(), runs.folder / "literal-qsgd"),
    )


def _beside_fedbuff(rows: Mapping[str, Row]) -> dict[str, Paired]:
    """All rows but FedBuff's against FedBuff's."""
    return {name: Paired.of(row, rows["fedbuff"]) for name, row in rows.items() if name != "fedbuff"}


def _table(title: str, rows: Mapping[str, Row], references: Mapping[str, str] | None = None) -> Table:
    """The table of some rows; ``references`` are the rows they are compared with, by default FedBuff's."""

    def fewer(row: Row, field: str) -> str:
        reference = rows[references[row.name] if references else "fedbuff"]
        mine, theirs = getattr(row, field)[0], getattr(reference, field)[0]
        return rounded(theirs / mine if mine else None, 2)

    columns: Columns = {
        "algorithm": "{.label}",
        "paper: uploads (k)": lambda r: (
            "{:g} ± {:g}".format(*r.paper_thousands) if r.paper_thousands else "–"
        ),
        "uploads (k)": _reached,
        "paper: kB/upload": lambda row: rounded(row.paper_kb_up, 3),
        "kB/upload": lambda row: rounded(row.kb_up, 3),
        "paper: kB/download": lambda row: rounded(row.paper_kb_down, 3),
        "kB/download": lambda row: rounded(row.kb_down, 3),
        "paper: MB up": lambda row: rounded(row.paper_mb_up, 2),
        "MB up, paper's formula": lambda row: rounded(row.formula_mb_up, 2),
        "MB up": lambda row: rounded(row.mb_up[0], 2),
        "paper: MB down": lambda row: rounded(row.paper_mb_down, 2),
        "MB down, paper's formula": lambda row: rounded(row.formula_mb_down, 2),
        "MB down": lambda row: rounded(row.mb_down[0], 2),
        "× fewer up": lambda row: fewer(row, "mb_up"),
        "× fewer down": lambda row: fewer(row, "mb_down"),
    }
    table = Table.of(title, columns, rows.values())
    kept = [k for k in range(len(columns)) if any(row[k] != "–" for row in table.rows)]
    return Table(title, [table.columns[k] for k in kept], [[row[k] for k in kept] for row in table.rows])


def _reached(row: Row) -> str:
    if row.diverged:
        return "diverged"
    if not row.reached:
        return f"never (best {100 * max(row.best_accuracy, default=0.0):.1f} %)"
    some = "" if row.reached == row.runs else f" ({row.reached} of {row.runs})"
    return plus_minus(row.thousands, 2) + some
