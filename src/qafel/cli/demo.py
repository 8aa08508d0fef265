"""``qafel demo``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qafel.cli import show
from qafel.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def _advance(bar: "Progress", task: "TaskID", done: int) -> None:
    bar.update(task, completed=done)


def demo(
    seed: Annotated[int, typer.Option(help="Of the schedule, the batches and the quantizers.")] = 0,
    uploads: Annotated[int, typer.Option(help="Client uploads of each algorithm.")] = 3000,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("runs/demo"),
    json: show.Json = False,
) -> None:
    """A small federation in memory: QAFeL beside FedBuff, in real frames.

    Example: qafel demo --uploads 1000 --out runs/demo
    """
    import msgspec

    from qafel import report
    from qafel.experiments import demo as experiment
    from qafel.records import provenance

    if uploads < 1:
        raise ConfigError(f"--uploads must be at least 1, not {uploads}")
    show.out_folder(out)
    report.pyplot()
    runs = []
    with show.progress(quiet=json) as bar:
        for name, job in experiment.jobs(seed).items():
            task = bar.add_task(f"{name}: {experiment.CLIENTS} clients", total=uploads)
            runs.append(experiment.run(job, name, uploads, partial(_advance, bar, task)))
    figure = experiment.draw(runs, out / "demo.png")
    answer = {"figure": str(figure), **provenance("qafel", "numpy", "scikit-learn"), "runs": runs}
    (out / "demo.json").write_bytes(msgspec.json.encode(answer))
    if json:
        show.json(answer)
        return
    mine, reference = runs
    show.table(
        f"Breast-cancer data, logistic regression, {experiment.CLIENTS} clients, {uploads:,} uploads",
        ["algorithm", "loss", "test accuracy", "kB up", "kB broadcast", "B/upload", "mean staleness"],
        [
            *(
                [
                    run.algorithm,
                    f"{run.loss:.4f}",
                    f"{100 * run.accuracy:.1f} %",
                    f"{run.bytes_up / 1e3:,.0f}",
                    f"{run.bytes_down / 1e3:,.0f}",
                    f"{run.bytes_up / uploads:,.0f}",
                    f"{run.mean_staleness:.1f}",
                ]
                for run in runs
            ),
            [
                "FedBuff ÷ QAFeL",
                f"{reference.loss / mine.loss:.2f}×",
                "",
                f"{reference.bytes_up / mine.bytes_up:.1f}×",
                f"{reference.bytes_down / mine.bytes_down:.1f}×" if mine.bytes_down else "–",
                "",
                "",
            ],
        ],
    )
    show.console.print(f"\nFigure: {figure}")
