"""Beyond the paper: FedBuff, the paper's four bits and this package's defaults on the same seeds, in real
frames.
"""

from typing import Any

from qafel.config import CLIENT_QUANTIZER, SERVER_QUANTIZER
from qafel.reproduce import figures
from qafel.reproduce.cells import Cell
from qafel.reproduce.claims import Claim, spell
from qafel.reproduce.rows import Paired, Row
from qafel.reproduce.runs import run_cells
from qafel.reproduce.study import Options, Printed, Study, finish

SEEDS = 5


def pair(client: str, server: str) -> dict[str, Any]:
    """Settings with these quantizers."""
    return {"algorithm": "qafel", "client_quantizer": client, "server_quantizer": server}


CELLS = (
    Cell("fedbuff", "FedBuff", {"algorithm": "fedbuff"}),
    Cell("affine-4-4", "QAFeL affine:4, both sides", pair("affine:4", "affine:4")),
    Cell(
        "default", f"QAFeL {CLIENT_QUANTIZER}, {SERVER_QUANTIZER}", pair(CLIENT_QUANTIZER, SERVER_QUANTIZER)
    ),
)


NAMES = ("FedBuff", "QAFeL\naffine:4\nboth sides", f"QAFeL\n{CLIENT_QUANTIZER}\n{SERVER_QUANTIZER}")
"""The cells, for the figure."""


def frontier(options: Options) -> Study:
    """Uploads and bytes to the target, seed by seed against FedBuff's."""
    seeds = options.seeds if options.quick else max(options.seeds, SEEDS)
    runs = run_cells(options, CELLS, {"": seeds})
    rows = runs.rows(CELLS, seeds)
    pairs = {cell.name: runs.paired(cell.name) for cell in CELLS[1:]}
    goal = f"{runs.data}, {100 * runs.shared['target']:.0f} % accuracy, {seeds} paired seeds"
    return finish(
        "frontier",
        runs.folder,
        data=runs.data,
        tables=[_table(goal, rows, pairs)],
        claims=_claims(pairs["default"], rows[-1]),
        numbers={"settings": runs.shared, "rows": rows, "against FedBuff": pairs},
        figures=figures.table2(runs.folder / "frontier", rows, runs.shared["uploads"], NAMES),
    )


def _table(goal: str, rows: list[Row], pairs: dict[str, Paired]) -> Printed:
    lines = []
    for row in rows:
        ratios = ["1", "1", "1"]
        if row.name in pairs:
            p = pairs[row.name]
            ratios = [f"{p.uploads[0]:.2f}×", f"{p.mb_up[0]:.1f}×", f"{p.mb_down[0]:.1f}×"]
        lines.append(
            [
                row.label,
                f"{row.reached}/{row.runs}",
                f"{row.thousands[0]:.2f} ± {row.thousands[1]:.2f}",
                f"{row.kb_up:.2f}",
                f"{row.kb_down:.2f}",
                f"{row.mb_up[0]:.2f}",
                f"{row.mb_down[0]:.2f}",
                *ratios,
            ]
        )
    columns = ["run", "reached", "uploads (k)", "kB up", "kB down", "MB up", "MB down"]
    return Printed(
        f"The communication frontier: {goal}",
        [*columns, "uploads ÷ FedBuff's", "fewer MB up", "fewer MB down"],
        lines,
    )


def _claims(mine: Paired, row: Row) -> list[Claim]:
    numbers = f"uploads {spell(mine.uploads)}, up {spell(mine.mb_up)}, down {spell(mine.mb_down)}"
    numbers += f" over {mine.seeds} paired seeds"
    whole = row.reached == row.runs
    goals = [
        Claim(
            f"at least {up} times fewer MB up and {down} times fewer down "
            f"at no more than {max_uploads} times FedBuff's uploads",
            whole and mine.mb_up[0] >= up and mine.mb_down[0] >= down and mine.uploads[0] <= max_uploads,
            numbers,
        )
        for up, down, max_uploads in ((60, 40, 1.05), (55, 35, 1.1))
    ]
    both = whole and min(mine.mb_up[0], mine.mb_down[0]) >= 30
    return [*goals, Claim("at least 30 times fewer MB both ways", both, numbers)]
