"""``qafel reproduce``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from qafel.cli import show
from qafel.cli.compare import Jobs, batch_progress
from qafel.cli.run import Changes

if TYPE_CHECKING:
    from qafel.reproduce import Study

PAPER = ("table1", "table2", "concurrency", "hidden-state", "mushrooms", "theory")
NAMES = (*PAPER, "literal-qsgd", "frontier", "catch-up")
"""What ``all`` regenerates, and what goes beyond the paper."""
LOGISTIC = "mushrooms"
MARKS = {True: ("held", "green"), False: ("not held", "red"), None: ("undecided", "yellow")}
"""What is printed before a claim, and its colour."""


def reproduce(
    name: Annotated[str, Argument(help=f"{', '.join(NAMES)}, or all.", metavar="NAME")],
    data: Annotated[
        str | None,
        Option(
            help="Data of the studies with the CNN: faces (the default), smiles32.npz, CelebA's folder, …; "
            "of mushrooms: a table with two classes (default: breast-cancer); of frontier: a folder with the "
            "files of its tasks, or one of them (default: digits)."
        ),
    ] = None,
    seeds: Annotated[
        int | None, Option(help="Runs of each cell; default: 5. The frontier has its own.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Take a few minutes: a lower target, fewer uploads.")
    ] = False,
    jobs: Jobs = None,
    out: Annotated[
        Path | None, Option(help="Folder for runs and results; default: runs/reproduce-DATA.")
    ] = None,
    change: Changes = None,
    form: show.FormatOption = show.Format.TEXT,
    json: show.Json = False,
) -> None:
    """Regenerate a table or figure of the paper next to the paper's numbers; continues interrupted runs.

    Example: qafel reproduce table1 --data smiles32.npz --out runs/paper
    """
    from qafel import reproduce as studies
    from qafel.errors import unknown
    from qafel.extras import require
    from qafel.tasks.values import parse_changes

    if name != "all" and name not in NAMES:
        raise unknown("study", name, (*NAMES, "all"))
    changes = parse_changes(change or ())
    require("this study", "torch", "data", "figures")
    if out is not None:
        show.out_folder(out)
    results = []
    for wanted in PAPER if name == "all" else (name,):
        with batch_progress(json, wanted) as progress:
            study = studies.reproduce(
                wanted,
                data=_data_for(wanted, data) if name == "all" else data,
                seeds=seeds,
                quick=quick,
                jobs=jobs,
                out=out,
                changes={} if name == "all" and wanted in studies.OWN_PROTOCOL else changes,
                progress=progress,
            )
        results.append(study)
        if not json:
            _print(study, form)
    if json:
        show.json(results if name == "all" else results[0])


def _data_for(study: str, data: str | None) -> str | None:
    """What ``all`` gives to a study: tables to the logistic regression, images to others."""
    if study == "theory":
        return None
    table = data is not None and (data == "breast-cancer" or data.endswith((".libsvm", ".libsvm.gz", ".svm")))
    return data if (study == LOGISTIC) == table else None


def _print(study: "Study", form: show.Format) -> None:
    show.tables(study.tables, form)
    show.line()
    if form is not show.Format.TEXT:
        return
    for claim in study.claims:
        mark, style = MARKS[claim.held]
        show.console.print(f"[{style}]{mark:<9}[/]  {claim.text}", soft_wrap=True, highlight=False)
        show.line(f"           {claim.numbers}")
    for note in study.notes:
        show.line(f"note       {note}")
    show.line(f"\nWritten: {' '.join(study.files)}\n")
