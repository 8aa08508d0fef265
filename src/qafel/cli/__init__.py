"""The command line: ``qafel COMMAND --help`` has an example for each command."""

import errno
import io
import logging
import os
import sys
import warnings
from typing import Annotated, TextIO, cast

import typer

from qafel import __version__
from qafel.cli import (
    bench,
    compare,
    dashboard,
    data,
    federation,
    keys,
    operate,
    quantizers,
    reproduce,
    run,
    settings,
    show,
    theory,
    tune,
)
from qafel.errors import BrokerError, ConfigError, QafelError, QafelWarning

app = typer.Typer(
    name="qafel",
    help="Asynchronous federated learning with quantized messages in both directions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(theory.app, name="theory")
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(keys.app, name="keys")
app.add_typer(operate.app, name="federation")
alone = (run.run, compare.compare, compare.sweep, settings.settings, run.timeline, quantizers.quantizers)
studies = (compare.demo, reproduce.reproduce, tune.tune)
shown = (dashboard.dashboard, dashboard.report)
networked = (federation.broker, federation.serve, federation.join, federation.status)
for command in (*alone, *studies, *shown, *networked, federation.federation_demo):
    app.command()(command)

USAGE, TEMPORARY, PIPE = 2, 75, 141
"""Exit codes: an error that stays until something is changed, one that may pass by itself, and a reader that
closed its end of a pipe."""
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
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="Import this module first: it may register your own quantizer."),
    ] = None,
) -> None:
    del version, debug, modules


def main() -> None:
    """Run a command; an error prints one sentence and exits with code 2 or 75, with --debug a traceback."""
    warnings.showwarning = _show_warning
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # "eof_received() has no effect when using ssl"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        arguments = _import_modules(arguments)
        code = app(arguments, prog_name="qafel", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, head for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(PIPE)
    except (QafelError, OSError, MemoryError, Misuse) as error:
        if debug:
            raise
        code = _print_error(error)
    if code == show.INTERRUPTED:
        show.say("stopped")
    sys.exit(code)


def _import_modules(arguments: list[str]) -> list[str]:
    """Import what ``--import`` names, wherever it stands, and return the other arguments."""
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*others, argument, *rest]
        flag, equals, name = argument.partition("=")
        if flag != "--import":
            others.append(argument)
            continue
        name = name if equals else next(rest, "")
        if not name:
            raise ConfigError("--import needs the name of a module")
        from qafel.tasks.functions import import_module

        import_module(name)
    return others


def _print_error(error: Exception) -> int:
    """Print the error in one sentence and return the exit code."""
    message = error.format_message() if isinstance(error, Misuse) else str(error)
    if isinstance(error, MemoryError):
        message = f"not enough memory: {message}"
    if message.strip():  # empty where a group without a command has printed its help
        hint = "; see --help" if isinstance(error, Misuse) else ""
        show.say(f"error: {' '.join(message.split()).rstrip('.')}{hint}", "red")
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
        show.say(f"warning: {message}", "yellow")
    else:
        _show_other(message, category, filename, lineno, file, line)
