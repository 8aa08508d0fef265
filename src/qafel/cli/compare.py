"""``qafel compare``, ``qafel sweep`` and ``qafel demo``: runs side by side."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Option

from qafel.cli import show
from qafel.cli.complete import change_completions, run_completions
from qafel.cli.run import Changes, resumable

if TYPE_CHECKING:
    from qafel.runs.comparison import Comparison
    from qafel.sim import Settings
    from qafel.sim.grid import Groups
    from qafel.sim.processes import Progress

Seeds = Annotated[int, Option(help="Runs of each configuration, with consecutive seeds.", min=1)]
Jobs = Annotated[int | None, Option(help="Runs at the same time; default: one per core.", min=1)]
Reference = Annotated[
    str | None,
    Option(
        help="What the others are compared with; in a sweep, an algorithm's runs are added. Default: "
        "fedbuff, or the first."
    ),
]
Share = Annotated[float, Option(help="Compare where the reference has made this share of its gain.")]
Vary = Annotated[
    list[str],
    Option(
        help="A setting and its values; may be repeated.",
        metavar="NAME=VALUE,VALUE,…",
        autocompletion=change_completions,
    ),
]
Out = Annotated[Path | None, Option(help="Folder for the runs and the figure; default: a new one in runs/.")]
AGAIN = "the same command continues"


@contextmanager
def batch_progress(quiet: bool, name: str) -> "Iterator[Progress]":
    """A progress bar over many runs, which says after Ctrl-C how to go on."""
    with show.progress(quiet) as bar, resumable(AGAIN):
        task = bar.add_task(name, total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def compare(
    runs: Annotated[
        list[str],
        Argument(
            help="Run folders, configs (TOML), or algorithms; run folders that differ only in their seed are "
            "one row.",
            autocompletion=run_completions,
        ),
    ],
    change: Changes = None,
    seeds: Seeds = 1,
    jobs: Jobs = None,
    reference: Reference = None,
    share: Share = 0.95,
    out: Out = None,
    form: show.FormatOption = show.Format.TEXT,
    json: show.Json = False,
) -> None:
    """Compare several runs in one table and one figure; the same command continues what was interrupted.

    Example: qafel compare qafel fedbuff --set uploads=3000 --seeds 3 --out runs/mine
    """
    from qafel.sim import grid

    wanted = grid.select(runs, change or (), seeds)
    _compare("compare", wanted, out, form, json, jobs=jobs, reference=reference, share=share)


def sweep(
    config: Annotated[Path | None, Argument(help="A TOML file of settings.", metavar="BASE.toml")] = None,
    vary: Vary = [],  # noqa: B006
    change: Changes = None,
    seeds: Seeds = 1,
    jobs: Jobs = None,
    reference: Reference = None,
    share: Share = 0.95,
    out: Out = None,
    form: show.FormatOption = show.Format.TEXT,
    json: show.Json = False,
) -> None:
    """Run every combination of some values and compare them; the same command continues a sweep.

    Example: qafel sweep base.toml --vary local_rate=0.01,0.03,0.1 --vary buffer_size=5,10 --seeds 3
    """
    from qafel import sim
    from qafel.errors import ConfigError
    from qafel.sim import grid
    from qafel.tasks.values import read_values

    values: dict[str, list[Any]] = {}
    for text in vary:
        name, parsed = grid.parse_values(text)
        if name in values:
            raise ConfigError(f"--vary names {name} twice")
        values[name] = parsed
    if not values:
        raise ConfigError("a sweep needs --vary NAME=VALUE,VALUE,…")
    wanted = grid.combinations(read_values(sim.Settings, config, change or ()), values, seeds, reference)
    _compare("sweep", wanted, out, form, json, jobs=jobs, reference=reference, share=share)


def demo(
    seed: Annotated[int, Option(help="Seed of the faces, the clock, the batches and the quantizers.")] = 0,
    uploads: Annotated[int, Option(help="Client uploads of each algorithm.", min=1)] = 5000,
    out: Annotated[Path | None, Option(help="Folder for the runs; default: a new one in runs/.")] = None,
    json: show.Json = False,
) -> None:
    """Compare QAFeL with FedBuff: 7,474 asynchronous clients, generated faces, the paper's CNN, real frames.

    Example: qafel demo --uploads 1000 --out runs/demo
    """
    from qafel.runs.folder import new_folder
    from qafel.sim import Settings, grid
    from qafel.sim.batch import work_folder

    shared = Settings(uploads=uploads, seed=seed, evaluate_every=min(250, uploads))
    wanted: Groups = {
        name: [msgspec.structs.replace(shared, algorithm=name)] for name in ("qafel", "fedbuff")
    }
    folder = out or work_folder(grid.ROOT, "demo", grid.request("demo", wanted))
    if out is None and (folder / "demo.json").exists():  # it has ended: this is another one
        folder = new_folder(grid.ROOT, "demo")
    _compare("demo", wanted, folder, show.Format.TEXT, json, title=f"Smiling or not: {uploads:,} uploads")


def _compare(
    kind: str,
    wanted: "Groups",
    out: Path | None,
    form: show.Format,
    json: bool,
    title: str = "",
    **options: Any,
) -> None:
    """Run, compare and print."""
    from qafel import sim
    from qafel.extras import require
    from qafel.sim import grid

    first = next((one for what in wanted.values() for one in what if isinstance(one, sim.Settings)), None)
    require("this comparison", *_extras(first), "figures")
    with batch_progress(json, kind) as progress:
        comparison, folder = grid.run_groups(wanted, kind, out, progress=progress, **options)
    figure = folder / f"{kind}.png"
    if json:
        show.json(_answer(comparison, figure))
        return
    show.tables(comparison.tables(title), form, comparison.to_csv())
    if form is show.Format.TEXT:
        for note in comparison.notes:
            show.line(note)
        drawn = [path for path in (figure, figure.with_stem(f"{kind}-map")) if path.exists()]
        show.line(f"\nFigure: {' '.join(map(str, drawn))}")
        show.look_at(folder)


def _extras(settings: "Settings | None") -> list[str]:
    return [] if settings is None else [*settings.extras, "torch"]


def _answer(comparison: "Comparison", figure: Path) -> dict[str, Any]:
    runs = {name: [run.summary for run in results] for name, results in comparison.results.items()}
    return {
        "figure": str(figure),
        "reference": comparison.reference,
        "rows": comparison.rows,
        "runs": runs,
        "notes": comparison.notes,
    }
