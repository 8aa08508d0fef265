"""Objects in the broker: anything too long for one message, in pieces.

The pieces of an object are messages of one subject; a manifest names their sequence numbers, the length and
the digest. The pieces are written first; then the manifest takes the object's place, so that whoever reads
the manifest finds the pieces. Pieces that nobody names, of a write that was killed half-way, go with the next
purge of their subject.
"""

import asyncio
import hashlib
from typing import Annotated, ClassVar

import msgspec

from qafel import wire
from qafel.errors import FrameError
from qafel.federation.connection import Connection

PIECE = 1 << 18
AT_ONCE = 4
"""The number of pieces in transfer at a time."""
PIECE_TIMEOUT = 30.0
"""Seconds for one piece on a slow connection."""
MAX_PIECES = 1 << 16


class Manifest(wire.Sealed, frozen=True):
    """The digest and length of an object, and the sequence numbers of its pieces."""

    MAGIC: ClassVar[bytes] = b"QM"
    FORMAT: ClassVar[int] = 2

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=wire.MAX_FRAME)]
    pieces: Annotated[list[wire.Count], msgspec.Meta(max_length=MAX_PIECES)]

    @property
    def first(self) -> int:
        """The smallest sequence number of a piece."""
        return min(self.pieces, default=0)

    @property
    def last(self) -> int:
        """The largest sequence number of a piece."""
        return max(self.pieces, default=0)


def is_manifest(data: bytes) -> bool:
    """Whether a message is a manifest, not a frame."""
    return data[:2] == Manifest.MAGIC


def piece_size(max_payload: int) -> int:
    """The length of all pieces but the last, for a broker that accepts messages of ``max_payload`` bytes."""
    return min(PIECE, max(1024, max_payload // 2))


def digest(data: bytes) -> str:
    """The digest of an object."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


async def put(connection: Connection, subject: str, data: bytes) -> Manifest:
    """Write an object in pieces of a subject."""
    length = piece_size(connection.max_payload)
    parts = [data[k : k + length] for k in range(0, len(data), length)]
    sequences: list[int] = []
    for start in range(0, len(parts), AT_ONCE):
        group = parts[start : start + AT_ONCE]
        writes = (connection.publish(subject, part, timeout=PIECE_TIMEOUT) for part in group)
        sequences += await asyncio.gather(*writes)
    return Manifest(await asyncio.to_thread(digest, data), len(data), sequences)


async def get(
    connection: Connection, stream: str, subject: str, manifest: Manifest, limit: int, *, leader: bool = False
) -> bytes:
    """Read an object of at most ``limit`` bytes; FrameError if it is missing, or is not as the manifest says.

    ``leader``: a piece is missing only if the stream's leader says so, not a replica that lags behind.
    """
    if manifest.size > limit:
        raise FrameError(f"object has {manifest.size} bytes; the limit is {limit}")
    if len(set(manifest.pieces)) < len(manifest.pieces):
        raise FrameError(f"the manifest of object {manifest.digest} names a piece twice")
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(manifest.pieces), AT_ONCE):
        sequences = manifest.pieces[start : start + AT_ONCE]
        read = connection.stored if leader else connection.get
        for sequence, message in zip(
            sequences, await asyncio.gather(*(read(stream, n) for n in sequences)), strict=True
        ):
            if message is None or message.subject != subject:
                raise FrameError(f"piece {sequence} of object {manifest.digest} is missing")
            parts.append(message.data)
            size += len(message.data)
        if size > manifest.size:
            raise FrameError(f"the pieces of object {manifest.digest} are longer than it")
    data = b"".join(parts)
    if len(data) != manifest.size or await asyncio.to_thread(digest, data) != manifest.digest:
        raise FrameError(f"the pieces of object {manifest.digest} do not match its digest")
    return data


async def increment(connection: Connection, data: bytes, limit: int, *, leader: bool = False) -> bytes:
    """The frame in a message of the increments, or the object that its manifest names; see ``get``."""
    if not is_manifest(data):
        return data
    stream, subject = connection.subjects.objects, connection.subjects.object("increment")
    return await get(connection, stream, subject, Manifest.from_bytes(data), limit, leader=leader)


async def put_verified(connection: Connection, stream: str, subject: str, data: bytes) -> Manifest:
    """Write an object, and read it back: what is stored is what was written, whatever the network does."""
    while True:
        manifest = await put(connection, subject, data)
        try:
            await get(connection, stream, subject, manifest, len(data), leader=True)
        except FrameError:
            continue
        return manifest
