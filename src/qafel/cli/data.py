"""``qafel data``: public data as files that the simulator reads."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from qafel.cli import show

app = typer.Typer(help="Turn public data into files that the simulator reads.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def smiles(
    folder: Annotated[
        Path,
        Argument(help="A checkout of github.com/hromi/SMILEsmileD.", metavar="FOLDER", exists=True),
    ],
    out: Annotated[Path, Argument(help="The file to write.", metavar="OUT.npz")],
    json: show.Json = False,
) -> None:
    """Write the faces of the SMILEs project to one file: gray, 32×32, smiling or not.

    Example: qafel data smiles SMILEsmileD smiles32.npz
    """
    from qafel.extras import require
    from qafel.tasks.data.smiles import smiles as convert

    require("reading images", "data")
    with show.progress(json) as bar:
        bar.add_task("reading the images", total=None)
        faces, smiling = convert(folder, out)
    if json:
        show.json({"file": str(out), "faces": faces, "smiling": smiling})
    else:
        show.line(f"Written: {out}, {faces:,} faces, {smiling:,} of them smiling.")
