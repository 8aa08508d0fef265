"""Leadership: one server at a time.

The leader renews a key in the broker, from a thread with a connection of its own, so that neither a long
step nor a long upload delays its sign of life. A standby takes over when the key has not changed for a while
by its own clock, so clocks need not agree. Each take-over is a new term, and the increments stream accepts
only messages of the newest term: the broker itself refuses a former leader, however late it wakes up.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable

from qafel.errors import BrokerError, ConfigError, FencedError, QafelError, StateError
from qafel.federation.connection import Connection
from qafel.federation.messages import TERM_BYTES

LEASE = 8.0
"""A standby takes over after this many seconds without a renewal."""
RENEW = 1.0
STUCK = 120.0
"""A server that has given no sign of life for this many seconds no longer renews its key."""
LAST = "Nats-Expected-Last-Subject-Sequence"


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
        message = await self._connection.newest(self._connection.subjects.keys, self._subject)
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
    """The right of one server to write; ``holder`` is the server's name for itself."""

    def __init__(
        self, connection: Connection, holder: str, connect: Callable[[], Awaitable[Connection]]
    ) -> None:
        self._key = FencedKey(connection, connection.subjects.private("leader"))
        self._connect = connect
        self.holder, self.term = holder, 0
        self.seen = False
        """Whether there was a leader when this server looked."""
        self.lost = asyncio.Event()
        """Set when another server has taken over."""
        self._alive = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def alive(self) -> None:
        """Note a sign of life of the server."""
        self._alive = time.monotonic()

    async def take(self, *, standby: bool, again: bool, waits: Callable[[], None]) -> int:
        """Become the leader and return the term.

        A ``standby`` waits until the leader is silent; another server gives up while there is one. A server
        that led before, or was restarted with its folder, takes its key back at once. ``waits`` is called
        when there is another leader.
        """
        await self.release()
        while True:
            value = await self._key.read()
            leader = value.decode(errors="replace") if value else None
            if again and leader not in (None, self.holder):
                raise FencedError("another server has taken over while the broker was away")
            if leader not in (None, self.holder) and not self.seen:
                self.seen = True
                waits()
            if standby and value is None and self.seen:
                raise self.no_copy()
            if leader not in (None, self.holder) and not await self._silent():
                if standby:
                    continue
                raise ConfigError(
                    f"another server leads the federation {self._key._connection.subjects.name!r}; "
                    "start this one as a standby to wait until it fails"
                )
            try:
                await self._key.write(self.holder.encode())
            except FencedError:
                await asyncio.sleep(0.1)  # another server was faster
                continue
            self.term = self._key.revision
            self._start()
            return self.term

    @staticmethod
    def no_copy() -> StateError:
        """The error of a standby whose broker has lost the federation."""
        return StateError(
            "the broker has lost this federation, and a standby has no copy of it; start the server that has "
            "its state folder, or start anew, not as a standby"
        )

    async def _silent(self) -> bool:
        """Watch the key for LEASE seconds; return whether its leader resigned or did not renew it."""
        revision, until = self._key.revision, time.monotonic() + LEASE
        while time.monotonic() < until:
            await asyncio.sleep(0.25)
            if await self._key.read() in (b"", None):
                return True
            if self._key.revision != revision:
                return False
        return True

    def _start(self) -> None:
        """Renew the key from a thread of its own from now on."""
        self.lost.clear()
        self.alive()
        self._stop = threading.Event()
        loop = asyncio.get_running_loop()

        def fenced() -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(self.lost.set)

        def work() -> None:
            with contextlib.suppress(QafelError, OSError):
                asyncio.run(self._renew(self._key.revision, self._stop, fenced))

        self._thread = threading.Thread(target=work, name="leadership", daemon=True)
        self._thread.start()

    async def _renew(self, revision: int, stop: threading.Event, fenced: Callable[[], None]) -> None:
        connection = None
        try:
            while not stop.is_set():
                try:
                    if connection is None:
                        connection = await self._connect()
                        key = FencedKey(connection, connection.subjects.private("leader"))
                        key.revision = revision
                    if time.monotonic() - self._alive < STUCK and not await self._renewed(key):
                        fenced()
                        return
                except BrokerError:
                    if connection is not None and connection.nc.is_closed:
                        connection = None
                await asyncio.to_thread(stop.wait, RENEW)
        finally:
            if connection is not None:
                await connection.close()

    async def _renewed(self, key: FencedKey) -> bool:
        """Renew the key; False if another server has it."""
        try:
            await key.write(self.holder.encode())
        except FencedError:
            return await key.read() == self.holder.encode()  # our own: an acknowledgement was lost
        return True

    async def release(self) -> None:
        """Stop renewing the key."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 15)
            self._thread = None

    async def resign(self) -> None:
        """Let another server take over at once."""
        await self.release()
        if await self._key.read() == self.holder.encode():
            await self._key.write(b"")
