"""``qafel demo``."""

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Option

from qafel.cli import show
from qafel.cli.run import print_comparison, run_and_compare


def demo(
    seed: Annotated[int, Option(help="Seed of the faces, the clock, the batches and the quantizers.")] = 0,
    uploads: Annotated[int, Option(help="Client uploads of each algorithm.")] = 5000,
    out: Annotated[Path | None, Option(help="Folder for the runs; default: a new one in runs/.")] = None,
    json: show.Json = False,
) -> None:
    """Compare QAFeL with FedBuff: 7,474 asynchronous clients, drawn faces, the paper's CNN, real frames.

    Example: qafel demo --uploads 1000 --out runs/demo
    """
    from qafel import report
    from qafel.runs.folder import new_folder
    from qafel.sim import Settings

    show.at_least_one(uploads=uploads)
    report.pyplot()
    shared = Settings(uploads=uploads, seed=seed, evaluate_every=min(250, uploads))
    runs = {name: [msgspec.structs.replace(shared, algorithm=name)] for name in ("qafel", "fedbuff")}
    out = show.out_folder(out or new_folder(Path("runs"), "demo"))
    results, answer = run_and_compare(runs, out / "demo.png", json)
    answer["runs"] = [found[0].summary for found in results.values()]
    clients = results["qafel"][0].summary.clients
    print_comparison(answer, f"Smiling or not: {uploads:,} uploads of {clients:,} clients", json)
