"""``qafel tune``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from qafel.cli import show
from qafel.cli.compare import Jobs, Out, batch_progress
from qafel.cli.complete import quantizer_completions
from qafel.cli.run import Changes

if TYPE_CHECKING:
    from qafel.tune import Tuned

Tried = Option(help="A quantizer to try; may be repeated.", autocompletion=quantizer_completions)


def tune(
    config: Annotated[Path | None, Argument(help="A TOML file of settings.")] = None,
    change: Changes = None,
    seeds: Annotated[int, Option(help="Seeds of the last candidates.")] = 3,
    budget: Annotated[int, Option(help="Largest number of runs, FedBuff's included.")] = 40,
    client: Annotated[list[str] | None, Tried] = None,
    server: Annotated[list[str] | None, Tried] = None,
    jobs: Jobs = None,
    out: Out = None,
    form: show.FormatOption = show.Format.TEXT,
    json: show.Json = False,
) -> None:
    """Find the quantizers that learn with the fewest bytes and at most 5 % more uploads than FedBuff.

    Example: qafel tune --set data=digits --set model=mlp --set uploads=1500 --seeds 2 --budget 24
    """
    from qafel import sim
    from qafel import tune as tuning
    from qafel.quantizers import quantizer

    chosen = sim.read_settings(config, change or ())
    clients = [quantizer(spec).spec for spec in client or tuning.CLIENTS]
    servers = [quantizer(spec).spec for spec in server or tuning.SERVERS]
    sim.need_extras(chosen, "figures")
    with batch_progress(json, "tuning") as progress:
        tuned = tuning.tune(
            chosen,
            out,
            seeds=seeds,
            budget=budget,
            jobs=jobs,
            clients=list(dict.fromkeys(clients)),
            servers=list(dict.fromkeys(servers)),
            progress=progress,
        )
    if json:
        show.json(tuned)
        return
    show.tables([tuning.table(tuned)], form)
    if form is show.Format.TEXT:
        _print_best(tuned)


def _print_best(tuned: "Tuned") -> None:
    from qafel.tune import ALLOWANCE

    best = tuned.best
    show.line()
    if not best.reached:
        show.line("No candidate learns as far as FedBuff; try more uploads, or finer quantizers.")
    else:
        if not tuned.within:
            show.line(f"None is within {ALLOWANCE} times FedBuff's uploads; the nearest is")
        show.line(f"Best: --set client_quantizer={best.client} --set server_quantizer={best.server}")
    show.line(f"Figure: {tuned.figure}")
