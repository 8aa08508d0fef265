"""A bad network: a TCP proxy before the broker that delays, drops, truncates, corrupts and partitions."""

import asyncio
import random
from typing import Any

MODES = ("clean", "delay", "drop", "truncate", "corrupt", "partition")
ORDER = ("delay", "clean", "drop", "clean", "truncate", "clean", "corrupt", "partition", "clean")
SECONDS = {"clean": 0.6, "delay": 0.8, "drop": 0.1, "truncate": 0.2, "corrupt": 0.6, "partition": 1.5}


class Proxy:
    """Passes bytes on between clients and a broker, as well as the mode of the moment lets it."""

    def __init__(self, host: str, port: int, mode: Any, counts: Any) -> None:
        self._host, self._port, self._mode, self._counts = host, port, mode, counts
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def mode(self) -> str:
        """What is wrong at the moment."""
        return MODES[self._mode.value]

    async def serve(self, port: int) -> None:
        """Until the process is killed."""
        server = await asyncio.start_server(self._accept, self._host, port)
        async with server:
            while True:
                await asyncio.sleep(0.02)
                if self.mode in ("drop", "truncate") and self._open:
                    self._counts[self._mode.value] += 1
                    for writer in list(self._open):
                        writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode in ("drop", "partition"):
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, to_writer}
        both = [self._pass(reader, to_writer), self._pass(to_reader, writer)]
        tasks = [asyncio.create_task(one) for one in both]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open -= {writer, to_writer}
        for end in (writer, to_writer):
            end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            while self.mode == "partition":
                self._counts[self._mode.value] += 1
                await asyncio.sleep(0.05)
            if self.mode == "delay":
                self._counts[self._mode.value] += 1
                await asyncio.sleep(random.uniform(0.02, 0.2))
            if self.mode == "truncate":
                data = data[: len(data) // 2]
            if self.mode == "corrupt" and len(data) > 400 and random.random() < 0.3:
                self._counts[self._mode.value] += 1
                place = random.randrange(len(data) // 2, len(data) - 8)
                data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            writer.write(data)
            await writer.drain()
