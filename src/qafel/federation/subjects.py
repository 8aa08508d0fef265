"""What a federation's streams and subjects are called, and who may use which.

A federation has a name, NAME. Everything of it is under ``qafel.NAME``:

    up.CLIENT               uploads: frames, or manifests of those that are too long for one message
    inc.TERM                increments; only the server that holds the lease may, its TERM is in the subject
    live                    increments, as soon as they are stored: what clients listen to
    ask.CLIENT              a client asks for a lease
    public.KEY              what every client may read: the welcome, the snapshot, chunks of long increments
    private.KEY             the server's own: the checkpoint, the leader
    chunk.CLIENT.DIGEST.K   pieces of a client's long upload

and there are three streams: QAFEL_NAME_UP, _INC (sequence = version) and _OBJ (everything that has a key).
"""

import re

from qafel.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")


class Subjects:
    """The names of one federation."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"a federation's name has up to 32 letters, digits and hyphens, and {name!r} is not one"
            )
        self.name = name
        self.root = f"qafel.{name}"
        self.uploads, self.increments, self.objects = (
            f"QAFEL_{name}_{kind}" for kind in ("UP", "INC", "OBJ")
        )
        self.live, self.status = f"{self.root}.live", f"{self.root}.status"

    def upload(self, client: int | str = "*") -> str:
        """Where a client's uploads go."""
        return f"{self.root}.up.{client}"

    def increment(self, term: int | str = "*") -> str:
        """Where the server of a term writes increments."""
        return f"{self.root}.inc.{term}"

    def ask(self, client: int | str = "*") -> str:
        """Where a client asks for a lease."""
        return f"{self.root}.ask.{client}"

    def public(self, key: str = ">") -> str:
        """What every client may read."""
        return f"{self.root}.public.{key}"

    def private(self, key: str = ">") -> str:
        """The server's own."""
        return f"{self.root}.private.{key}"

    def chunk(self, client: int | str = "*", rest: str = ">") -> str:
        """Pieces of a client's long uploads."""
        return f"{self.root}.chunk.{client}.{rest}"

    def client_permissions(self, client: int) -> dict[str, list[str]]:
        """What a client may publish to and subscribe to, and nothing else."""
        get = "$JS.API.DIRECT.GET"
        return {
            "publish": [
                self.upload(client),
                self.chunk(client),
                self.ask(client),
                f"{get}.{self.increments}",
                f"{get}.{self.objects}.{self.public()}",
            ],
            "subscribe": [self.live, f"{inbox(client)}.>"],
        }

    def services(self) -> list[str]:
        """What clients may ask of the server's account."""
        get = "$JS.API.DIRECT.GET"
        own = [self.upload(), self.chunk(), self.ask()]
        return [*own, f"{get}.{self.increments}", f"{get}.{self.objects}.{self.public()}"]

    def server_permissions(self) -> dict[str, list[str]]:
        """What the server may use: its own subjects, and the JetStream calls on its own streams."""
        calls = [
            f"$JS.API.{call}.{stream}{rest}"
            for stream in (self.uploads, self.increments, self.objects)
            for call, rest in (
                ("STREAM.CREATE", ""),
                ("STREAM.UPDATE", ""),
                ("STREAM.INFO", ""),
                ("STREAM.PURGE", ""),
                ("STREAM.MSG.GET", ""),
                ("DIRECT.GET", ""),
                ("DIRECT.GET", ".>"),
                ("CONSUMER.CREATE", ".>"),
                ("CONSUMER.DELETE", ".>"),
                ("CONSUMER.MSG.NEXT", ".>"),
            )
        ]
        own = [self.increment(), self.public(), self.private(), self.chunk(), self.status, "$JS.API.INFO"]
        return {
            "publish": [*own, *calls],
            "subscribe": [self.ask(), self.live, self.status, f"{inbox('server')}.>"],
        }


def inbox(who: int | str) -> str:
    """Where answers to a client (or the server) arrive: nobody else may listen there."""
    return f"_INBOX_{who}"


def owner(subject: str) -> int | None:
    """The client whose upload arrived on this subject."""
    last = subject.rsplit(".", 1)[-1]
    return int(last) if last.isdecimal() and str(int(last)) == last else None
