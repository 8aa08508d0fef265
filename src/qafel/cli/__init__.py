"""The command line: ``qafel COMMAND --help`` has an example for each command."""

import errno
import io
import logging
import sys
import warnings
from typing import Annotated, TextIO, cast

import typer

from qafel import __version__
from qafel.cli import (
    bench,
    federation,
    keys,
    operate,
    quantizers,
    reproduce,
    run,
    show,
    theory,
    tune,
)
from qafel.errors import BrokerError, QafelError, QafelWarning

app = typer.Typer(
    name="qafel",
    help="Asynchronous federated learning with quantized messages in both directions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(theory.app, name="theory")
app.add_typer(bench.app, name="bench")
app.add_typer(keys.app, name="keys")
app.add_typer(operate.app, name="federation")
alone = (run.run, run.compare, run.timeline, quantizers.quantizers, run.demo, reproduce.reproduce, tune.tune)
networked = (federation.broker, federation.serve, federation.join, federation.status)
for command in (*alone, *networked, federation.federation_demo):
    app.command()(command)

USAGE, TEMPORARY = 2, 75
"""Exit codes: an error that stays until something is changed, and one that may pass by itself."""
Misuse = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""The error of a wrong command line: click's, or that of the copy of click in newer versions of typer."""
_show_other = warnings.showwarning


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
    """Run a command; an error prints one sentence and exits with code 2 or 75, with --debug a traceback."""
    warnings.showwarning = _show_warning
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # "eof_received() has no effect when using ssl"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        code = app(arguments, prog_name="qafel", standalone_mode=False)
    except (QafelError, OSError, MemoryError, Misuse) as error:
        if len(arguments) < len(sys.argv) - 1:
            raise
        code = _print_error(error)
    if code == show.INTERRUPTED:
        typer.secho("stopped", err=True)
    sys.exit(code)


def _print_error(error: Exception) -> int:
    """Print the error in one sentence and return the exit code."""
    message = error.format_message() if isinstance(error, Misuse) else str(error)
    if isinstance(error, MemoryError):
        message = f"not enough memory: {message}"
    if message.strip():  # empty where a group without a command has printed its help
        hint = "; see --help" if isinstance(error, Misuse) else ""
        typer.secho(f"error: {' '.join(message.split()).rstrip('.')}{hint}", fg="red", err=True)
    return TEMPORARY if may_heal(error) else USAGE


def may_heal(error: Exception) -> bool:
    """Whether the same command may succeed later: the broker is away, or a disk is full."""
    cause = error if isinstance(error, OSError) else error.__cause__
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or (isinstance(error, BrokerError) and error.may_pass)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, QafelWarning):
        typer.secho(f"warning: {message}", fg="yellow", err=True)
    else:
        _show_other(message, category, filename, lineno, file, line)
