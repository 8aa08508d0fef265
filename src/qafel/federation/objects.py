"""Objects in the broker: anything too long for one message, in pieces under keys of their own.

The pieces are written first, then a manifest of 60 bytes takes the frame's place in the stream: whoever sees
the manifest finds the pieces. A manifest names digest and length; where the pieces lie follows from who sent
it, not from what it says, so nobody can point into somebody else's.
"""

import asyncio
import hashlib
from typing import Annotated

import msgspec

from qafel import wire
from qafel.errors import FrameError
from qafel.federation.nats import Connection

MAGIC = b"QM"
FORMAT = 1
PIECE = 1 << 18
AT_ONCE = 4
"""Pieces on their way at a time."""
SLOW = 30.0
"""Seconds that a piece may take: a megabyte in half a minute is still progress."""


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an object is: the pieces are ``piece`` bytes long, the last one may be shorter."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=wire.MAX_FRAME)]
    piece: Annotated[int, msgspec.Meta(ge=1024, le=1 << 26)]

    @property
    def pieces(self) -> int:
        """How many there are."""
        return -(-self.size // self.piece)

    def to_bytes(self) -> bytes:
        """What stands in the stream."""
        return wire.seal(MAGIC, FORMAT, msgspec.msgpack.encode(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """The inverse, or FrameError."""
        return wire.unpack(wire.unseal(MAGIC, FORMAT, data), msgspec.msgpack.Decoder(cls))


def is_manifest(data: bytes) -> bool:
    """Whether a message is a manifest, not a frame."""
    return data[:2] == MAGIC


def digest(data: bytes) -> str:
    """The name of an object."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


async def put(link: Connection, root: str, data: bytes) -> Manifest:
    """Write an object under ``root.DIGEST``; writing it again changes nothing."""
    manifest = Manifest(digest(data), len(data), min(PIECE, max(1024, link.max_payload // 2)))

    async def write(k: int) -> None:
        piece = data[k * manifest.piece : (k + 1) * manifest.piece]
        await link.publish(f"{root}.{manifest.digest}.{k}", piece, timeout=SLOW)

    for start in range(0, manifest.pieces, AT_ONCE):
        await asyncio.gather(*map(write, range(start, min(start + AT_ONCE, manifest.pieces))))
    return manifest


async def get(link: Connection, root: str, manifest: Manifest, limit: int) -> bytes:
    """Read an object of at most ``limit`` bytes; FrameError where it is not all there, or is another."""
    if manifest.size > limit:
        raise FrameError(f"an object of {manifest.size} bytes, where at most {limit} make sense")
    parts: list[bytes] = []
    for start in range(0, manifest.pieces, AT_ONCE):
        stop = min(start + AT_ONCE, manifest.pieces)
        subjects = (f"{root}.{manifest.digest}.{k}" for k in range(start, stop))
        found = await asyncio.gather(*(link.last(link.names.objects, subject, SLOW) for subject in subjects))
        for k, message in enumerate(found, start):
            wanted = min(manifest.piece, manifest.size - k * manifest.piece)
            if message is None or len(message.data) != wanted:
                raise FrameError(f"piece {k} of object {manifest.digest} is missing or has the wrong length")
            parts.append(message.data)
    data = b"".join(parts)
    if digest(data) != manifest.digest:
        raise FrameError(f"the pieces of object {manifest.digest} are not what it was")
    return data


async def remove(link: Connection, root: str, manifest: Manifest) -> None:
    """Remove an object's pieces."""
    await link.purge(link.names.objects, subject=f"{root}.{manifest.digest}.*")
