"""Leadership: one server at a time.

The leader renews a key in the broker. A standby takes over when the key has not changed for a while by its
own clock, so clocks need not agree. Each take-over is a new term, and the increments stream accepts only
messages of the newest term: the broker itself refuses a former leader, however late it wakes up.
"""

import asyncio
import secrets

from qafel.errors import FencedError
from qafel.federation.nats import Connection

LEASE = 4.0
"""A standby takes over after this many seconds without a renewal."""
RENEW = 1.0
LAST = "Nats-Expected-Last-Subject-Sequence"
TERM_BYTES = 8


class FencedKey:
    """A key in the broker that only the newest leader overwrites, and only what it has read.

    The value carries the term of its writer. A new leader writes the value again in its own term; from then
    on the former leader is refused.
    """

    def __init__(self, connection: Connection, subject: str, term: int = 0) -> None:
        self._connection, self._subject, self.term = connection, subject, term
        self.revision = 0

    async def read(self) -> bytes | None:
        """The value, or None; FencedError if a newer leader wrote it."""
        message = await self._connection.decided(self._connection.subjects.objects, self._subject)
        self.revision = message.sequence if message else 0
        if message is None:
            return None
        if self.term and int.from_bytes(message.data[:TERM_BYTES], "big") > self.term:
            raise FencedError("another server has taken over")
        return message.data[TERM_BYTES:]

    async def write(self, data: bytes) -> None:
        """Overwrite the value that was read or written last; FencedError if it has changed since."""
        value = self.term.to_bytes(TERM_BYTES, "big") + data
        headers = {LAST: str(self.revision)}
        self.revision = await self._connection.publish(self._subject, value, headers=headers)

    async def take_over(self) -> bytes:
        """Write the value again in this term and return it; empty if there was none."""
        while True:
            data = await self.read() or b""
            try:
                await self.write(data)
            except FencedError:
                continue  # it has changed since it was read
            return data


class Leadership:
    """The right of one server to write."""

    def __init__(self, connection: Connection) -> None:
        self._key = FencedKey(connection, connection.subjects.private("leader"))
        self.holder = secrets.token_hex(8)
        self.term = 0

    async def take(self, *, standby: bool, again: bool = False) -> int:
        """Become the leader and return the term; a ``standby`` first waits until the leader is silent."""
        while True:
            holder = await self._key.read()
            if again and holder and holder.decode() != self.holder:
                raise FencedError("another server has taken over while the broker was away")
            if standby and holder != b"" and not await self._silent(4 if holder is None else 1):
                continue
            try:
                await self._key.write(self.holder.encode())
                self.term = self._key.revision
                return self.term
            except FencedError:
                await asyncio.sleep(0.1)  # another server was faster

    async def _silent(self, leases: int) -> bool:
        """Whether the leader does not renew the key for this many leases.

        A standby waits longer where there is no key: the leader rebuilds a broker that lost its store.
        """
        revision = self._key.revision
        for _ in range(int(leases * LEASE / 0.25)):
            await asyncio.sleep(0.25)
            if await self._key.read() == b"":
                return True
            if self._key.revision != revision:
                return False
        return True

    async def renew(self) -> None:
        """Renew the key; FencedError if another server leads."""
        await self._key.write(self.holder.encode())

    async def resign(self) -> None:
        """Let a standby take over at once."""
        await self._key.write(b"")
