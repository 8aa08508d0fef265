"""Reading the upload log in order, by sequence number, as fast as it grows.

A pull consumer without acknowledgements: the broker keeps no state for us that matters. Where a message is
missing, or the broker says nothing for a while, the consumer is made anew from the next sequence number.
"""

import asyncio
import contextlib
import json
import secrets
from collections import deque
from typing import Any

from qafel.errors import BrokerError
from qafel.federation.nats import Connection, Message

BATCH = 256
EXPIRES = 5.0
HEARTBEAT = 1.0


class Reader:
    """Messages of a stream after ``sequence``."""

    def __init__(self, link: Connection, stream: str, sequence: int) -> None:
        self._link, self._stream, self.sequence = link, stream, sequence
        self._found: deque[Message] = deque()
        self._news = asyncio.Event()
        self._consumer: str | None = None
        self._subscription: Any = None
        self._wanted = 0
        """Messages that the broker still owes us."""
        self._heard = 0.0
        self._hole = False
        """Whether a message did not arrive."""
        self._over = 0
        """The connection that the consumer was made over."""

    async def next(self, wait: float) -> list[Message]:
        """What has arrived; after ``wait`` seconds perhaps nothing."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        while not self._found:
            if self._hole:
                await self._look()
            if self._over != self._link.reconnects:  # the consumer may be gone with the old connection
                await self.close()
            self._news.clear()
            await self._ask()
            left = min(until - clock(), HEARTBEAT)
            if left <= 0:
                return []
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
            if clock() - self._heard > 3 * HEARTBEAT:
                await self.close()
        messages = list(self._found)
        self._found.clear()
        await self._ask()
        return messages

    async def _ask(self) -> None:
        """Keep the broker busy: ask for more before it has run out."""
        if self._consumer is None:
            await self._open()
        if self._wanted < BATCH // 2:
            nanoseconds = 1_000_000_000
            request = {
                "batch": BATCH,
                "expires": int(EXPIRES * nanoseconds),
                "idle_heartbeat": int(HEARTBEAT * nanoseconds),
            }
            self._wanted += BATCH
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            await self._link.send(subject, json.dumps(request).encode(), self._inbox)

    async def _open(self) -> None:
        name = f"reader-{secrets.token_hex(6)}"
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.sequence + 1,
            "ack_policy": "none",
            "max_deliver": -1,
            "replay_policy": "instant",
            "inactive_threshold": 300_000_000_000,
            "num_replicas": 1,
            "mem_storage": True,
        }
        request = {"stream_name": self._stream, "config": config, "action": "create"}
        self._inbox = f"{self._link.nc._inbox_prefix.decode()}.{name}"
        self._subscription = await self._link.listen(self._inbox, self._take)
        subject = f"$JS.API.CONSUMER.CREATE.{self._stream}.{name}"
        try:
            await self._link.call(subject, json.dumps(request).encode())
        except BrokerError:
            await self.close()
            raise
        self._consumer, self._wanted, self._over = name, 0, self._link.reconnects
        self._heard = asyncio.get_running_loop().time()

    async def _take(self, message: Any) -> None:
        if not message.reply.startswith("$JS.ACK."):
            await self._status(message)
            return
        self._heard = asyncio.get_running_loop().time()
        sequence = message.metadata.sequence.stream
        self._wanted -= 1
        if self._consumer is None or self._hole or sequence <= self.sequence:
            return
        if sequence != self.sequence + 1:
            self._hole = True
            self._news.set()
            return
        self.sequence = sequence
        self._found.append(Message(sequence, message.subject, message.data))
        self._news.set()

    async def _status(self, message: Any) -> None:
        """A heartbeat (100), the end of a request (408), or bad news: the consumer is gone."""
        status = (message.headers or {}).get("Status")
        if status not in ("100", "408"):
            await self.close()
            await asyncio.sleep(0.1)
        else:
            self._heard = asyncio.get_running_loop().time()
        if status != "100":
            self._wanted = 0
            self._news.set()

    async def _look(self) -> None:
        """A message is missing: read it again; go on behind it only where the broker does not have it."""
        await self.close()
        missing = await self._link.get(self._stream, self.sequence + 1)
        self._hole = False
        if missing is None:
            state = (await self._link.call(f"$JS.API.STREAM.INFO.{self._stream}"))["state"]
            self.sequence = max(self.sequence + 1, state["first_seq"] - 1)

    async def close(self) -> None:
        """Let the consumer go; the next read makes a new one."""
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()
        self._subscription = self._consumer = None
        self._wanted = 0
