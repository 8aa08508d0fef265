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
from qafel.federation.link import Link, Message
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


class Outlet:
    """The increments and snapshots of one server, in its term."""

    def __init__(self, link: Link, term: int) -> None:
        self._link, self._term, self._names = link, term, link.names
        self.last = 0
        """The last version in the stream."""
        self._first = 1
        self._snapshot: Newest | None = None
        self._since = 0
        """Bytes of increments since the newest snapshot."""
        self._long: dict[int, Manifest] = {}
        self._key = Register(link, link.names.public("snapshot"))
        self.damaged = False
        """Whether an increment was damaged on its way into the broker."""

    async def open(self, replicas: int, version: int) -> None:
        """The stream of increments, for this term; one that is lost or behind begins after ``version``."""
        names = self._names
        config = {
            "subjects": [names.increment(self._term)],
            "allow_direct": True,
            "republish": {"src": names.increment(self._term), "dest": names.live},
            "num_replicas": replicas,
            "first_seq": version + 1,
        }
        state = (await self._link.ensure(names.increments, config))["state"]
        if state["last_seq"] < version:
            await self._link.purge(names.increments, below=version + 1)
            state = (await self._link.stream(names.increments) or {"state": state})["state"]
        self.last, self._first = state["last_seq"], max(1, state["first_seq"])
        with contextlib.suppress(FrameError):
            if data := await self._key.read():
                self._snapshot = Newest.from_bytes(data)
                await self._key.claim(data)
        if self._snapshot is not None and self._snapshot.version > max(version, self.last):
            self._snapshot = None  # of a past that this server does not know

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
        if len(frame) > self._link.max_payload - 4096:
            manifest = await objects.put(self._link, self._names.public("object"), frame)
            data, self._long[version] = manifest.to_bytes(), manifest
        if version <= self.last:
            there = await self._link.get(self._names.increments, version)
            if there is not None and not self._ours(there.data, data):
                raise StateError(f"version {version} in the broker is not what its uploads lead to")
            return
        headers = {LAST: str(version - 1)}
        try:
            sequence = await self._link.publish(self._names.increment(self._term), data, headers=headers)
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
            if before is not None and before.manifest.digest != manifest.digest:
                await objects.remove(self._link, self._names.public("object"), before.manifest)
        await self._trim(server)
        return due

    async def _trim(self, server: Server) -> None:
        if self._snapshot is None or not server.log.entries:
            return
        needed = server.log.entries[0].version
        if not server.job.replaces:
            needed = min(needed, self._snapshot.version + 1)
        if needed < self._first + 16:  # not worth a call
            return
        await self._link.purge(self._names.increments, below=needed)
        self._first = needed
        for version in [version for version in self._long if version < needed]:
            await objects.remove(self._link, self._names.public("object"), self._long.pop(version))
