"""``qafel reproduce``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qafel.cli import show
from qafel.cli.run import Changes, resumable
from qafel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

    from qafel.reproduce import Study

NAMES = ("table1", "table2", "concurrency", "quantizers", "hidden-state", "mushrooms", "theory", "frontier")
LOGISTIC = "mushrooms"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}, or all.", metavar="NAME")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Data of the studies with the CNN: faces (the default), smiles32.npz, CelebA's folder, …; "
            "of mushrooms: a table with two classes (breast-cancer when left out)."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each cell.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few minutes: an easier target, fewer uploads.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time; one per core when left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and results; runs/reproduce-DATA when left out.")
    ] = None,
    change: Changes = None,
    json: show.Json = False,
) -> None:
    """Regenerate a table or figure of the paper, next to the paper's numbers; go on where it stopped.

    Example: qafel reproduce table1 --data smiles32.npz --seeds 3 --out runs/paper
    """
    from qafel import report
    from qafel import reproduce as studies
    from qafel.tasks.settings import parse, unknown

    if name != "all" and name not in NAMES:
        raise unknown("study", name, (*NAMES, "all"))
    changes = {}
    for text in change or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes key=value, not {text!r}")
        changes[key.strip()] = parse(value.strip())
    report.pyplot()
    if out is not None:
        show.out_folder(out)
    found = []
    for wanted in NAMES if name == "all" else (name,):
        own = (
            data
            if name != "all" or (data is not None and (wanted == LOGISTIC) == _is_logistic(data))
            else None
        )
        with show.progress(json) as bar, resumable():
            tell = _teller(bar, wanted)
            study = studies.reproduce(
                wanted,
                data=own,
                seeds=seeds,
                quick=quick,
                jobs=jobs,
                out=out,
                changes=changes if wanted not in (LOGISTIC, "theory") else {},
                tell=tell,
            )
        found.append(study)
        if not json:
            _print(study)
    if json:
        show.json(found if name == "all" else found[0])


def _teller(bar: "Progress", name: str) -> "Callable[[str, float], None]":
    task = bar.add_task(name, total=1.0)
    return lambda what, share: bar.update(task, description=f"{name}: {what}", completed=share)


def _is_logistic(data: str) -> bool:
    """Whether ``all`` should give this data to the logistic-regression study: a table, not images."""
    return data == "breast-cancer" or data.endswith((".libsvm", ".libsvm.gz", ".svm"))


def _print(study: "Study") -> None:
    for table in study.tables:
        show.table(table.title, table.columns, table.rows)
        show.console.print()
    for claim in study.claims:
        mark, style = ("held    ", "green") if claim.held else ("not held", "red")
        show.console.print(f"[{style}]{mark}[/]  {claim.text}", soft_wrap=True, highlight=False)
        show.console.print(f"          {claim.numbers}", soft_wrap=True, highlight=False, markup=False)
    for note in study.notes:
        show.console.print(f"note      {note}", soft_wrap=True, highlight=False, markup=False)
    show.console.print(f"\nWritten: {' '.join(study.files)}\n", soft_wrap=True, highlight=False, markup=False)
