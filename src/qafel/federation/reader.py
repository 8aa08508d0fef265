"""The upload log, read in order, by sequence number, as fast as it grows.

It is a pull consumer without acknowledgements: the broker keeps no state that matters. If a message is
missing, or the broker is silent for a while, the consumer is recreated at the next sequence number.
"""

import asyncio
import contextlib
import json
import secrets
from collections import deque
from typing import Any

from qafel.errors import BrokerError, StateError
from qafel.federation.nats import Connection, Message
from qafel.federation.plan import Plan

BATCH = 256
EXPIRES = 5.0
HEARTBEAT = 1.0


async def open_log(connection: Connection, plan: Plan, sequence: int, frame_limit: int) -> None:
    """Open the upload log, which must continue after ``sequence``; StateError if uploads are missing."""
    subjects = connection.subjects
    config = {
        "subjects": [subjects.upload()],
        "max_msgs_per_subject": plan.max_pending,
        "discard": "new",
        "discard_new_per_subject": True,
        "duplicate_window": 120_000_000_000,
        "max_msg_size": min(connection.max_payload, frame_limit + 4096),
        "first_seq": sequence + 1,
        "allow_direct": True,
        "num_replicas": plan.replicas,
    }
    log = (await connection.ensure(subjects.uploads, config))["state"]
    if log["last_seq"] < sequence:  # the broker lost its log: continue our numbering
        await connection.purge(subjects.uploads, below=sequence + 1)
    elif log["first_seq"] > sequence + 1:
        raise StateError(
            f"the upload log starts at {log['first_seq']}, and the newest checkpoint ends at {sequence}: "
            "uploads are missing; start the federation under a new name"
        )


class Reader:
    """The messages of a stream after ``sequence``."""

    def __init__(self, connection: Connection, stream: str, sequence: int) -> None:
        self._connection, self._stream, self.sequence = connection, stream, sequence
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._consumer: str | None = None
        self._subscription: Any = None
        self._requested = 0
        """The number of messages requested from the broker that have not arrived."""
        self._last_heard = 0.0
        self._gap = False
        """Whether a sequence number was skipped."""
        self._reconnects = 0
        """The number of reconnections when the consumer was created."""

    async def next(self, wait: float) -> list[Message]:
        """The messages that have arrived; an empty list after ``wait`` seconds."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        while not self._messages:
            if self._gap:
                await self._look()
            if self._reconnects != self._connection.reconnects:  # the consumer may be gone
                await self.close()
            self._arrived.clear()
            await self._ask()
            left = min(until - clock(), HEARTBEAT)
            if left <= 0:
                return []
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)
            if clock() - self._last_heard > 3 * HEARTBEAT:
                await self.close()
        messages = list(self._messages)
        self._messages.clear()
        await self._ask()
        return messages

    async def _ask(self) -> None:
        """Request more messages before the last request is used up."""
        if self._consumer is None:
            await self._open()
        if self._requested < BATCH // 2:
            nanoseconds = 1_000_000_000
            request = {
                "batch": BATCH,
                "expires": int(EXPIRES * nanoseconds),
                "idle_heartbeat": int(HEARTBEAT * nanoseconds),
            }
            self._requested += BATCH
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            await self._connection.send(subject, json.dumps(request).encode(), self._inbox)

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
        self._inbox = f"{self._connection.inbox}.{name}"
        self._subscription = await self._connection.subscribe(self._inbox, self._take)
        subject = f"$JS.API.CONSUMER.CREATE.{self._stream}.{name}"
        try:
            await self._connection.call(subject, json.dumps(request).encode())
        except BrokerError:
            await self.close()
            raise
        self._consumer, self._requested, self._reconnects = name, 0, self._connection.reconnects
        self._last_heard = asyncio.get_running_loop().time()

    async def _take(self, message: Any) -> None:
        if not message.reply.startswith("$JS.ACK."):
            await self._status(message)
            return
        self._last_heard = asyncio.get_running_loop().time()
        sequence = message.metadata.sequence.stream
        self._requested -= 1
        if self._consumer is None or self._gap or sequence <= self.sequence:
            return
        if sequence != self.sequence + 1:
            self._gap = True
            self._arrived.set()
            return
        self.sequence = sequence
        self._messages.append(Message(sequence, message.subject, message.data))
        self._arrived.set()

    async def _status(self, message: Any) -> None:
        """Handle a heartbeat (100), the end of a request (408), or an error: the consumer is gone."""
        status = (message.headers or {}).get("Status")
        if status not in ("100", "408"):
            await self.close()
            await asyncio.sleep(0.1)
        else:
            self._last_heard = asyncio.get_running_loop().time()
        if status != "100":
            self._requested = 0
            self._arrived.set()

    async def _look(self) -> None:
        """Read a skipped message again; skip it only if the broker does not have it."""
        await self.close()
        missing = await self._connection.get(self._stream, self.sequence + 1)
        self._gap = False
        if missing is None:
            state = (await self._connection.call(f"$JS.API.STREAM.INFO.{self._stream}"))["state"]
            self.sequence = max(self.sequence + 1, state["first_seq"] - 1)

    async def close(self) -> None:
        """Drop the consumer; the next read creates a new one."""
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()
        self._subscription = self._consumer = None
        self._requested = 0
