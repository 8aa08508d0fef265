"""``qafel federation``: list, stop, change and delete federations."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qafel.cli import show
from qafel.cli.federation import BROKER, BrokerUrl, Keys

app = typer.Typer(no_args_is_help=True, help="List, stop, change and delete federations.")
Name = Annotated[str, typer.Argument(help="The federation's name.")]


@app.command("list")
def list_federations(broker: BrokerUrl = BROKER, keys: Keys = None, json: show.Json = False) -> None:
    """List the federations of a broker, and how they ended.

    Example: qafel federation list --broker nats://127.0.0.1:4222
    """
    from qafel.federation import operate

    federations = operate.federations(broker, keys)
    if json:
        show.json(federations)
        return
    rows = [
        [
            one["name"],
            f"{one.get('version', 0):,}",
            f"{one.get('uploads', 0):,}",
            one["reason"] or "has not ended",
        ]
        for one in federations
    ]
    show.table("Federations", ["name", "version", "uploads", "ended by"], rows)


@app.command("clients")
def list_clients(name: Name, broker: BrokerUrl = BROKER, keys: Keys = None, json: show.Json = False) -> None:
    """List the clients of a federation: last seen, tasks, rejections; a few seconds old.

    Example: qafel federation clients faces --broker nats://127.0.0.1:4222
    """
    from qafel.federation import operate

    rows = operate.clients(name, broker, keys)
    if json:
        show.json([row._asdict() for row in rows])
        return
    show.records(f"Clients of {name}", operate.CLIENT_COLUMNS, rows)


@app.command("stop")
def stop(
    name: Name,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; it becomes part of the result.")
    ] = "stopped by an operator",
    broker: BrokerUrl = BROKER,
    keys: Keys = None,
    json: show.Json = False,
) -> None:
    """End the training of a federation; its result is saved as at any end.

    Example: qafel federation stop faces --reason "good enough"
    """
    from qafel.federation.entries import Stop

    _decide(name, broker, Stop(reason), keys, json)


@app.command("set")
def change(
    name: Name,
    values: Annotated[list[str], typer.Argument(help="key=value: limits of the plan.")],
    broker: BrokerUrl = BROKER,
    keys: Keys = None,
    json: show.Json = False,
) -> None:
    """Change limits of a running federation: uploads, target, max_norm, concurrency and others.

    Example: qafel federation set faces uploads=20000 max_norm=5.0
    """
    from qafel.federation.entries import Change
    from qafel.tasks.values import parse_changes

    _decide(name, broker, Change(parse_changes(values)), keys, json)


@app.command("skip")
def skip(
    name: Name,
    sequence: Annotated[int, typer.Argument(help="The number of the entry.", min=1)],
    broker: BrokerUrl = BROKER,
    keys: Keys = None,
    json: show.Json = False,
) -> None:
    """Have the server pass over an entry of the log that stops it; restart the server afterwards.

    Example: qafel federation skip faces 1234
    """
    from qafel.federation.entries import Skip

    _decide(name, broker, Skip(sequence), keys, json)


@app.command("delete")
def delete(name: Name, broker: BrokerUrl = BROKER, keys: Keys = None, json: show.Json = False) -> None:
    """Delete a federation from the broker: its log, its model and its checkpoints.

    Example: qafel federation delete faces
    """
    from qafel.federation import operate

    operate.delete(name, broker, keys)
    show.json({"deleted": name}) if json else typer.echo(f"Deleted: {name}")


def _decide(name: str, broker: str, decision: Any, keys: Path | None, json: bool) -> None:
    from qafel.federation import operate

    sequence = operate.decide(name, broker, decision, keys)
    show.json({"entry": sequence}) if json else typer.echo(
        f"Entry {sequence} of the log; the server reads it next."
    )
