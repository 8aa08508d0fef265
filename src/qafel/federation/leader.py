"""Leadership: one server at a time.

The leader renews a key in the broker; a standby takes over when the key has not changed for a while by its
own clock, so clocks need not agree. Each take-over is a new TERM, and the increments stream is told to take
messages of that term only: the broker itself refuses whoever led before, however late it wakes up.
"""

import asyncio
import secrets

from qafel.errors import FencedError
from qafel.federation.nats import Connection
from qafel.federation.register import Register

LEASE = 4.0
"""Seconds without a sign of life after which a standby takes over."""
RENEW = 1.0


class Leadership:
    """The right to write."""

    def __init__(self, link: Connection) -> None:
        self._key = Register(link, link.names.private("leader"))
        self.holder = secrets.token_hex(8)
        self.term = 0

    async def take(self, *, standby: bool, again: bool = False) -> int:
        """Become the leader, at once or (``standby``) when there is no sign of life of another; the term."""
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
                await asyncio.sleep(0.1)  # another one was faster

    async def _silent(self, leases: int) -> bool:
        """Whether the leader gives no sign of life for so long; longer where there is no key at all: a broker
        that was wiped is for the one who leads to rebuild.
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
        """A sign of life; FencedError where another server leads."""
        await self._key.write(self.holder.encode())

    async def resign(self) -> None:
        """Let a standby take over at once."""
        await self._key.write(b"")
