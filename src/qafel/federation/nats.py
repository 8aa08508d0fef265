"""A connection to the broker: the few things the federation asks of NATS, and one sentence for what fails."""

import asyncio
import base64
import contextlib
import json
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from qafel.errors import BrokerError, ConfigError, FencedError, MissingExtraError
from qafel.federation.subjects import Subjects, inbox

PATIENCE = 10.0
"""Seconds to wait for a broker that does not answer at first."""
TIMEOUT = 5.0
WRONG_LAST = (10071, 10164)
NOT_FOUND, NO_MESSAGE = 10059, 10037
CLOSED = -1
"""The code of an error after which the connection does not come back."""
SLOWEST = 50_000
"""Bytes a second that a connection makes at least."""
Notice = Callable[[str, str], None]
T = TypeVar("T")


class Message(NamedTuple):
    """A stored message."""

    sequence: int
    subject: str
    data: bytes


class Connection:
    """A connection of the server or a client of one federation."""

    def __init__(self, nc: Any, names: Subjects) -> None:
        self.nc, self.names, self.closing, self.last_error = nc, names, False, ""

    @classmethod
    async def open(
        cls,
        url: str,
        names: Subjects,
        who: int | str,
        *,
        keys: Path | None = None,
        patience: float = PATIENCE,
        notice: Notice = lambda kind, detail: None,  # noqa: ARG005
    ) -> "Connection":
        """Connect; a broker that does not answer is tried again for ``patience`` seconds."""
        try:
            import nats.aio.client  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("a federation", "federation") from error

        link = cls(None, names)

        async def failed(error: Exception) -> None:
            said, link.last_error = link.last_error, sentence(error)
            if said != link.last_error:
                notice("broker", link.last_error)

        async def lost() -> None:
            if link.nc is not None and not link.closing:
                notice("disconnected", url)

        async def back() -> None:
            link.last_error = ""
            notice("reconnected", url)

        options = {
            "name": f"qafel {names.name} {who}",
            "inbox_prefix": inbox(who),
            "allow_reconnect": False,
            "connect_timeout": TIMEOUT,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": random.uniform(0.1, 0.5),
            "ping_interval": 5,
            "max_outstanding_pings": 3,
            "error_cb": failed,
            "disconnected_cb": lost,
            "reconnected_cb": back,
            "pending_size": 1 << 26,
            **credentials(url, keys),
        }
        until = asyncio.get_running_loop().time() + patience
        wait = 0.05
        while True:
            nc = _connection()
            try:
                left = max(TIMEOUT, until - asyncio.get_running_loop().time())
                await asyncio.wait_for(nc.connect(url.split(","), **options), left)
                break
            except Exception as error:
                await _give_up(nc)
                if not _may_pass(error) or asyncio.get_running_loop().time() > until:
                    raise refusal(url, error, keys, link.last_error) from error
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, 1.0)
        nc.options["allow_reconnect"] = True
        link.nc = nc
        return link

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and found again."""
        return int(self.nc.stats["reconnects"])

    @property
    def max_payload(self) -> int:
        """Bytes that fit into one message."""
        return int(self.nc.max_payload)

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye."""
        self.closing = True
        await self.nc.close()

    async def call(self, subject: str, request: bytes = b"", timeout: float = TIMEOUT) -> Any:
        """A JetStream API call: what it answers, or BrokerError."""
        return _checked(await self.request(subject, request, timeout))

    async def request(
        self, subject: str, data: bytes, timeout: float = TIMEOUT, headers: dict[str, str] | None = None
    ) -> Any:
        """A message and its answer."""
        import nats.errors

        if self.nc.is_closed:
            raise BrokerError(f"the broker has closed the connection: {self.last_error}", CLOSED)
        timeout += len(data) / SLOWEST
        try:
            return await self.nc.request(subject, data, timeout=timeout, headers=headers)
        except nats.errors.NoRespondersError:
            raise BrokerError(f"nobody answers on {subject}") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BrokerError(f"no answer on {subject}: {sentence(error)}") from error

    async def send(self, subject: str, data: bytes, reply: str = "") -> None:
        """A message without an answer, or whose answers arrive elsewhere."""
        import nats.errors

        try:
            await self.nc.publish(subject, data, reply=reply)
        except (nats.errors.Error, OSError) as error:
            raise self._lost(error) from error

    async def listen(self, subject: str, heard: Callable[[Any], Awaitable[None]]) -> Any:
        """A subscription."""
        import nats.errors

        try:
            return await self.nc.subscribe(subject, cb=heard, pending_bytes_limit=1 << 30)
        except (nats.errors.Error, OSError) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> BrokerError:
        """An error of nats-py as one of ours."""
        return BrokerError(f"no broker: {sentence(error)}", CLOSED if self.nc.is_closed else 0)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> int:
        """Store a message: its sequence number, once the broker has acknowledged it."""
        answer = _checked(await self.request(subject, data, timeout, headers))
        if not isinstance(answer.get("seq"), int):
            raise BrokerError(f"an acknowledgement that cannot be read: {answer}")
        return int(answer["seq"])

    async def get(self, stream: str, sequence: int, timeout: float = TIMEOUT) -> Message | None:
        """A stored message by its sequence number."""
        asked = json.dumps({"seq": sequence}).encode()
        return await self.find(f"$JS.API.DIRECT.GET.{stream}", asked, timeout)

    async def last(self, stream: str, subject: str, timeout: float = TIMEOUT) -> Message | None:
        """The newest message of a subject."""
        return await self.find(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout)

    async def find(self, subject: str, request: bytes, timeout: float = TIMEOUT) -> Message | None:
        """A stored message, by a request of the broker's direct API."""
        return _stored(await self.request(subject, request, timeout))

    async def decided(self, stream: str, subject: str) -> Message | None:
        """The newest message of a subject as the stream's leader knows it, not just any replica."""
        request = json.dumps({"last_by_subj": subject}).encode()
        try:
            found = (await self.call(f"$JS.API.STREAM.MSG.GET.{stream}", request))["message"]
            return Message(int(found["seq"]), found["subject"], base64.b64decode(found.get("data") or ""))
        except BrokerError as error:
            if error.code == NO_MESSAGE:
                return None
            raise
        except (KeyError, ValueError, TypeError) as error:
            raise BrokerError(f"an answer that cannot be read: {sentence(error)}") from error

    async def stream(self, name: str) -> Any | None:
        """What the broker says of a stream: ``config`` and ``state``; None where there is none."""
        try:
            return await self.call(f"$JS.API.STREAM.INFO.{name}")
        except BrokerError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def ensure(self, name: str, config: dict[str, Any]) -> Any:
        """A stream that exists and is configured like this; one that exists keeps what it holds."""
        request = msgspec.json.encode({"name": name, "storage": "file", "retention": "limits", **config})
        found = await self.stream(name)
        if found is None:
            return await self.call(f"$JS.API.STREAM.CREATE.{name}", request)
        same = all(found["config"].get(key) == value for key, value in config.items() if key != "first_seq")
        return found if same else await self.call(f"$JS.API.STREAM.UPDATE.{name}", request)

    async def purge(self, stream: str, *, below: int | None = None, subject: str | None = None) -> None:
        """Remove messages below a sequence number, or of a subject."""
        request: dict[str, Any] = {} if below is None else {"seq": below}
        if subject is not None:
            request["filter"] = subject
        await self.call(f"$JS.API.STREAM.PURGE.{stream}", json.dumps(request).encode())


async def patiently(
    action: Callable[[], Awaitable[T]],
    said: Callable[[BrokerError], None] = lambda error: None,  # noqa: ARG005
) -> T:
    """Try again, with back-off and jitter, while the broker is away; what is wrong is said once."""
    wait, silent = 0.05, False
    while True:
        try:
            return await action()
        except FencedError:
            raise
        except BrokerError as error:
            if error.code == CLOSED:
                raise
            if not silent and wait > 0.5:
                said(error)
                silent = True
        await asyncio.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, 5.0)


def _connection() -> Any:
    """A connection whose reader survives any header: nats-py's ends at one that is not text."""
    from nats.aio.client import Client

    class Sturdy(Client):
        async def _process_headers(self, headers: Any) -> Any:
            try:
                return await super()._process_headers(headers)
            except Exception:
                return None

    return Sturdy()


async def _give_up(nc: Any) -> None:
    """Close what a connection that failed has opened: nats-py leaves it to the broker."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(nc.close(), 1.0)


def credentials(url: str, keys: Path | None) -> dict[str, Any]:
    """The options of a connection with the keys in a folder: ``ca.pem`` and ``seed.nk``."""
    if keys is None:
        return {}
    seed = keys / "seed.nk"
    if not seed.is_file():
        raise ConfigError(f"{keys} has no seed.nk; qafel keys makes a folder for every client")
    options: dict[str, Any] = {"nkeys_seed": str(seed)}
    if (keys / "ca.pem").is_file():
        if not url.startswith("tls://"):
            raise ConfigError(f"{keys} holds a CA: the broker's address starts with tls://, not {url!r}")
        options["tls"] = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    return options


def sentence(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def refusal(url: str, error: Exception, keys: Path | None, last: str = "") -> BrokerError:
    """Why a connection was refused, and what to do."""
    said = last if isinstance(error, TimeoutError) and last else sentence(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        expired = "expired" in said
        why = "has expired; make a new one with qafel keys" if expired else "is not of the CA in ca.pem"
        return BrokerError(f"the certificate of {url} {why} ({error.verify_message})")
    if "authorization" in said.lower() or "authentication" in said.lower():
        what = "does not know this key" if keys else "wants a key; hand in --keys"
        return BrokerError(f"the broker at {url} {what} ({said})")
    if isinstance(error, ssl.SSLError) or "secure connection" in said.lower():
        return BrokerError(
            f"no secure connection to {url}: {said}; does it start with the right tls:// or nats://?"
        )
    return BrokerError(f"no broker at {url}: {said}; start one with qafel broker, or correct --broker")


def _may_pass(error: Exception) -> bool:
    said = sentence(error).lower()
    if isinstance(error, ssl.SSLCertVerificationError) or "authorization" in said or "authentication" in said:
        return False
    return not isinstance(error, ConfigError | ssl.SSLError)


def _checked(message: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = msgspec.json.decode(message.data, type=dict[str, Any])
        problem = answer.get("error")
        if not problem:
            return answer
        code, said = int(problem.get("err_code", 0)), str(problem.get("description", "an error"))
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, ValueError) as error:
        raise BrokerError(f"an answer that cannot be read: {sentence(error)}") from error
    if code in WRONG_LAST:
        raise FencedError(f"another server has written in the meantime ({said})", code)
    raise BrokerError(f"the broker refused: {said}", code)


def _stored(answer: Any) -> Message | None:
    headers = answer.headers or {}
    if "Nats-Sequence" not in headers:
        status = headers.get("Status", "")
        if status in ("404", "408"):
            return None
        raise BrokerError(f"the broker could not read a message: {status} {headers.get('Description', '')}")
    try:
        return Message(int(headers["Nats-Sequence"]), headers["Nats-Subject"], answer.data)
    except (KeyError, ValueError) as error:
        raise BrokerError(f"an answer that cannot be read: {sentence(error)}") from error
