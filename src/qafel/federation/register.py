"""A key in the broker that only the newest leader overwrites, and only if nobody did in the meantime.

The value carries the term of whoever wrote it. A new leader writes what it found again, in its own term: from
then on, whoever wrote before is refused.
"""

from qafel.errors import FencedError
from qafel.federation.nats import Connection

LAST = "Nats-Expected-Last-Subject-Sequence"
TERM = 8
"""Bytes of the term before the value."""


class Register:
    """One key."""

    def __init__(self, link: Connection, subject: str, term: int = 0) -> None:
        self._link, self._subject, self.term = link, subject, term
        self.revision = 0

    async def read(self) -> bytes | None:
        """The value, or None; FencedError where a newer leader wrote it."""
        message = await self._link.decided(self._link.names.objects, self._subject)
        self.revision = message.sequence if message else 0
        if message is None:
            return None
        if self.term and int.from_bytes(message.data[:TERM], "big") > self.term:
            raise FencedError("another server has taken over")
        return message.data[TERM:]

    async def write(self, data: bytes) -> None:
        """Overwrite the value that was read or written last; FencedError where somebody else has."""
        headers = {LAST: str(self.revision)}
        value = self.term.to_bytes(TERM, "big") + data
        self.revision = await self._link.publish(self._subject, value, headers=headers)

    async def take_over(self) -> bytes:
        """The value, written again in our own term; empty where there is none."""
        while True:
            data = await self.read() or b""
            try:
                await self.write(data)
            except FencedError:
                continue  # it has changed since we read it
            return data
