"""``qafel broker``, ``serve``, ``join``, ``status`` and ``federation-demo``."""

import datetime
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from qafel import files
from qafel.cli import show
from qafel.cli.run import Changes, print_result
from qafel.errors import BrokerError, FencedError

FENCED = 3
"""Exit code: another server has taken over."""
PORT = 4222
BROKER = f"nats://127.0.0.1:{PORT}"
BrokerUrl = Annotated[
    str, typer.Option("--broker", help="nats:// or tls:// address; of a cluster, several with commas.")
]
Keys = Annotated[Path | None, typer.Option("--keys", help="This party's key file, made by qafel keys new.")]


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also log a line for every task.")]


class Log:
    """The log of a server or client on standard error: text lines, or JSON lines."""

    def __init__(self, json: bool, who: str, verbose: bool = False) -> None:
        self._json, self._who, self._verbose = json, who, verbose

    def __call__(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Write a line to standard error; what happens for every task only if it is wanted."""
        import msgspec

        if level == "task" and not self._verbose:
            return
        now = datetime.datetime.now(datetime.UTC)
        if self._json:
            line = {
                "time": now.isoformat(timespec="milliseconds"),
                "who": self._who,
                "level": level,
                "event": event,
                **fields,
            }
            sys.stderr.write(msgspec.json.encode(line, enc_hook=str).decode() + "\n")
        else:
            said = "  ".join(f"{key}={value}" for key, value in fields.items() if value is not None)
            sys.stderr.write(f"{now:%H:%M:%S}  {self._who}  {event}  {said}\n".rstrip() + "\n")
        sys.stderr.flush()


def broker(
    folder: Annotated[Path, typer.Option("--dir", help="Folder for its store and its log.")] = Path(
        "runs/broker"
    ),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes a free one.", min=0, max=65535)] = PORT,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="The broker's folder of qafel keys: TLS, and only known keys."),
    ] = None,
    sync_always: Annotated[
        bool, typer.Option("--sync-always", help="Sync every message to disk: survives power loss.")
    ] = False,
    max_payload: Annotated[
        int, typer.Option("--max-payload", help="Bytes of one message.", min=65536, max=64 << 20)
    ] = 1 << 20,
    max_store: Annotated[
        str | None, typer.Option("--max-store", help="Maximum size of its store, such as 10G.")
    ] = None,
    config_only: Annotated[
        Path | None, typer.Option("--config-only", help="Only write the configuration to this file.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Start a NATS server with JetStream on disk, or write the configuration for one of your own.

    Example: qafel broker --dir runs/broker
    """
    from qafel.federation.broker import Broker, configuration

    limits: dict[str, Any] = {
        "host": host,
        "keys": keys,
        "sync_always": sync_always,
        "max_payload": max_payload,
        "max_store": max_store,
    }
    if config_only is not None:
        text = configuration((folder / "store").resolve(), port=port or PORT, **limits)
        files.write(config_only, text.encode(), sync=False)
        show.json({"config": str(config_only)}) if json else typer.echo(f"Written: {config_only}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Broker(folder, port=port, **limits) as one:
            if json:
                pid = one.process.pid if one.process else None
                show.json({"url": one.url, "pid": pid, "dir": str(folder)})
            else:
                typer.echo(f"Broker: {one.url}   (log: {folder / 'broker.log'}; Ctrl-C stops it)")
            sys.stdout.flush()
            while one.process is not None and one.process.poll() is None:
                time.sleep(0.2)
    except KeyboardInterrupt:
        return
    raise BrokerError(f"the broker process ended; see {folder / 'broker.log'}")


def serve(
    plan: Annotated[
        Path | None, typer.Argument(help="JOB.toml: the plan; default: all settings at their defaults.")
    ] = None,
    change: Changes = None,
    broker: BrokerUrl = BROKER,
    state: Annotated[
        Path | None, typer.Option("--state", help="The server's folder; default: runs/NAME.")
    ] = None,
    keys: Keys = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the running server fails, then take over.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option("--metrics", help="Port on loopback for /metrics, /healthz, /readyz.")
    ] = None,
    verbose: Verbose = False,
    json: show.Json = False,
) -> None:
    """Run the server of a federation until its training has ended.

    Example: qafel serve JOB.toml --broker nats://127.0.0.1:4222 --state runs/server
    """
    from qafel import federation

    chosen = federation.read_plan(plan, change or ())
    folder = state or Path("runs") / chosen.name
    log = Log(json, "server", verbose)
    try:
        result = federation.serve(
            chosen, broker, folder, keys=keys, standby=standby, metrics=metrics, notice=log
        )
    except FencedError as error:
        log("stopped", detail=str(error))
        raise typer.Exit(FENCED) from None
    except KeyboardInterrupt:
        log("stopped", detail=f"run the same command with --state {folder} to continue")
        raise typer.Exit(show.INTERRUPTED) from None
    if result is None:
        log("stopped", detail=f"run the same command with --state {folder} to continue")
    elif json:
        show.json({"folder": str(folder), "summary": result.summary})
    else:
        print_result(result, folder)


def join(
    name: Annotated[str, typer.Argument(help="The federation's name.")] = "qafel",
    broker: BrokerUrl = BROKER,
    client: Annotated[
        int | None, typer.Option("--client", help="This client's number; default: the key's, or 0.", min=0)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The client's own data; default: its share of the plan's data."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="A folder for its state, to continue from after a restart.")
    ] = None,
    keys: Keys = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="Leave after this many tasks.", min=1)] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="A function (package.module:factory) that the plan may call here."),
    ] = None,
    verbose: Verbose = False,
    json: show.Json = False,
) -> None:
    """Run a client of a federation: follow the model, train and send updates until training has ended.

    Example: qafel join qafel --broker nats://127.0.0.1:4222 --client 7 --state runs/client-7
    """
    from qafel import federation

    log = Log(json, "client" if client is None else f"client {client}", verbose)
    try:
        done = federation.join(
            name,
            broker,
            client=client,
            data=data,
            allow=allow or (),
            state=state,
            keys=keys,
            tasks=tasks,
            notice=log,
        )
    except KeyboardInterrupt:
        log("stopped")
        raise typer.Exit(show.INTERRUPTED) from None
    if json:
        show.json(done)
        return
    typer.echo(
        f"client {done.client}: {done.tasks:,} tasks, {done.counted:,} counted, "
        f"{done.bytes_up / 1e6:.2f} MB up, "
        f"{done.bytes_down / 1e6:.2f} MB down, version {done.version:,}"
        + (f"; ended by {done.reason}" if done.reason else "")
    )


def status(
    name: Annotated[str, typer.Argument(help="The federation's name.")] = "qafel",
    broker: BrokerUrl = BROKER,
    keys: Keys = None,
    once: Annotated[bool, typer.Option("--once", help="Print the status once and exit.")] = False,
    json: show.Json = False,
) -> None:
    """Show a live view of a federation, or how it ended; Ctrl-C ends the view, not the federation.

    Example: qafel status qafel --broker nats://127.0.0.1:4222
    """
    from rich.live import Live

    from qafel.federation import watch

    seen = watch(name, broker, keys)
    try:
        if json or once or not show.console.is_terminal:
            for status in seen:
                show.json(status) if json else show.console.print(_view(status))
                if once:
                    break
            return
        with Live(console=show.console, refresh_per_second=4) as view:
            for status in seen:
                view.update(_view(status))
    except KeyboardInterrupt:
        return


def _view(status: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from qafel.federation.operate import facts

    table = Table.grid(padding=(0, 2))
    bar = "█" * round(20 * status["buffer"][0] / max(1, status["buffer"][1]))
    rows = [("federation", f"{status['name']}   {status['seconds']:,.0f} s"), *facts(status)]
    for key, value in rows:  # as they are: names of metrics and reasons are other people's words
        table.add_row(Text(key, "bold"), Text(f"{bar:<20} {value}" if key == "buffer" else value))
    return table


def federation_demo(
    uploads: Annotated[int, typer.Option("--uploads", help="Updates until training ends.", min=100)] = 1500,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the shares, the batches and the quantizers.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; default: a new one in runs/.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Run a broker, a server and eight clients on this machine; one is killed, one joins late.

    Example: qafel federation-demo --out runs/federation
    """
    from qafel.cli import federation_demo as experiment
    from qafel.extras import require
    from qafel.runs.folder import new_folder

    require("this demo", "torch", "data", "federation", "figures")
    folder = show.out_folder(out or new_folder(Path("runs"), "federation"))
    with show.progress(json) as bar:
        task = bar.add_task("starting", total=1.0)
        result, clients = experiment.demo(
            folder, uploads, seed, lambda what, share: bar.update(task, description=what, completed=share)
        )
    if json:
        show.json({"folder": str(folder), "summary": result.summary, "clients": clients})
        return
    print_result(result, folder / "server")
    _print_clients(clients, result.summary.digest[16:], experiment.LATE)


def _print_clients(clients: dict[int, Any], digest: str, late: int) -> None:
    rows = []
    for number, done in clients.items():
        cells = ["killed", "–", "–", "–", "–"]
        if done:
            megabytes = [f"{count / 1e6:.2f}" for count in (done.bytes_up, done.bytes_down)]
            cells = [
                f"{done.tasks:,}",
                *megabytes,
                f"{done.version:,}",
                "yes" if done.digest == digest else "NO",
            ]
        rows.append([f"{number}" + " (late)" * (number == late), *cells])
    show.table("\nThe clients", ["client", "tasks", "MB up", "MB down", "version", "x̂ is the server's"], rows)
