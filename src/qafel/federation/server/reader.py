"""Streams read as they grow: the log, in order, by sequence number; and the requests of clients.

The log has a pull consumer without acknowledgements: the broker keeps no state that matters. If an entry is
missing, or the broker is silent for a while, the consumer is recreated at the next sequence number. A request
is removed when it was answered; until then, the broker refuses another one of the same client.
"""

import abc
import asyncio
import contextlib
import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from qafel.errors import BrokerError, FrameError
from qafel.federation.connection import Connection
from qafel.federation.entries import Decision, Skip
from qafel.federation.nats import Message

BATCH = 256
EXPIRES = 5.0
HEARTBEAT = 1.0
NANOSECONDS = 1_000_000_000


class Pull(abc.ABC):
    """A pull consumer that keeps its requests for messages open."""

    def __init__(self, connection: Connection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        self._consumer: str | None = None
        self._subscription: Any = None
        self._requested = 0
        """The number of messages requested from the broker that have not arrived."""
        self._last_heard = 0.0
        self.arrived = asyncio.Event()

    @abc.abstractmethod
    def _config(self) -> dict[str, Any]:
        """The configuration of the consumer."""

    @abc.abstractmethod
    def _message(self, message: Any) -> None:
        """Take a message."""

    async def request(self) -> None:
        """Request more messages before the last request is used up; start anew if the broker is silent."""
        clock = asyncio.get_running_loop().time
        if self._consumer is not None and clock() - self._last_heard > 3 * HEARTBEAT:
            await self.close()
        if self._consumer is None:
            await self._open()
        if self._requested < BATCH // 2:
            request = {
                "batch": BATCH,
                "expires": int(EXPIRES * NANOSECONDS),
                "idle_heartbeat": int(HEARTBEAT * NANOSECONDS),
            }
            self._requested += BATCH
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            await self._connection.send(subject, json.dumps(request).encode(), self._inbox)

    async def _open(self) -> None:
        config = self._config()
        name = config["name"]
        request = {"stream_name": self._stream, "config": config, "action": ""}
        self._inbox = f"{self._connection.inbox}.{name}-{secrets.token_hex(4)}"
        self._subscription = await self._connection.subscribe(self._inbox, self._take)
        subject = f"$JS.API.CONSUMER.CREATE.{self._stream}.{name}"
        try:
            await self._connection.call(subject, json.dumps(request).encode())
        except BrokerError:
            await self.close()
            raise
        self._consumer, self._requested = name, 0
        self._last_heard = asyncio.get_running_loop().time()

    async def _take(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._last_heard = asyncio.get_running_loop().time()
            self._requested -= 1
            self._message(message)
            return
        status = (message.headers or {}).get("Status")
        if status in ("100", "408"):  # a heartbeat, the end of a request
            self._last_heard = asyncio.get_running_loop().time()
        if status != "100":
            self._requested = 0
            self.arrived.set()
        if status not in ("100", "408"):  # the consumer is gone; nats-py cancels this task
            await self.close()

    async def close(self) -> None:
        """Drop the consumer; the next request creates a new one."""
        subscription, self._subscription, self._consumer = self._subscription, None, None
        self._requested = 0
        if subscription is not None:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()


class LogReader(Pull):
    """The entries of the log, or of another stream, after ``sequence``."""

    def __init__(self, connection: Connection, sequence: int, stream: str | None = None) -> None:
        super().__init__(connection, stream or connection.subjects.log)
        self.sequence = sequence
        self._messages: deque[Message] = deque()
        self._gap = False
        """Whether a sequence number was skipped."""
        self.behind = True
        """Whether the log had more entries when the last one arrived."""

    def _config(self) -> dict[str, Any]:
        return {
            "name": f"reader-{secrets.token_hex(6)}",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.sequence + 1,
            "ack_policy": "none",
            "max_deliver": -1,
            "replay_policy": "instant",
            "inactive_threshold": 60 * NANOSECONDS,
            "num_replicas": 1,
            "mem_storage": True,
        }

    async def next(self, wait: float) -> list[Message]:
        """The entries that have arrived; an empty list after ``wait`` seconds."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        while not self._messages:
            if self._gap:
                await self._look()
            self.arrived.clear()
            await self.request()
            left = min(until - clock(), HEARTBEAT)
            if left <= 0:
                self.behind = False
                return []
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.arrived.wait(), left)
        messages = list(self._messages)
        self._messages.clear()
        await self.request()
        return messages

    def _message(self, message: Any) -> None:
        sequence, pending = _numbers(message.reply)
        if self._consumer is None or self._gap or sequence <= self.sequence:
            return
        if sequence != self.sequence + 1:
            self._gap = True
        else:
            self.sequence, self.behind = sequence, pending > 0
            self._messages.append(Message(sequence, message.subject, message.data))
        self.arrived.set()

    async def _look(self) -> None:
        """Read a skipped entry again; skip it only if the stream's leader does not have it."""
        await self.close()
        missing = await self._connection.stored(self._stream, self.sequence + 1)
        self._gap = False
        if missing is None:
            state = (await self._connection.call(f"$JS.API.STREAM.INFO.{self._stream}"))["state"]
            self.sequence = max(self.sequence + 1, state["first_seq"] - 1)


def _numbers(reply: str) -> tuple[int, int]:
    """The sequence number of a delivered message, and how many follow, from the subject to acknowledge it.

    $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.….TIME.PENDING; newer brokers put DOMAIN.ACCOUNT before STREAM.
    """
    parts = reply.split(".")
    first = 5 if len(parts) < 11 else 7
    return int(parts[first]), int(parts[first + 3])


class Requests(Pull):
    """The requests of clients: ``take(subject, data)`` is called with each, then ``answer()``."""

    def __init__(
        self,
        connection: Connection,
        take: Callable[[str, bytes], None],
        answer: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(connection, connection.subjects.asks)
        self._take_request, self._answer = take, answer
        self._answered: list[str] = []

    def _config(self) -> dict[str, Any]:
        return {
            "name": "server",
            "durable_name": "server",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": 30 * NANOSECONDS,
            "max_ack_pending": 1 << 20,
            "replay_policy": "instant",
        }

    async def _open(self) -> None:
        """Start anew: requests that a former server was given and did not remove are delivered again."""
        try:
            await self._connection.call(f"$JS.API.CONSUMER.DELETE.{self._stream}.server")
        except BrokerError as error:
            if not error.code:
                raise
        await super()._open()

    def _message(self, message: Any) -> None:
        self._take_request(message.subject, message.data)
        self._answered.append(message.reply)
        self.arrived.set()

    async def work(self) -> None:
        """Hand over requests as they arrive, until this is cancelled."""
        while True:
            self.arrived.clear()
            await self.request()
            answered, self._answered = self._answered, []
            for reply in answered:
                await self._connection.send(reply, b"+ACK")
            if answered:
                await self._answer()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.arrived.wait(), HEARTBEAT)


async def find_skips(connection: Connection, sequence: int) -> set[int]:
    """The entries after ``sequence`` that operators want skipped: their decisions come later in the log."""
    subjects, skips = connection.subjects, set[int]()
    while True:
        request = {"seq": sequence + 1, "next_by_subj": subjects.entry("operator")}
        message = await connection.from_leader(subjects.log, request)
        if message is None:
            return skips
        sequence = message.sequence
        with contextlib.suppress(FrameError):
            decision = Decision.from_bytes(message.data).decision
            if isinstance(decision, Skip):
                skips.add(decision.sequence)
