"""``qafel keys``: make, list, revoke and rotate the keys of federations."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

from qafel.cli import show
from qafel.errors import ConfigError

app = typer.Typer(
    help="Keys: who may take part in a federation. DIR stays with the operator.", no_args_is_help=True
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the keys.")]
Name = Annotated[str, typer.Option("--name", help="The federation's name.")]
Broker = Annotated[
    str | None,
    typer.Option("--broker", help="tls:// address of a running broker, which learns of it at once."),
]
Days = Annotated[float, typer.Option("--days", help="How long the new keys and certificates are valid.")]
Who = Annotated[str | None, typer.Option("--who", help="server, operator, observer or client-7.")]
OTHERS = ("broker", "ca", "system")
NEXT_START = "a running broker learns of it at its next start; with --broker URL, at once"


@app.command()
def new(
    folder: Folder,
    name: Name = "qafel",
    clients: Annotated[int, typer.Option("--clients", help="Keys for clients 0 to N − 1.", min=0)] = 0,
    client: Annotated[
        list[int] | None, typer.Option("--client", help="A key for this client; may be repeated.", min=0)
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the broker; may be repeated.")
    ] = None,
    days: Days = 365,
    mutual: Annotated[
        bool, typer.Option("--mutual", help="The broker also asks for a certificate of every client.")
    ] = False,
    broker: Broker = None,
    json: show.Json = False,
) -> None:
    """Make the keys that are missing: for the broker, the server, an operator, an observer and clients.

    Example: qafel keys new runs/keys --name faces --clients 100 --host broker.example.org
    """
    from qafel.federation.keys import Keys

    numbers = [*range(clients), *(client or ())]
    made = Keys(folder).new(name, numbers, hosts=host or (), days=days, mutual=mutual, broker=broker)
    if json:
        show.json({"folder": str(folder), "made": [str(path) for path in made]})
        return
    show.line(f"{len(made)} new keys in {folder / name}: hand each file to the party that it is named after.")
    show.line(f"The broker needs {folder / 'broker'}: qafel broker --keys {folder / 'broker'}")
    show.line(f"Keep {folder / 'operator'}: it can make and revoke every key.")


@app.command("list")
def list_(
    folder: Folder,
    name: Annotated[str | None, typer.Option("--name", help="Only this federation.")] = None,
    json: show.Json = False,
) -> None:
    """Show who has a key, since when, until when, and whether it is revoked.

    Example: qafel keys list runs/keys --name faces
    """
    from qafel.federation.keys import Keys

    entries = Keys(folder).entries(name)
    if json:
        show.json(entries)
        return
    rows = [
        [
            f"{entry.name} {entry.who}",
            "–" if entry.client is None else f"{entry.client}",
            *map(_day, (entry.created, entry.expires, entry.revoked)),
        ]
        for entry in entries
    ]
    show.table(f"The keys in {folder}", ["who", "client", "created", "expires", "revoked"], rows)


@app.command()
def revoke(
    folder: Folder,
    name: Name = "qafel",
    client: Annotated[int | None, typer.Option("--client", help="The client's number.", min=0)] = None,
    who: Who = None,
    broker: Broker = None,
    json: show.Json = False,
) -> None:
    """Refuse a key from now on; with --broker, a connection that uses it is cut.

    Example: qafel keys revoke runs/keys --name faces --client 7 --broker tls://broker.example.org:4222
    """
    from qafel.federation.keys import Keys

    if (client is None) == (who is None):
        raise ConfigError("name one key: --client 7 or --who server")
    holder = who or f"client-{client}"
    Keys(folder).revoke(name, holder, broker=broker)
    if json:
        show.json({"revoked": holder, "name": name, "broker": broker})
        return
    show.line(
        f"The key of {holder} is revoked in {folder / 'broker'}" + ("." if broker else f"; {NEXT_START}.")
    )


@app.command()
def rotate(
    folder: Folder,
    name: Name = "qafel",
    who: Annotated[
        str, typer.Option("--who", help="server, operator, observer, client-7, or broker, ca, system.")
    ] = "server",
    days: Days = 365,
    broker: Broker = None,
    json: show.Json = False,
) -> None:
    """Make a new key and refuse the old one, or renew the certificate of the broker or of the CA.

    Example: qafel keys rotate runs/keys --name faces --who client-7 --broker tls://broker.example.org:4222
    """
    from qafel.federation.keys import Keys

    keys = Keys(folder)
    if who == "system":
        changed = [keys.rotate_system(broker=broker)]
    elif who in OTHERS:
        changed = keys.rotate_certificates(ca=who == "ca", days=days)
    else:
        changed = [keys.rotate(name, who, days=days, broker=broker)]
    if json:
        show.json({"rotated": who, "changed": [str(path) for path in changed], "broker": broker})
        return
    if who in ("broker", "ca"):
        again = f" Hand out {len(changed):,} files again." if changed else ""
        show.line(f"Renewed in {folder / 'broker'}: copy it to the broker and start it again.{again}")
    else:
        show.line(f"New: {changed[0]}; the old one is refused" + ("." if broker else f"; {NEXT_START}."))


def _day(seconds: int | None) -> str:
    if seconds is None:
        return "–"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")
