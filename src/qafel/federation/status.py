"""What a running server says of itself, every second."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import BrokerError
from qafel.federation.nats import Connection
from qafel.federation.subjects import Subjects

SILENCE = 10.0


def watch(name: str, broker: str, keys: Path | None = None) -> Iterator[dict[str, Any]]:
    """The server's words as they come, until it has ended; BrokerError when it says nothing for a while."""
    loop, link = asyncio.new_event_loop(), None
    try:
        names = Subjects(name)
        link = loop.run_until_complete(Connection.open(broker, names, "server", keys=keys))
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def hear(message: Any) -> None:
            heard.put_nowait(message.data)

        loop.run_until_complete(link.nc.subscribe(names.status, cb=hear))
        while True:
            try:
                data = loop.run_until_complete(asyncio.wait_for(heard.get(), SILENCE))
            except TimeoutError:
                raise BrokerError(
                    f"no server of the federation {name!r} has said anything for {SILENCE:.0f} s at {broker}"
                ) from None
            found: dict[str, Any] = msgspec.json.decode(data)
            yield found
            if found["reason"]:
                return
    finally:
        if link is not None:
            loop.run_until_complete(link.close())
        loop.close()
