"""Checkpoints: in the broker, where a standby finds them, and in the server's folder, should the broker be
lost. The new one is there and acknowledged before the pointer moves; the one before it is kept.
"""

import contextlib

import msgspec

from qafel import wire
from qafel.errors import FrameError
from qafel.federation import objects
from qafel.federation.nats import Connection
from qafel.federation.objects import Manifest
from qafel.federation.register import Register
from qafel.runs.folder import RunFolder

MAGIC = b"QK"
FORMAT = 1


class Pointer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest checkpoint, and the one before it."""

    newest: Manifest
    before: Manifest | None


class Checkpoints:
    """Those of one federation."""

    def __init__(self, link: Connection, folder: RunFolder) -> None:
        self._link, self._folder = link, folder
        self._root = link.names.private("object")
        self.key = Register(link, link.names.private("checkpoint"))
        self._pointer: Pointer | None = None

    async def lead(self, term: int) -> None:
        """From now on only we write checkpoints: whoever led before is refused."""
        self.key.term = term
        self._read(await self.key.take_over())

    def _read(self, sealed: bytes | None) -> None:
        self._pointer = None
        with contextlib.suppress(FrameError):
            if sealed:
                self._pointer = wire.unpack(
                    wire.unseal(MAGIC, FORMAT, sealed), msgspec.msgpack.Decoder(Pointer)
                )

    @property
    def objects(self) -> set[str]:
        """The digests of what is needed of ``private.object``."""
        if self._pointer is None:
            return set()
        return {m.digest for m in (self._pointer.newest, self._pointer.before) if m is not None}

    async def load(self, limit: int) -> list[bytes]:
        """What can be continued from, the best first."""
        found: list[bytes] = []
        if not self.key.term:
            self._read(await self.key.read())
        if self._pointer is not None:
            for manifest in (self._pointer.newest, self._pointer.before):
                if manifest is not None:
                    with contextlib.suppress(FrameError):
                        found.append(await objects.get(self._link, self._root, manifest, limit))
        cached = self._folder.checkpoint()
        return [*found, cached] if cached is not None else found

    async def save(self, data: bytes) -> None:
        """Write a checkpoint: durable when this returns."""
        before = self._pointer
        manifest = await objects.put(self._link, self._root, data)
        if before is not None and before.newest.digest == manifest.digest:
            return
        pointer = Pointer(manifest, before.newest if before else None)
        sealed = wire.seal(MAGIC, FORMAT, msgspec.msgpack.encode(pointer))
        await self.key.write(sealed)
        self._pointer = pointer
        self._folder.save(data)
        kept = {pointer.newest.digest, pointer.before.digest if pointer.before else ""}
        if before is not None and before.before is not None and before.before.digest not in kept:
            await objects.remove(self._link, self._root, before.before)
