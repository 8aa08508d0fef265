"""The connection to a NATS broker: the requests that a federation makes."""

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import msgspec

from qafel.errors import BrokerError, ConfigError, FencedError, one_line
from qafel.federation.keys.credentials import Key, credentials
from qafel.federation.nats import (
    CLOSED,
    NO_MESSAGE,
    NOT_FOUND,
    Message,
    checked,
    new_client,
    problems,
    refusal,
    stored_message,
)
from qafel.federation.subjects import Subjects, inbox
from qafel.federation.waiting import Backoff

PATIENCE = 10.0
"""The default time to wait for a broker that does not answer, in seconds."""
TIMEOUT = 5.0
OVERHEAD = 4096
"""No message has more bytes than this around its content."""
MAX_PAUSE = 10.0
"""The longest pause between two attempts to reconnect, in seconds."""
MIN_SPEED = 50_000
"""The timeout of a request allows for a connection of this many bytes per second."""
_OPTIONS = {
    "allow_reconnect": False,
    "connect_timeout": TIMEOUT,
    "max_reconnect_attempts": -1,
    "ping_interval": 5,
    "max_outstanding_pings": 3,
    "pending_size": 1 << 26,
}
Notice = Callable[..., None]
"""Called with the name of an event and its fields; level="task" marks what happens for every task."""
T = TypeVar("T")


def quiet(event: str, **fields: Any) -> None:
    """Report nothing."""
    del event, fields


class Connection:
    """The connection of the server or of a client to the broker of one federation."""

    def __init__(self, nc: Any, subjects: Subjects) -> None:
        self.nc, self.subjects, self.closing, self.last_error = nc, subjects, False, ""
        self._attempts = 0

    @classmethod
    async def open(
        cls,
        url: str,
        subjects: Subjects,
        who: int | str,
        *,
        key: Key | None = None,
        patience: float = PATIENCE,
        notice: Notice = quiet,
    ) -> "Connection":
        """Connect; retry a broker that does not answer for ``patience`` seconds."""
        one = cls(None, subjects)
        options = {
            "name": f"qafel {subjects.name} {who}",
            "inbox_prefix": inbox(who),
            **_OPTIONS,
            "reconnect_to_server_handler": one._next_server,
            **one._callbacks(url, notice),
            **credentials(url, key),
        }
        clock = asyncio.get_running_loop().time
        until, backoff = clock() + patience, Backoff(0.05, 1.0)
        while True:
            nc = new_client(url)
            try:
                left = max(TIMEOUT, until - clock())
                await asyncio.wait_for(nc.connect(url.split(","), **options), left)
                break
            except asyncio.CancelledError:
                await _give_up(nc)
                raise
            except Exception as error:
                await _give_up(nc)
                if isinstance(error, ConfigError):
                    raise
                problem = refusal(url, error, key is not None, one.last_error)
                if not problem.may_pass or clock() > until:
                    raise problem from error
            await backoff.pause()
        nc.options["allow_reconnect"] = True
        one.nc = nc
        return one

    def _callbacks(self, url: str, notice: Notice) -> dict[str, Any]:
        """The callbacks of nats-py: each new problem is reported once."""

        async def failed(error: Exception) -> None:
            before, self.last_error = self.last_error, one_line(error)
            if before != self.last_error and not self.closing:
                notice("broker", detail=self.last_error)

        async def lost() -> None:
            if self.nc is not None and not self.closing:
                notice("disconnected", detail=url)

        async def back() -> None:
            self.last_error, self._attempts = "", 0
            notice("reconnected", detail=url)

        return {"error_cb": failed, "disconnected_cb": lost, "reconnected_cb": back}

    def _next_server(self, servers: list[Any], info: dict[str, Any]) -> tuple[Any, float]:
        """Where and when to reconnect: all servers in turn, with pauses that grow and are jittered."""
        del info
        pause = min(MAX_PAUSE, 0.05 * 2**self._attempts) * random.uniform(0.5, 1)
        self._attempts = min(self._attempts + 1, 30)
        return servers[self._attempts % len(servers)], pause

    @property
    def inbox(self) -> str:
        """The prefix of this connection's reply subjects."""
        return str(self.nc._inbox_prefix.decode())

    @property
    def is_connected(self) -> bool:
        """Whether the broker can be reached now."""
        return bool(self.nc.is_connected)

    @property
    def reconnects(self) -> int:
        """The number of reconnections so far."""
        return int(self.nc.stats["reconnects"])

    @property
    def max_payload(self) -> int:
        """The largest message that the broker accepts, in bytes."""
        return int(self.nc.max_payload)

    @property
    def room(self) -> int:
        """The longest content of a message, beside the fields around it."""
        return self.max_payload - OVERHEAD

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; a broker that has gone away, or does not answer, is no error."""
        self.closing = True
        with contextlib.suppress(*problems()):
            await asyncio.wait_for(self.nc.close(), TIMEOUT)

    async def call(self, subject: str, request: bytes = b"") -> Any:
        """Call the JetStream API; return its answer or raise BrokerError."""
        return checked(await self.request(subject, request))

    async def request(
        self, subject: str, data: bytes, timeout: float = TIMEOUT, headers: dict[str, str] | None = None
    ) -> Any:
        """Send a message and wait for its answer."""
        if self.nc.is_closed:
            raise BrokerError(f"the broker closed the connection: {self.last_error}", CLOSED)
        timeout += len(data) / MIN_SPEED
        try:
            return await self.nc.request(subject, data, timeout=timeout, headers=headers)
        except problems() as error:
            raise BrokerError(f"no answer on {subject}: {one_line(error)}") from error

    async def send(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message without waiting for an answer."""
        try:
            await self.nc.publish(subject, data, reply=reply)
        except problems() as error:
            raise self._lost(error) from error

    async def subscribe(self, subject: str, callback: Callable[[Any], Awaitable[None]]) -> Any:
        """Subscribe to a subject."""
        try:
            return await self.nc.subscribe(subject, cb=callback, pending_bytes_limit=1 << 30)
        except problems() as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> BrokerError:
        return BrokerError(f"no broker: {one_line(error)}", CLOSED if self.nc.is_closed else 0)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> int:
        """Store a message and return its sequence number, once the broker has acknowledged it."""
        answer = checked(await self.request(subject, data, timeout, headers))
        if not isinstance(answer.get("seq"), int):
            raise BrokerError(f"the broker's acknowledgement cannot be read: {answer}")
        return int(answer["seq"])

    async def get(self, stream: str, sequence: int, timeout: float = TIMEOUT) -> Message | None:
        """A stored message by its sequence number."""
        request = json.dumps({"seq": sequence}).encode()
        return await self.find(f"$JS.API.DIRECT.GET.{stream}", request, timeout)

    async def last(self, stream: str, subject: str) -> Message | None:
        """The newest message of a subject."""
        return await self.find(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"")

    async def find(self, subject: str, request: bytes, timeout: float = TIMEOUT) -> Message | None:
        """A stored message, by a request to the broker's direct API."""
        return stored_message(await self.request(subject, request, timeout))

    async def newest(self, stream: str, subject: str) -> Message | None:
        """The newest message of a subject, read from the stream's leader, not from a replica."""
        return await self.from_leader(stream, {"last_by_subj": subject})

    async def stored(self, stream: str, sequence: int) -> Message | None:
        """A message by its sequence number; None only if the stream's leader does not have it."""
        if not sequence:
            return None
        return await self.get(stream, sequence) or await self.from_leader(stream, {"seq": sequence})

    async def from_leader(self, stream: str, request: dict[str, Any]) -> Message | None:
        """A stored message, by a request to the stream's leader."""
        try:
            answer = await self.call(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps(request).encode())
            stored = answer["message"]
            return Message(int(stored["seq"]), stored["subject"], base64.b64decode(stored.get("data") or ""))
        except BrokerError as error:
            if error.code in (NO_MESSAGE, NOT_FOUND):
                return None
            raise
        except (KeyError, ValueError, TypeError) as error:
            raise BrokerError(f"the broker's answer cannot be read: {one_line(error)}") from error

    async def stream(self, name: str) -> Any | None:
        """The ``config`` and ``state`` of a stream, or None if it does not exist."""
        try:
            return await self.call(f"$JS.API.STREAM.INFO.{name}")
        except BrokerError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def ensure(self, name: str, config: dict[str, Any]) -> Any:
        """Create a stream, or update its configuration; an existing stream keeps its messages."""
        request = msgspec.json.encode({"name": name, "storage": "file", "retention": "limits", **config})
        info = await self.stream(name)
        if info is None:
            return await self.call(f"$JS.API.STREAM.CREATE.{name}", request)
        same = all(info["config"].get(key) == value for key, value in config.items() if key != "first_seq")
        return info if same else await self.call(f"$JS.API.STREAM.UPDATE.{name}", request)

    async def delete(self, stream: str) -> None:
        """Delete a stream, if it exists."""
        try:
            await self.call(f"$JS.API.STREAM.DELETE.{stream}")
        except BrokerError as error:
            if error.code != NOT_FOUND:
                raise

    async def purge(self, stream: str, *, below: int | None = None, subject: str | None = None) -> None:
        """Remove messages below a sequence number, or of a subject, or both."""
        request: dict[str, Any] = {} if below is None else {"seq": below}
        if subject is not None:
            request["filter"] = subject
        await self.call(f"$JS.API.STREAM.PURGE.{stream}", json.dumps(request).encode())


async def retry(
    action: Callable[[], Awaitable[T]],
    notice: Callable[[BrokerError], None] = lambda error: None,  # noqa: ARG005
) -> T:
    """Retry an action, with back-off and jitter, while the broker is away; ``notice`` is called once."""
    backoff, noticed = Backoff(0.05, 5.0), False
    while True:
        try:
            return await action()
        except FencedError:
            raise
        except BrokerError as error:
            if error.code == CLOSED:
                raise
            if not noticed and backoff.seconds > 0.5:
                notice(error)
                noticed = True
        await backoff.pause()


async def _give_up(nc: Any) -> None:
    """Close the socket of a failed connection attempt, which nats-py leaves open."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(nc.close(), 1.0)
