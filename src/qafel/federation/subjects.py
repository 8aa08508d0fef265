"""The streams and subjects of a federation, and the permissions on them.

All subjects of a federation called NAME start with ``qafel.NAME``:

    up.CLIENT               uploads: frames, or manifests of frames that are too long for one message
    inc.TERM                increments, written by the leader of this term
    live                    increments, republished as soon as they are stored: clients subscribe to it
    ask.CLIENT              a client requests a lease
    public.KEY              readable by every client: the welcome, the snapshot, pieces of long increments
    private.KEY             the server's own: the checkpoint, the leader
    chunk.CLIENT.DIGEST.K   pieces of a client's long upload

The three streams are QAFEL_NAME_UP, _INC (sequence = version) and _OBJ (everything that has a key).
"""

import re

from qafel.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")


class Subjects:
    """The subjects of one federation."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"the name of a federation must be 1 to 32 letters, digits and hyphens, got {name!r}"
            )
        self.name = name
        self.root = f"qafel.{name}"
        self.uploads, self.increments, self.objects = (
            f"QAFEL_{name}_{kind}" for kind in ("UP", "INC", "OBJ")
        )
        self.live, self.status = f"{self.root}.live", f"{self.root}.status"

    def upload(self, client: int | str = "*") -> str:
        """The subject of a client's uploads."""
        return f"{self.root}.up.{client}"

    def increment(self, term: int | str = "*") -> str:
        """The subject of the increments of a term."""
        return f"{self.root}.inc.{term}"

    def ask(self, client: int | str = "*") -> str:
        """The subject on which a client requests a lease."""
        return f"{self.root}.ask.{client}"

    def public(self, key: str = ">") -> str:
        """A key that every client may read."""
        return f"{self.root}.public.{key}"

    def private(self, key: str = ">") -> str:
        """A key of the server."""
        return f"{self.root}.private.{key}"

    def chunk(self, client: int | str = "*", rest: str = ">") -> str:
        """The pieces of a client's long uploads."""
        return f"{self.root}.chunk.{client}.{rest}"

    def client_permissions(self, client: int) -> dict[str, list[str]]:
        """The subjects that a client may publish and subscribe to."""
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
        """The services of the server's account that clients may use."""
        get = "$JS.API.DIRECT.GET"
        own = [self.upload(), self.chunk(), self.ask()]
        return [*own, f"{get}.{self.increments}", f"{get}.{self.objects}.{self.public()}"]

    def server_permissions(self) -> dict[str, list[str]]:
        """The subjects that the server may use: its own, and the JetStream API of its own streams."""
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
    """The prefix of the reply subjects of a client (or the server); no other key may subscribe to it."""
    return f"_INBOX_{who}"


def owner(subject: str) -> int | None:
    """The client that an upload or lease subject belongs to, or None."""
    last = subject.rsplit(".", 1)[-1]
    return int(last) if last.isdecimal() and str(int(last)) == last else None
