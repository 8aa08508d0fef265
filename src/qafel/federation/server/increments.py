"""What the server sends out: increments, in a stream whose sequence number is the version, and snapshots.

A snapshot is written before the increments since the last one cost more than a quarter of a model. The stream
keeps what came after the newest snapshot, and the increments that are cheaper to replay than a snapshot.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from qafel import wire
from qafel.errors import FencedError, FormatError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.connection import Connection
from qafel.federation.messages import SnapshotPointer
from qafel.federation.objects import Manifest, is_manifest
from qafel.federation.server.leader import FencedKey
from qafel.server import Server
from qafel.wire import Increment

LAST = "Nats-Expected-Last-Sequence"
SNAPSHOT_EVERY = 0.25
"""The cost of increments, in models, after which a snapshot is written."""
TRIM = 16
"""The stream is trimmed when this many increments can go."""


class Increments:
    """The increments and snapshots that one server writes in its term."""

    def __init__(self, connection: Connection, term: int, holder: str = "") -> None:
        self._connection, self._subjects = connection, connection.subjects
        self._subject = connection.subjects.increment(f"{term}-{holder}")
        self.last = 0
        """The newest version in the stream."""
        self._first = 1
        self._snapshot: SnapshotPointer | None = None
        self._since = 0
        """Bytes of increments since the newest snapshot."""
        self._newest_size = 0
        self._long: dict[int, Manifest] = {}
        self._key = FencedKey(connection, connection.subjects.public("snapshot"), term)
        self.damaged = False
        """Whether an increment was damaged on its way into the broker."""

    async def open(self, replicas: int, server: Server) -> None:
        """Open the stream for this term and write the increments of the server's log that it lacks.

        A stream that is lost, or too far behind, starts at the first increment of the log.
        """
        subjects, version = self._subjects, server.version
        kept = {entry.version: entry.frame for entry in server.log.entries}
        begin = min(kept, default=version + 1)
        config = {
            "subjects": [self._subject],
            "allow_direct": True,
            "republish": {"src": self._subject, "dest": subjects.live},
            "num_replicas": replicas,
            "first_seq": begin,
        }
        state = (await self._connection.ensure(subjects.increments, config))["state"]
        try:
            if data := await self._key.take_over():
                self._snapshot = SnapshotPointer.from_bytes(data)
        except FormatError as error:
            raise StateError(f"the broker holds snapshots of another version: {error}") from error
        except FrameError:
            pass  # damaged: a new one is written
        self.last, self._first = state["last_seq"], max(1, state["first_seq"])
        if self.last < begin - 1:
            await self._connection.purge(subjects.increments, below=begin)
            self.last, self._first, self._snapshot = begin - 1, begin, None
        if self._snapshot is not None and self._snapshot.version > version:
            self._snapshot = None  # it belongs to versions that this server does not have
        for missing in range(self.last + 1, version + 1):
            await self._publish(missing, kept[missing])
        if self._snapshot is not None:
            since = self._snapshot.version
            self._since = sum(len(frame) for v, frame in kept.items() if v > since)
        if server.server_quantizer.max_bytes(server.job.size) > self._connection.room:
            await self._load_long()

    async def _load_long(self) -> None:
        """Read which versions are stored in pieces."""
        for version in range(self._first, self.last + 1):
            message = await self._connection.get(self._subjects.increments, version)
            with contextlib.suppress(FrameError):
                if message is not None and is_manifest(message.data):
                    self._long[version] = Manifest.from_bytes(message.data)

    async def exist(self) -> bool:
        """Whether the broker has increments, or had some."""
        stream = await self._connection.stream(self._subjects.increments)
        return stream is not None and stream["state"]["last_seq"] > 0

    async def agrees(self, server: Server) -> bool:
        """Whether the newest increment that stream and server both have leads to the same hidden state."""
        stream = await self._connection.stream(self._subjects.increments)
        last = stream["state"]["last_seq"] if stream else 0
        digests = {entry.version: entry.digest for entry in server.log.entries if entry.version <= last}
        if server.version <= last:
            digests[server.version] = server.hidden.digest
        version = max(digests, default=0)
        message = await self._connection.stored(self._subjects.increments, version) if version else None
        if message is None:
            return True
        try:
            limit = server.server_quantizer.max_bytes(server.job.size) + wire.MAX_OVERHEAD
            frame = await objects.increment(self._connection, message.data, limit, leader=True)
            increment = wire.decode(frame)
        except FormatError:
            raise
        except FrameError:
            return True  # it was damaged on its way into the broker
        return isinstance(increment, Increment) and increment.digest == digests[version]

    async def publish(self, frames: Mapping[int, bytes]) -> None:
        """Write versions in order. Each expects the one before it, so it need not wait for its answer."""
        if any(len(frame) > self._connection.room for frame in frames.values()):
            for version, frame in frames.items():
                await self._publish(version, frame)
            return
        writes = (self._publish(version, frame) for version, frame in frames.items())
        for result in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _publish(self, version: int, frame: bytes) -> None:
        """Write a version once: the version of another server is never overwritten, our own not repeated."""
        if version <= self.last:
            stored = await self._connection.stored(self._subjects.increments, version)
            if stored is not None and not self._is_ours(stored.data, frame):
                raise StateError(
                    f"version {version} in the broker does not follow from its log: entries were lost; "
                    "start the server that has the state folder, or start anew under another name"
                )
            self._written(version, len(frame))
            return
        data = frame
        if len(frame) > self._connection.room:
            manifest = await self._put("increment", frame)
            data, self._long[version] = manifest.to_bytes(), manifest
        try:
            sequence = await self._connection.publish(self._subject, data, headers={LAST: str(version - 1)})
        except FencedError:
            stored = await self._connection.stored(self._subjects.increments, version)
            if stored is None or not self._is_ours(stored.data, frame):
                raise
            sequence = version  # it is ours: the acknowledgement was lost
        if sequence != version:
            raise FencedError(
                f"version {version} was stored as message {sequence}: another server writes to this stream"
            )
        self.last = max(self.last, version)
        self._written(version, len(frame))

    async def _put(self, kind: str, frame: bytes) -> Manifest:
        subject = self._subjects.object(kind)
        return await objects.put_verified(self._connection, self._subjects.objects, subject, frame)

    def _written(self, version: int, size: int) -> None:
        """Count an increment that is in the stream."""
        self._newest_size = size
        if self._snapshot is None or version > self._snapshot.version:
            self._since += size

    def _is_ours(self, stored: bytes, frame: bytes) -> bool:
        """Whether a stored message is this frame, perhaps damaged; then a snapshot must lead past it."""
        if stored == frame:
            return True
        with contextlib.suppress(FrameError):
            if is_manifest(stored):
                return Manifest.from_bytes(stored).digest == objects.digest(frame)
            wire.decode(stored)
            return False
        self.damaged = True
        return True

    def due(self, server: Server, size: int | None = None) -> bool:
        """Whether one more increment, of ``size`` bytes or as the last one, makes a snapshot necessary."""
        if self._snapshot is None:
            return True
        whole = server.hidden.snapshot_bytes(server.job.id)
        size = self._newest_size if size is None else size
        return not server.job.replaces and self._since + size > SNAPSHOT_EVERY * whole

    async def snapshot(self, server: Server, *, size: int | None = None, asked: bool = False) -> bool:
        """Write a snapshot if one is due or asked for, and drop increments that are no longer needed."""
        asked, self.damaged = asked or self.damaged, False
        due = self.due(server, size)
        due = due or (asked and self._snapshot is not None and self._snapshot.version < server.version)
        if due:
            frame = wire.encode(server.hidden.snapshot(server.job.id))
            manifest = await self._put("snapshot", frame)
            before = self._snapshot
            sizes = [size for version, size in server.log.sizes.items() if version >= self._first]
            self._snapshot = SnapshotPointer(server.version, server.hidden.digest, manifest, sizes)
            await self._key.write(self._snapshot.to_bytes())
            self._since = 0
            if before is not None:  # a client may be reading it
                await self._drop("snapshot", before.manifest.first)
        await self._trim(server)
        return due

    async def _trim(self, server: Server) -> None:
        if self._snapshot is None:
            return
        if server.job.replaces:
            needed = server.version
        else:
            needed = min(self._snapshot.increments, default=self._snapshot.version + 1)
        needed = min(needed, self.last + 1)  # a snapshot may be one version ahead of the stream
        if needed < self._first + TRIM:
            return
        await self._connection.purge(self._subjects.increments, below=needed)
        self._first = needed
        for version in [version for version in self._long if version < needed]:
            await self._drop("increment", self._long.pop(version).last + 1)

    async def _drop(self, kind: str, below: int) -> None:
        """Remove the pieces of older objects."""
        await self._connection.purge(self._subjects.objects, below=below, subject=self._subjects.object(kind))
