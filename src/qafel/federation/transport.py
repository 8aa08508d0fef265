"""The client of nats-py, made sturdy: no byte before the broker is verified, no header that stops it."""

from typing import Any, cast

from qafel.errors import MissingExtraError
from qafel.federation.keys.credentials import is_secure


def connection(url: str) -> Any:
    """A ``nats.aio.client.Client`` that is not connected; for ``tls://`` it has a guarded transport."""
    try:
        from nats.aio.client import Client
        from nats.errors import ProtocolError
    except ImportError as error:
        raise MissingExtraError("a connection to a broker", "federation") from error

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

    On its own, a client that is closed writes what waits to be sent, whatever the state of its connection;
    if this is in the handshake of a reconnection, it waits for ever for the end. The guarded transport cuts
    such a connection.
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
