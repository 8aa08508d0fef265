"""What a server and its clients tell each other, besides the entries of the log.

Welcome           what a client reads first: the job, and the plan
SnapshotPointer   where the newest snapshot of x̂ is
Ask, Answer       a client asks for a lease and for its receipt; the server answers
Done              the training has ended
"""

from typing import Annotated, ClassVar

import msgspec

from qafel import wire
from qafel.federation.objects import Manifest

SESSION_BYTES = 16
TERM_BYTES = 8
"""The length of the term before the values that only a leader writes."""
WAIT_SECONDS = 5.0
Session = Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]


class Welcome(wire.Sealed, frozen=True):
    """What a client needs before its first snapshot. Its format is that of the whole federation."""

    MAGIC: ClassVar[bytes] = b"QT"
    FORMAT: ClassVar[int] = 4

    job: bytes
    plan: str
    """The server's plan as TOML."""


class SnapshotPointer(wire.Sealed, frozen=True):
    """The newest snapshot: its version, its digest, its frame, and the increments that lead to it."""

    MAGIC: ClassVar[bytes] = b"QN"
    FORMAT: ClassVar[int] = 3

    version: wire.Count
    digest: wire.Word
    manifest: Manifest
    sizes: list[int]
    """The lengths of the increments that can be replayed, the last of them that of ``version``."""

    @property
    def increments(self) -> dict[int, int]:
        """The length of each increment that can be replayed, by version."""
        first = self.version - len(self.sizes) + 1
        return dict(enumerate(self.sizes, first))


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """What became of the newest decided task of a client."""

    task: int = -1
    reason: str = ""
    """Empty: it was counted; otherwise why it was rejected."""
    frame: int = 0
    """The fingerprint of its frame."""


class Ask(wire.Sealed, frozen=True):
    """A client asks what became of its last task, and for a lease if it ``wants`` one."""

    MAGIC: ClassVar[bytes] = b"QA"

    session: Session
    """The process that runs this client."""
    task: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 40)] = -1
    """The task whose upload waits for its receipt; −1: none."""
    sequence: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0
    """The number that the broker gave to that upload; 0: none yet."""
    wants: bool = True
    resyncs: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """How often the client had to drop its hidden state since it asked last."""
    busy: bool = False
    """The client trains or sends: this is a sign of life and asks for nothing."""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Train ``task`` from ``version`` or a later one."""

    task: int
    version: int
    token: bytes
    evaluate: bool = False
    """Also evaluate x̂ on the held-out samples of the client."""


class Answer(wire.Sealed, frozen=True):
    """What became of a client's newest decided task, and what to do next."""

    MAGIC: ClassVar[bytes] = b"QG"

    session: bytes
    """The process that is meant; empty: the server does not know it yet."""
    task: int
    """The newest decided task; −1: none."""
    reason: str
    """Empty: it was counted; otherwise why it was rejected."""
    frame: int
    """The fingerprint of its frame."""
    again: int = -1
    """The number of an upload that the client asked about and that is not in the log: send it again."""
    lease: Lease | None = None
    wait: float = WAIT_SECONDS
    """Ask again after this many seconds; 0: at once."""
    ended: str | None = None
    """Why the training has ended."""
    refused: str | None = None
    """Why this process must not go on."""
    unknown: bytes = b""
    """A token that the client sent but this server never issued: the upload with it is never accepted."""


class Done(wire.Sealed, frozen=True):
    """The training has ended: why, and what became of the newest task of each client."""

    MAGIC: ClassVar[bytes] = b"QE"

    reason: str
    decided: dict[int, Decided]
