"""``qafel dashboard`` and ``qafel report``: runs in the browser."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qafel.cli import show
from qafel.cli.federation import BROKER
from qafel.errors import ConfigError


def dashboard(
    folder: Annotated[Path, Argument(help="A folder of runs.", metavar="RUNS_DIR")] = Path("runs"),
    federation: Annotated[str | None, Option(help="Also show this running federation.")] = None,
    broker: Annotated[str, Option(help="The broker of the federation.")] = BROKER,
    keys: Annotated[Path | None, Option(help="The key of an observer or operator.")] = None,
    host: Annotated[
        str, Option(help="Address to serve at; one that is not loopback gets a token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to serve at; 0: any free one.", min=0, max=65535)] = 8765,
    json: show.Json = False,
) -> None:
    """Show runs while they run, and a federation, in the browser; Ctrl-C ends it.

    Example: qafel dashboard runs --port 8765
    """
    from qafel.dashboard import Federation, serve
    from qafel.extras import require

    require("the dashboard", "dashboard", *(["federation"] if federation else []))
    if keys is not None and federation is None:
        raise ConfigError("--keys are for --federation NAME; name the federation")
    followed = Federation(federation, broker, keys) if federation else None

    def ready(address: str) -> None:
        if json:
            show.json({"address": address})
        else:
            show.line(f"Serving {folder} at {address} (Ctrl-C ends it)")
        sys.stdout.flush()

    serve(folder, host=host, port=port, federation=followed, ready=ready)


def report(
    runs: Annotated[list[Path], Argument(help="Run folders, or folders of runs.", metavar="RUN...")],
    out: Annotated[Path, Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    json: show.Json = False,
) -> None:
    """Write runs as one self-contained web page, to send to somebody.

    Example: qafel report runs/demo-1 -o report.html
    """
    from qafel.dashboard.single_file import report as write

    path = write(runs, out)
    if json:
        show.json({"file": str(path), "bytes": path.stat().st_size})
    else:
        show.line(f"Written: {path}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser.")
