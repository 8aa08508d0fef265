"""The command line: ``qafel COMMAND --help`` has an example for each command."""

import sys
import warnings
from typing import Annotated, TextIO

import typer

from qafel import __version__
from qafel.cli import bench, demo, quantizers, theory
from qafel.errors import QafelError, QafelWarning

app = typer.Typer(
    name="qafel",
    help="Asynchronous federated learning that sends almost nothing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quantizers")(quantizers.quantizers)
app.add_typer(theory.app, name="theory")
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    del version, debug


def main() -> None:
    """Run a command; a mistake gets one sentence and exit code 2, a traceback only with --debug."""
    warnings.showwarning = _show_warning
    try:
        app()
    except (QafelError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("stopped", err=True)
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del filename, lineno, file, line
    if issubclass(category, QafelWarning):
        typer.secho(f"warning: {message}", fg="yellow", err=True)
