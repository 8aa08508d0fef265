"""Objects in the broker: anything too long for one message, in pieces under keys of their own.

The pieces are written first; then a manifest of 60 bytes takes the frame's place in the stream, so a reader
of the manifest finds the pieces. A manifest names digest and length. Where the pieces are follows from who
sent it, not from its content, so a client cannot point to the pieces of another.
"""

import asyncio
import hashlib
import time
from collections import Counter
from typing import Annotated, ClassVar

import msgspec

from qafel import wire
from qafel.errors import FrameError
from qafel.federation.nats import Connection

PIECE = 1 << 18
AT_ONCE = 4
"""The number of pieces in transfer at a time."""
PIECE_TIMEOUT = 30.0
"""Seconds for one piece on a slow connection."""


class Manifest(wire.Sealed, frozen=True):
    """The digest and length of an object; all pieces but the last have ``piece`` bytes."""

    MAGIC: ClassVar[bytes] = b"QM"

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=wire.MAX_FRAME)]
    piece: Annotated[int, msgspec.Meta(ge=1024, le=1 << 26)]

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return -(-self.size // self.piece)


async def open_store(connection: Connection, replicas: int, *, patience: float = 0.0) -> None:
    """Open the stream of everything that has a key.

    A standby has ``patience``, in seconds: the leader rebuilds a broker that lost its store.
    """
    subjects = connection.subjects
    config = {
        "subjects": [subjects.public(), subjects.private(), subjects.chunk()],
        "max_msgs_per_subject": 2,
        "allow_direct": True,
        "num_replicas": replicas,
    }
    until = time.monotonic() + patience
    while time.monotonic() < until and await connection.stream(subjects.objects) is None:
        await asyncio.sleep(0.25)
    await connection.ensure(subjects.objects, config)


def is_manifest(data: bytes) -> bool:
    """Whether a message is a manifest, not a frame."""
    return data[:2] == Manifest.MAGIC


def frame_size(data: bytes) -> int:
    """The length of the frame in a message, or of the frame that its manifest names."""
    return Manifest.from_bytes(data).size if is_manifest(data) else len(data)


def digest(data: bytes) -> str:
    """The digest of an object."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


async def put(connection: Connection, root: str, data: bytes) -> Manifest:
    """Write an object under ``root.DIGEST``; writing it again changes nothing."""
    manifest = Manifest(digest(data), len(data), min(PIECE, max(1024, connection.max_payload // 2)))

    async def write(k: int) -> None:
        piece = data[k * manifest.piece : (k + 1) * manifest.piece]
        await connection.publish(f"{root}.{manifest.digest}.{k}", piece, timeout=PIECE_TIMEOUT)

    for start in range(0, manifest.pieces, AT_ONCE):
        await asyncio.gather(*map(write, range(start, min(start + AT_ONCE, manifest.pieces))))
    return manifest


async def get(connection: Connection, root: str, manifest: Manifest, limit: int) -> bytes:
    """Read an object of at most ``limit`` bytes; FrameError if a piece is missing or the digest is wrong."""
    if manifest.size > limit:
        raise FrameError(f"object has {manifest.size} bytes; the limit is {limit}")
    parts: list[bytes] = []
    stream = connection.subjects.objects
    for start in range(0, manifest.pieces, AT_ONCE):
        stop = min(start + AT_ONCE, manifest.pieces)
        subjects = (f"{root}.{manifest.digest}.{k}" for k in range(start, stop))
        messages = await asyncio.gather(
            *(connection.last(stream, subject, PIECE_TIMEOUT) for subject in subjects)
        )
        for k, message in enumerate(messages, start):
            length = min(manifest.piece, manifest.size - k * manifest.piece)
            if message is None or len(message.data) != length:
                raise FrameError(f"piece {k} of object {manifest.digest} is missing or has the wrong length")
            parts.append(message.data)
    data = b"".join(parts)
    if digest(data) != manifest.digest:
        raise FrameError(f"the pieces of object {manifest.digest} do not match its digest")
    return data


async def remove(connection: Connection, root: str, manifest: Manifest) -> None:
    """Remove an object's pieces."""
    await connection.purge(connection.subjects.objects, subject=f"{root}.{manifest.digest}.*")


class Sweeper:
    """Removes orphaned pieces: of uploads that were never announced, of writes that were killed half-way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._suspects: dict[str, int] = {}

    async def sweep(self, needed: set[str]) -> list[str]:
        """Remove objects that are not ``needed`` (by digest) and did not grow since the last sweep."""
        subjects, roots = self._connection.subjects, Counter[str]()
        for where in (subjects.chunk(), subjects.public("object.>"), subjects.private("object.>")):
            request = msgspec.json.encode({"subjects_filter": where})
            info = await self._connection.call(f"$JS.API.STREAM.INFO.{subjects.objects}", request)
            roots.update(subject.rsplit(".", 1)[0] for subject in info["state"].get("subjects") or {})
        doubtful = {root: n for root, n in roots.items() if root.rsplit(".", 1)[1] not in needed}
        orphans = [root for root, pieces in doubtful.items() if self._suspects.get(root) == pieces]
        for root in orphans:
            await self._connection.purge(subjects.objects, subject=f"{root}.*")
        self._suspects = doubtful
        return orphans
