"""What a newcomer is told: the job, in the bytes of its id, and the server's plan as TOML."""

from collections.abc import Callable

import msgspec

from qafel import wire
from qafel.errors import BrokerError, FrameError
from qafel.federation.nats import Connection, patiently

MAGIC = b"QT"
FORMAT = 1


class Terms(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The welcome."""

    job: bytes
    plan: str

    def to_bytes(self) -> bytes:
        """What stands under the key."""
        return wire.seal(MAGIC, FORMAT, msgspec.msgpack.encode(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Terms":
        """The inverse, or FrameError."""
        return wire.unpack(wire.unseal(MAGIC, FORMAT, data), msgspec.msgpack.Decoder(cls))


async def read(link: Connection, said: Callable[[BrokerError], None]) -> Terms:
    """What the federation is about; waits for its server to say so."""
    names = link.names

    async def look() -> Terms:
        try:
            message = await link.last(names.objects, names.public("welcome"))
        except BrokerError as error:
            raise BrokerError(f"the federation {names.name!r} does not answer: {error}") from error
        if message is None:
            raise BrokerError(f"the federation {names.name!r} has not been started")
        try:
            return Terms.from_bytes(message.data)
        except FrameError as error:
            raise BrokerError(f"a damaged welcome: {error}") from error

    told: Terms = await patiently(look, said)
    return told
