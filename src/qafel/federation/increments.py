"""What the server sends out: increments in a stream whose sequence number is the version, and snapshots.

A snapshot is written whenever the increments since the last one cost as many bytes as a model does; the
stream keeps what came after it, and at least a model's worth: nobody needs more than one model and the
increments since.
"""

import contextlib

import msgspec

from qafel import wire
from qafel.errors import FencedError, FrameError, StateError
from qafel.federation import objects
from qafel.federation.nats import Connection, Message
from qafel.federation.objects import Manifest, is_manifest
from qafel.federation.register import Register
from qafel.server import Server
from qafel.wire import Increment

LAST = "Nats-Expected-Last-Sequence"
MAGIC = b"QN"
FORMAT = 1


class Newest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which snapshot is the newest: its version, the digest of x̂, and where its frame lies."""

    version: wire.Count
    digest: wire.Word
    manifest: Manifest

    def to_bytes(self) -> bytes:
        """What stands under the key."""
        return wire.seal(MAGIC, FORMAT, msgspec.msgpack.encode(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Newest":
        """The inverse, or FrameError."""
        return wire.unpack(wire.unseal(MAGIC, FORMAT, data), msgspec.msgpack.Decoder(cls))


class Increments:
    """The increments and snapshots of one server, in its term."""

    def __init__(self, link: Connection, term: int, holder: str = "") -> None:
        self._link, self._names = link, link.names
        self._subject = link.names.increment(f"{term}-{holder}")
        self.last = 0
        """The last version in the stream."""
        self._first = 1
        self._snapshot: Newest | None = None
        self._since = 0
        """Bytes of increments since the newest snapshot."""
        self._long: dict[int, Manifest] = {}
        self._key = Register(link, link.names.public("snapshot"), term)
        self._older: Manifest | None = None
        """The snapshot before the newest: somebody may be reading it."""
        self.damaged = False
        """Whether an increment was damaged on its way into the broker."""

    async def open(self, replicas: int, server: Server) -> None:
        """The stream of increments, for this term. What it lacks of the server's log is written; one that is
        lost, or further behind, begins there.
        """
        names, version = self._names, server.version
        kept = {entry.version: entry.frame for entry in server.log.entries}
        begin = min(kept, default=version + 1)
        config = {
            "subjects": [self._subject],
            "allow_direct": True,
            "republish": {"src": self._subject, "dest": names.live},
            "num_replicas": replicas,
            "first_seq": begin,
        }
        state = (await self._link.ensure(names.increments, config))["state"]
        with contextlib.suppress(FrameError):
            if data := await self._key.take_over():
                self._snapshot = Newest.from_bytes(data)
        self.last, self._first = state["last_seq"], max(1, state["first_seq"])
        if self.last < begin - 1:
            await self._link.purge(names.increments, below=begin)
            self.last, self._first, self._snapshot = begin - 1, begin, None
        if self._snapshot is not None and self._snapshot.version > version:
            self._snapshot = None  # of a past that this server does not know
        for missing in range(self.last + 1, version + 1):
            await self.publish(missing, kept[missing])
        if self._snapshot is not None:
            since = self._snapshot.version
            self._since = sum(len(frame) for v, frame in kept.items() if v > since)
        if server.server_quantizer.max_bytes(server.job.size) > self._room:
            await self._find_long()

    @property
    def _room(self) -> int:
        """Bytes of a frame that still fit into a message."""
        return self._link.max_payload - 4096

    async def _find_long(self) -> None:
        """Which versions lie in pieces."""
        for version in range(self._first, self.last + 1):
            message = await self._link.get(self._names.increments, version)
            with contextlib.suppress(FrameError):
                if message is not None and is_manifest(message.data):
                    self._long[version] = Manifest.from_bytes(message.data)

    @property
    def objects(self) -> set[str]:
        """The digests of what is needed of ``public.object``."""
        needed = {manifest.digest for manifest in self._long.values()}
        if self._older is not None:
            needed.add(self._older.digest)
        return needed | ({self._snapshot.manifest.digest} if self._snapshot else set())

    async def agrees(self, server: Server) -> bool:
        """Whether what the stream says of the server's version is what the server says."""
        message = await self._link.get(self._names.increments, server.version) if server.version else None
        if message is None:
            return True
        try:
            said = wire.decode(await self._frame(message, server))
        except FrameError:
            return True  # damaged on its way into the broker: it says nothing
        return isinstance(said, Increment) and said.digest == server.hidden.digest

    async def _frame(self, message: Message, server: Server) -> bytes:
        if not is_manifest(message.data):
            return message.data
        limit = server.server_quantizer.max_bytes(server.job.size) + wire.MAX_OVERHEAD
        root = self._names.public("object")
        return await objects.get(self._link, root, Manifest.from_bytes(message.data), limit)

    async def publish(self, version: int, frame: bytes) -> None:
        """Write a version, once and for all: another server's is never overwritten, our own not repeated."""
        data = frame
        if len(frame) > self._room:
            manifest = await objects.put(self._link, self._names.public("object"), frame)
            data, self._long[version] = manifest.to_bytes(), manifest
        if version <= self.last:
            there = await self._link.get(self._names.increments, version)
            if there is not None and not self._ours(there.data, data):
                raise StateError(f"version {version} in the broker is not what its uploads lead to")
            return
        headers = {LAST: str(version - 1)}
        try:
            sequence = await self._link.publish(self._subject, data, headers=headers)
        except FencedError:
            there = await self._link.get(self._names.increments, version)
            if there is None or not self._ours(there.data, data):
                raise
            sequence = version  # it was ours: the acknowledgement got lost
        if sequence != version:
            raise FencedError(f"version {version} became message {sequence}: the stream is not ours")
        self.last = version
        self._since += len(frame)

    def _ours(self, there: bytes, data: bytes) -> bool:
        """Whether a stored message is ours; one that was damaged on its way is, and a snapshot must lead past
        it.
        """
        if there == data:
            return True
        with contextlib.suppress(FrameError):
            if is_manifest(there):
                Manifest.from_bytes(there)
            else:
                wire.decode(there)
            return False
        self.damaged = True
        return True

    async def snapshot(self, server: Server, *, asked: bool = False) -> bool:
        """Write a snapshot if one is due or asked for; let go of increments that nobody needs any more."""
        whole = server.hidden.snapshot_bytes(server.job.id)
        due = self._snapshot is None or (self._since >= whole and not server.job.replaces)
        asked, self.damaged = asked or self.damaged, False
        due = due or (asked and self._snapshot is not None and self._snapshot.version < server.version)
        if due:
            frame = wire.encode(server.hidden.snapshot(server.job.id))
            manifest = await objects.put(self._link, self._names.public("object"), frame)
            before = self._snapshot
            self._snapshot = Newest(server.version, server.hidden.digest, manifest)
            await self._key.write(self._snapshot.to_bytes())
            self._since = 0
            if self._older is not None and self._older.digest != manifest.digest:
                await objects.remove(self._link, self._names.public("object"), self._older)
            self._older = before.manifest if before and before.manifest.digest != manifest.digest else None
        await self._trim(server)
        return due

    async def _trim(self, server: Server) -> None:
        if self._snapshot is None:
            return
        needed = server.log.entries[0].version if server.log.entries else server.version
        if not server.job.replaces:
            needed = min(needed, self._snapshot.version + 1)
        if needed < self._first + 16:  # not worth a call
            return
        await self._link.purge(self._names.increments, below=needed)
        self._first = needed
        for version in [version for version in self._long if version < needed]:
            await objects.remove(self._link, self._names.public("object"), self._long.pop(version))
