"""Beyond the paper: how little can be sent. FedBuff, the paper's four bits, and this package's defaults, on
the same seeds, in real frames.
"""

from typing import Any

from qafel.config import CLIENT_QUANTIZER, SERVER_QUANTIZER
from qafel.reproduce import cells, figures
from qafel.reproduce.cells import Cell
from qafel.reproduce.claims import Claim, spell
from qafel.reproduce.rows import Paired, Row, paired, rows, seeds
from qafel.reproduce.study import Options, Printed, Study, finish

DATA = "faces"
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


def frontier(options: Options) -> Study:
    """Uploads and bytes to the target, seed by seed beside FedBuff's."""
    data = options.data or DATA
    folder = options.folder(data)
    shared = cells.base(data, quick=options.quick, changes=options.changes)
    many = options.seeds if options.quick else max(options.seeds, SEEDS)
    found = options.run(cells.wanted(CELLS, shared, {"": many}), folder)
    here = rows(CELLS, found, many)
    base = [found[name] for name in seeds("fedbuff", found)]
    pairs = {
        cell.name: paired([found[name] for name in seeds(cell.name, found)], base, cell.name)
        for cell in CELLS[1:]
    }
    goal = f"{data}, {100 * shared['target']:.0f} % accuracy, {many} paired seeds"
    return finish(
        "frontier",
        folder,
        data=data,
        tables=[_printed(goal, here, pairs)],
        claims=_claims(pairs["default"], here[-1]),
        numbers={"settings": shared, "rows": here, "against FedBuff": pairs},
        figures=figures.table2(folder / "frontier", here, shared["uploads"]),
    )


def _printed(goal: str, here: list[Row], pairs: dict[str, Paired]) -> Printed:
    lines = []
    for row in here:
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
            f"at least {up} times fewer MB up and {down} times fewer down at no more than {most} times "
            "FedBuff's uploads",
            whole and mine.mb_up[0] >= up and mine.mb_down[0] >= down and mine.uploads[0] <= most,
            numbers,
        )
        for up, down, most in ((60, 40, 1.05), (55, 35, 1.1))
    ]
    both = whole and min(mine.mb_up[0], mine.mb_down[0]) >= 30
    return [*goals, Claim("at least 30 times fewer MB both ways", both, numbers)]
