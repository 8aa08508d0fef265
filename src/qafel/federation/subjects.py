"""The streams and subjects of a federation, and who may use them.

All subjects of a federation called NAME start with ``qafel.NAME``:

    up.CLIENT             uploads: frames, or manifests of frames that are too long for one message
    entry.WHO             decisions of the server and of operators, in the same log as the uploads
    piece.CLIENT          pieces of a client's long upload
    ask.CLIENT            a client asks for its receipt and for a lease
    answer.CLIENT         the server's answer
    inc.TERM              increments, written by the leader of this term
    live                  increments, republished as soon as they are stored: clients subscribe to it
    public.KEY            keys that every client may read: the welcome, the snapshot, the end
    report.KEY            keys that an observer may read: status, evaluations, the table of clients
    private.KEY           keys of the server: the leader, the checkpoint
    object.KIND           pieces of snapshots and of long increments
    checkpoint            pieces of checkpoints
    status                the server's status, every second

Streams: QAFEL_NAME_LOG (up, entry), _PIECES, _ASKS (in memory), _INC (sequence = version), _KEYS (public,
report, private), _OBJ and _SAVED (checkpoints). Each has limits of its own, so that one that is full stops
none of the others.
"""

import re
from collections.abc import Sequence

from qafel.errors import ConfigError, unknown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
API = "$JS.API"
OWNER_CALLS = (
    "STREAM.CREATE.{}",
    "STREAM.UPDATE.{}",
    "STREAM.INFO.{}",
    "STREAM.PURGE.{}",
    "STREAM.DELETE.{}",
    "STREAM.MSG.GET.{}",
    "STREAM.MSG.DELETE.{}",
    "DIRECT.GET.{}",
    "DIRECT.GET.{}.>",
    "CONSUMER.CREATE.{}.>",
    "CONSUMER.DELETE.{}.>",
    "CONSUMER.MSG.NEXT.{}.>",
)
"""Calls of the JetStream API that the server makes on its own streams."""
OPERATOR_CALLS = (
    "STREAM.INFO.{}",
    "STREAM.DELETE.{}",
    "STREAM.MSG.GET.{}",
    "DIRECT.GET.{}",
    "DIRECT.GET.{}.>",
)
"""Those of an operator."""


class Subjects:
    """The subjects of one federation."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"the name of a federation must be 1 to 32 letters, digits and hyphens, got {name!r}"
            )
        self.name = name
        self.root = f"qafel.{name}"
        kinds = ("LOG", "PIECES", "ASKS", "INC", "KEYS", "OBJ", "SAVED")
        self.streams = tuple(f"QAFEL_{name}_{kind}" for kind in kinds)
        self.log, self.pieces, self.asks, self.increments = self.streams[:4]
        self.keys, self.objects, self.saved = self.streams[4:]
        self.live, self.status, self.checkpoint = (
            f"{self.root}.{kind}" for kind in ("live", "status", "checkpoint")
        )

    def upload(self, client: int | str = "*") -> str:
        """The subject of a client's uploads."""
        return f"{self.root}.up.{client}"

    def entry(self, who: str = "*") -> str:
        """The subject of decisions in the log: ``server`` or ``operator``."""
        return f"{self.root}.entry.{who}"

    def piece(self, client: int | str = "*") -> str:
        """The subject of the pieces of a client's long upload."""
        return f"{self.root}.piece.{client}"

    def ask(self, client: int | str = "*") -> str:
        """The subject on which a client asks for a lease."""
        return f"{self.root}.ask.{client}"

    def answer(self, client: int | str = "*") -> str:
        """The subject of the server's answers to a client."""
        return f"{self.root}.answer.{client}"

    def increment(self, term: int | str = "*") -> str:
        """The subject of the increments of a term."""
        return f"{self.root}.inc.{term}"

    def public(self, key: str = ">") -> str:
        """A key that every client may read."""
        return f"{self.root}.public.{key}"

    def report(self, key: str = ">") -> str:
        """A key that an observer may read."""
        return f"{self.root}.report.{key}"

    def private(self, key: str = ">") -> str:
        """A key of the server."""
        return f"{self.root}.private.{key}"

    def object(self, kind: str = "*") -> str:
        """The pieces of the server's long objects that clients read: ``snapshot`` or ``increment``."""
        return f"{self.root}.object.{kind}"

    def client_services(self, client: int | str = "*") -> list[str]:
        """The subjects to which a client may publish."""
        get = f"{API}.DIRECT.GET"
        return [
            self.upload(client),
            self.piece(client),
            self.ask(client),
            f"{get}.{self.increments}",
            f"{get}.{self.keys}.{self.public()}",
            f"{get}.{self.objects}",
        ]

    def client_feeds(self, client: int | str = "*") -> list[str]:
        """The subjects to which a client may subscribe, besides its own inbox."""
        return [self.live, self.answer(client)]

    def permissions(self, role: str, client: int | None = None) -> dict[str, list[str]]:
        """The subjects to which a user may publish and subscribe.

        The server has its own subjects, and the JetStream API of its streams. An operator reads what the
        server stored, decides, and deletes a federation. An observer reads what is public or reported.
        """
        kept, who = [self.public(), self.report()], role if client is None else client
        if role == "client" and client is not None:
            publish, feeds = self.client_services(client), self.client_feeds(client)
        elif role == "server":
            own = [*kept, self.private(), self.object(), self.checkpoint, self.entry("server"), self.answer()]
            calls = [*self._calls(OWNER_CALLS), f"{API}.INFO", f"$JS.ACK.{self.asks}.>"]
            publish = [*own, self.increment(), self.live, self.status, *calls]
            feeds = [self.live, self.status]
        elif role == "operator":
            publish = [self.entry("operator"), *self._calls(OPERATOR_CALLS), f"{API}.STREAM.NAMES"]
            feeds = [self.status]
        elif role == "observer":
            publish, feeds = [f"{API}.DIRECT.GET.{self.keys}.{key}" for key in kept], [self.status]
        else:
            raise unknown("role", role, ("server", "operator", "observer", "client"))
        return {"publish": publish, "subscribe": [*feeds, f"{inbox(who)}.>"]}

    def _calls(self, names: Sequence[str]) -> list[str]:
        return [f"{API}.{name.format(stream)}" for stream in self.streams for name in names]


def inbox(who: int | str) -> str:
    """The prefix of the reply subjects of a client, the server, an operator or an observer."""
    return f"_INBOX_{who}"


def owner(subject: str) -> int | None:
    """The client that an upload, piece or ask subject belongs to, or None."""
    last = subject.rsplit(".", 1)[-1]
    return int(last) if last.isdecimal() and str(int(last)) == last and int(last) < 1 << 64 else None


def is_decision(subject: str) -> bool:
    """Whether an entry of the log is a decision, not an upload."""
    return subject.split(".")[2] == "entry"
