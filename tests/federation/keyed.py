"""Parties with keys, as nats-py has them, and someone in the middle."""

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from parties import until
from qafel.federation.broker import Broker, free_port
from qafel.federation.keys import credentials, read
from qafel.federation.nats import new_client
from qafel.federation.subjects import Subjects, inbox

T, U = Subjects("t"), Subjects("u")
STREAMS: dict[str, dict[str, Any]] = {
    T.log: {"subjects": [T.upload(), T.entry()]},
    T.pieces: {"subjects": [T.piece()]},
    T.asks: {"subjects": [T.ask()]},
    T.increments: {"subjects": [T.increment()], "republish": {"src": T.increment(), "dest": T.live}},
    T.keys: {"subjects": [T.public(), T.report(), T.private()], "max_msgs_per_subject": 1},
    T.objects: {"subjects": [T.object()]},
}


@contextlib.asynccontextmanager
async def party(url: str, path: Path, **options: Any) -> AsyncIterator[Any]:
    """A connection with a key; ``heard`` is what the broker complains about."""
    key, nc = read(path), new_client(url)
    heard: list[str] = []

    async def hear(error: Exception) -> None:
        heard.append(str(error))

    who = key.client if key.client is not None else key.role
    chosen = {"allow_reconnect": False, "inbox_prefix": inbox(who).encode(), "connect_timeout": 30, **options}
    await nc.connect(url, error_cb=hear, **chosen, **credentials.credentials(url, key))
    nc.heard, nc.request = heard, functools.partial(nc.request, timeout=60)
    try:
        yield nc
    finally:
        await nc.close()


async def admitted(url: str, path: Path) -> bool:
    """Whether the broker admits a key."""
    try:
        async with party(url, path):
            return True
    except Exception:
        return False


async def streams(broker: Broker, folder: Path) -> None:
    async with party(broker.url, folder / "t" / "server.key") as server:
        for name, config in STREAMS.items():
            body = json.dumps({"name": name, "allow_direct": True, **config}).encode()
            answer = await server.request(f"$JS.API.STREAM.CREATE.{name}", body)
            assert "error" not in json.loads(answer.data), answer.data
        for subject in (T.increment(1), T.public("welcome"), T.private("leader"), T.object("snapshot")):
            assert b"seq" in (await server.request(subject, b"x")).data


async def last(server: Any, stream: str) -> int:
    answer = json.loads((await server.request(f"$JS.API.STREAM.INFO.{stream}", b"")).data)
    return int(answer["state"]["last_seq"])


class Middle:
    """Someone between a client and the broker, who writes down every byte that the client sends."""

    def __init__(self, mode: str, broker: Broker, tls: ssl.SSLContext | None = None) -> None:
        self.mode, self.sent, self._broker, self._tls = mode, bytearray(), broker, tls
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        port = free_port(host)
        server = await asyncio.start_server(self._accept, host, port, ssl=self._tls)
        try:
            yield f"tls://{host}:{port}"
        finally:
            for task in self._tasks:
                task.cancel()
            server.close()

    async def closed(self) -> None:
        """Until the other end has closed every connection: all that it sent has been read."""
        await until(lambda: all(task.done() for task in self._tasks))

    async def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        mode, context = self.mode, ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        tls = context if mode == "downgrade" else None
        to_reader, to_writer = await asyncio.open_connection(self._broker.host, self._broker.port, ssl=tls)
        if mode == "downgrade":  # the broker's own greeting, without the word that asks for TLS
            info = json.loads((await to_reader.readline())[5:])
            kept = {key: value for key, value in info.items() if not key.startswith("tls")}
            writer.write(b"INFO " + json.dumps(kept).encode() + b"\r\n")
        elif mode == "plain":
            writer.write(
                b'INFO {"server_id":"x","auth_required":true,"nonce":"abc","max_payload":9}\r\n+OK\r\n'
            )

        async def back() -> None:
            while mode in ("pass", "downgrade") and (data := await to_reader.read(65536)):
                writer.write(data)

        answers = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                self.sent += data
                if mode == "pass":
                    to_writer.write(data)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            writer.transport.abort()
            to_writer.transport.abort()


def record_types(sent: bytes) -> set[int]:
    """The types of the TLS records in some bytes: 22 is the handshake, 21 an alert, 23 data."""
    types, at = set(), 0
    while at < len(sent):
        assert sent[at] in range(20, 24), sent[at : at + 40]
        assert sent[at + 1] == 3, sent[at : at + 40]
        types.add(sent[at])
        at += 5 + int.from_bytes(sent[at + 3 : at + 5], "big")
    return types
