"""``qafel tune``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from qafel.cli import show
from qafel.cli.run import Changes, resumable
from qafel.report import Columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from qafel.tune import Candidate, Tuned


def tune(
    config: Annotated[Path | None, Argument(help="A TOML file of settings.")] = None,
    change: Changes = None,
    seeds: Annotated[int, Option(help="Seeds of the last candidates.")] = 3,
    budget: Annotated[int, Option(help="Largest number of runs, FedBuff's included.")] = 40,
    client: Annotated[list[str] | None, Option(help="A client quantizer to try; may be repeated.")] = None,
    server: Annotated[list[str] | None, Option(help="A server quantizer to try; may be repeated.")] = None,
    jobs: Annotated[int | None, Option(help="Runs at the same time; default: one per core.")] = None,
    out: Annotated[Path, Option(help="Folder for the runs and the figure.")] = Path("runs/tune"),
    json: show.Json = False,
) -> None:
    """Find the quantizers that reach a target with the fewest bytes and at most 5 % more uploads.

    Example: qafel tune --set data=digits --set model=mlp --set target=0.9 --seeds 2 --budget 24
    """
    from qafel import report, sim
    from qafel import tune as tuning
    from qafel.quantizers import quantizer

    chosen = sim.read_settings(config, change or ())
    clients = [quantizer(spec).spec for spec in client or tuning.CLIENTS]
    servers = [quantizer(spec).spec for spec in server or tuning.SERVERS]
    report.pyplot()
    show.out_folder(out)
    with show.progress(json) as bar, resumable():
        task = bar.add_task("tuning", total=1.0)
        tuned = tuning.tune(
            chosen,
            out,
            seeds=seeds,
            budget=budget,
            jobs=jobs,
            clients=list(dict.fromkeys(clients)),
            servers=list(dict.fromkeys(servers)),
            tell=lambda what, share: bar.update(task, description=what, completed=share),
        )
    if json:
        show.json(tuned)
        return
    _print(tuned, chosen.target)


def _print(tuned: "Tuned", target: float | str | None) -> None:
    from qafel.tune import ALLOWANCE

    def reached(cell: str) -> "Callable[[Candidate], str]":
        return lambda c: cell.format(c) if c.reached else "–"

    columns: Columns = {
        "client, server": "{0.client}, {0.server}",
        "seeds": "{.seeds}",
        "reached": "{0.reached}/{0.seeds}",
        "uploads": reached("{.uploads:.2f}×"),
        "fewer MB up": reached("{.up:.1f}×"),
        "fewer MB down": reached("{.down:.1f}×"),
        "MB up": reached("{.mb_up:.2f}"),
        "MB down": reached("{.mb_down:.2f}"),
    }
    title = f"To {target}, in units of FedBuff's on the same seeds; {tuned.runs} runs"
    show.records(title, columns, tuned.candidates)
    best = tuned.best
    show.line()
    if not best.reached:
        show.console.print("No candidate reached the target; try a lower one, or more uploads.")
    else:
        if not tuned.within:
            show.console.print(f"None is within {ALLOWANCE} times FedBuff's uploads; the nearest is")
        show.line(f"Best: --set client_quantizer={best.client} --set server_quantizer={best.server}")
    show.line(f"Figure: {tuned.figure}")
