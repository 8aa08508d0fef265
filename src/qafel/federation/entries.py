"""The entries of a federation's log: uploads of clients, and decisions of the server and of operators.

The log contains everything that determines the server's state. An upload carries the token of its lease: a
MAC, under a key that only the server has, over the client, the task and the version at which the lease was
granted. So whether an upload is accepted depends on the log alone, not on a clock.
"""

import hashlib
import hmac
import struct
from typing import Annotated, Any, ClassVar

import msgspec

from qafel import wire
from qafel.errors import ConfigError

TOKEN_BYTES = 16
KEY_BYTES = 32
MAX_REPORT_BYTES = 3000
_LEASE = struct.Struct("<3Q")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A client's evaluation of x̂ on its held-out samples: sums over ``samples`` of them, by metric."""

    samples: Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
    sums: Annotated[dict[Name, float], msgspec.Meta(max_length=32)]

    def checked(self) -> "Report":
        """The report with plain numbers; ConfigError if the server would not read it."""
        try:
            plain = int(self.samples), {name: float(value) for name, value in self.sums.items()}
            report = msgspec.convert(plain, Report)
            if (size := len(msgspec.msgpack.encode(report))) > MAX_REPORT_BYTES:
                raise ValueError(f"it has {size} bytes, and the limit is {MAX_REPORT_BYTES}")
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"evaluate returned {self!r:.100}, which cannot be sent: {error}") from error
        return report


class Upload(wire.Sealed, frozen=True):
    """A client's update: its frame, or the manifest of a frame in pieces."""

    MAGIC: ClassVar[bytes] = b"QU"

    task: wire.Count
    version: wire.Count
    """The version at which the lease was granted; the update starts from it or from a later one."""
    token: bytes
    frame: bytes
    more: bool = True
    """Whether the client wants another lease."""
    samples: wire.Count = 0
    """The number of samples the client trained on; 0: it does not say."""
    downloaded: wire.Count = 0
    """Bytes of frames that the client downloaded since its last upload."""
    report: Report | None = None


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """End the training for a reason."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class Change(msgspec.Struct, frozen=True, array_like=True, tag="set"):
    """Change settings of the plan: names and values."""

    values: Annotated[dict[Name, Any], msgspec.Meta(max_length=16)]


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """Skip the entry with this sequence number: processing it would stop the server."""

    sequence: wire.Count


class Decision(wire.Sealed, frozen=True):
    """A decision of the server or of an operator."""

    MAGIC: ClassVar[bytes] = b"QD"

    decision: Stop | Change | Skip


def token(key: bytes, client: int, task: int, version: int) -> bytes:
    """The token of a lease."""
    message = _LEASE.pack(client, task, version)
    return hashlib.blake2b(message, key=key, digest_size=TOKEN_BYTES).digest()


def is_token(key: bytes, client: int, upload: Upload) -> bool:
    """Whether an upload of a client carries the token of its lease."""
    return hmac.compare_digest(token(key, client, upload.task, upload.version), upload.token)
