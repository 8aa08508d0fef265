"""The nats-py client, and a broker's answers as values and as errors; no other module imports nats-py.

The client sends nothing before the broker's certificate is verified, and reconnects after malformed input.
"""

import ssl
from typing import Any, NamedTuple, cast

import msgspec

from qafel.errors import BrokerError, FencedError, one_line
from qafel.extras import require
from qafel.federation.keys.credentials import is_secure

WRONG_LAST = (10071, 10164)
NOT_FOUND, NO_MESSAGE = 10059, 10037
CLOSED = -1
"""The code of an error after which nats-py does not reconnect."""
NO_SPACE = (10002, 10023, 10028, 10047, 10077)
"""The broker has no room: on its disk, in a stream, or in a client's share of a stream."""


class Message(NamedTuple):
    """A stored message."""

    sequence: int
    subject: str
    data: bytes


def problems() -> tuple[type[Exception], ...]:
    """What a client raises when the broker does not answer."""
    import nats.errors

    return nats.errors.Error, OSError, TimeoutError


def refusal(url: str, error: Exception, keyed: bool, last: str = "") -> BrokerError:
    """The error for a refused connection: why, what to do, and whether it may be accepted later."""
    text = last if isinstance(error, TimeoutError) and last else one_line(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        why = (
            "was not signed by the CA in this key" if keyed else "was not signed by a CA that is trusted here"
        )
        why = "has expired; renew it with qafel keys rotate" if "expired" in text else why
        hint = "" if keyed else "; pass its keys"
        return BrokerError(f"the certificate of {url} {why} ({error.verify_message}){hint}", may_pass=False)
    words = text.lower()
    if ("authorization" in words or "authentication" in words) and "timeout" not in words:
        what = (
            "does not accept this key, which may be revoked or expired"
            if keyed
            else "requires a key; pass its keys"
        )
        return BrokerError(f"the broker at {url} {what} ({text})", may_pass=False)
    if isinstance(error, ssl.SSLError) or "secure connection" in words:
        return BrokerError(
            f"no secure connection to {url}: {text}; does it start with the right tls:// or nats://?",
            may_pass=False,
        )
    return BrokerError(f"no broker at {url}: {text}; start one with qafel broker, or correct the address")


def checked(message: Any) -> dict[str, Any]:
    """The broker's answer to a call; BrokerError if it refused, FencedError if another server was faster."""
    try:
        answer: dict[str, Any] = msgspec.json.decode(message.data, type=dict[str, Any])
        problem = answer.get("error")
        if not problem:
            return answer
        code, text = int(problem.get("err_code", 0)), str(problem.get("description", "an error"))
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, ValueError) as error:
        raise BrokerError(f"the broker's answer cannot be read: {one_line(error)}") from error
    if code in WRONG_LAST:
        raise FencedError(f"another server has written since ({text})", code)
    raise BrokerError(f"the broker refused: {text}", code)


def stored_message(answer: Any) -> Message | None:
    """The message in an answer of the broker's direct API; None if there is none."""
    headers = answer.headers or {}
    if "Nats-Sequence" not in headers:
        status = headers.get("Status", "")
        if status in ("404", "408"):
            return None
        raise BrokerError(f"the broker could not read a message: {status} {headers.get('Description', '')}")
    try:
        return Message(int(headers["Nats-Sequence"]), headers["Nats-Subject"], answer.data)
    except (KeyError, ValueError) as error:
        raise BrokerError(f"the broker's answer cannot be read: {one_line(error)}") from error


def new_client(url: str) -> Any:
    """A ``nats.aio.client.Client`` that is not connected; for ``tls://`` it has a guarded transport."""
    require("a connection to a broker", "federation")
    from nats.aio.client import Client
    from nats.errors import ProtocolError

    class Sturdy(Client):
        """A client whose reader survives any damage; the original stops reading, and stays connected."""

        def __init__(self) -> None:
            super().__init__()
            self._ps.parse, self._parse = self._parse_or_reconnect, self._ps.parse  # type: ignore[method-assign]

        async def _parse_or_reconnect(self, data: bytes = b"") -> None:
            try:
                await self._parse(data)
            except ValueError as error:  # JSON that cannot be read, a number that is none
                raise ProtocolError from error

        async def _process_headers(self, headers: Any) -> Any:
            try:
                return await super()._process_headers(headers)
            except Exception:
                return None

    client = Sturdy()
    if is_secure(url):
        client._transport = _guarded()
    return client


def _guarded() -> Any:
    """A transport that writes nothing before the handshake has verified the broker.

    A nats-py client that is closed writes its pending bytes, whatever the state of its connection. During the
    handshake of a reconnection, this would wait for ever. The guarded transport cuts such a connection.
    """
    from nats.aio.transport import TcpTransport

    class Guarded(cast("type[Any]", TcpTransport)):  # type: ignore[misc]
        """A transport that writes nothing before the handshake has verified the broker."""

        _verified = False

        async def connect(self, *args: Any, **options: Any) -> None:
            self._verified = False
            await super().connect(*args, **options)

        async def connect_tls(self, *args: Any, **options: Any) -> None:
            await super().connect_tls(*args, **options)
            self._verified = True

        def write(self, payload: bytes) -> None:
            if self._verified:
                super().write(payload)

        def writelines(self, payload: list[bytes]) -> None:
            if self._verified:
                super().writelines(payload)

        async def drain(self) -> None:
            if self._verified:
                await super().drain()

        def close(self) -> None:
            if self._verified:
                super().close()
            elif self._io_writer is not None:
                self._io_writer.transport.abort()

        async def wait_closed(self) -> None:
            if self._verified:
                await super().wait_closed()

        def __bool__(self) -> bool:
            return True

    return Guarded()
