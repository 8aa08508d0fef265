"""A key in the broker that is only overwritten by whoever saw its last value."""

from qafel.errors import FencedError
from qafel.federation.link import Link

LAST = "Nats-Expected-Last-Subject-Sequence"


class Register:
    """One key."""

    def __init__(self, link: Link, subject: str) -> None:
        self._link, self._subject = link, subject
        self.revision = 0

    async def read(self) -> bytes | None:
        """The value, or None."""
        message = await self._link.last(self._link.names.objects, self._subject)
        self.revision = message.sequence if message else 0
        return message.data if message else None

    async def write(self, data: bytes) -> None:
        """Overwrite the value that was read or written last; FencedError where somebody else has."""
        headers = {LAST: str(self.revision)}
        self.revision = await self._link.publish(self._subject, data, headers=headers)

    async def claim(self, data: bytes) -> None:
        """Overwrite whatever is there: from now on, whoever wrote before is refused."""
        while True:
            try:
                return await self.write(data)
            except FencedError:
                await self.read()
