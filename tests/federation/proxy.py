"""A bad network: a TCP proxy before the broker that delays, drops, truncates, corrupts and partitions."""

import asyncio
import random
from typing import Any

MODES = ("clean", "delay", "drop", "truncate", "corrupt", "partition")
ORDER = ("corrupt", "clean", "delay", "clean", "drop", "clean", "truncate", "clean", "partition", "clean")
SECONDS = {"clean": 0.6, "delay": 0.8, "drop": 0.1, "truncate": 0.3, "corrupt": 1.5, "partition": 1.5}
LONG = 400
"""Only chunks of more bytes are corrupted: those with frames; and never the broker's greeting, after which
nats-py would be deaf until its third ping."""


class Proxy:
    """Passes bytes on between clients and a broker, as well as the mode of the moment lets it.

    ``counts`` has the faults that really happened: chunks delayed, connections cut, chunks cut in half,
    chunks with a wrong bit, chunks held back by a partition.
    """

    def __init__(self, host: str, port: int, mode: Any, counts: Any) -> None:
        self._host, self._port, self._mode, self._counts = host, port, mode, counts
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def mode(self) -> str:
        """What is wrong at the moment."""
        return MODES[self._mode.value]

    def _count(self, mode: str) -> None:
        self._counts[MODES.index(mode)] += 1

    async def serve(self, port: int) -> None:
        """Until the process is killed."""
        server = await asyncio.start_server(self._accept, self._host, port)
        async with server:
            while True:
                await asyncio.sleep(0.02)
                if self.mode == "drop":
                    for writer in list(self._open):
                        self._count("drop")
                        writer.transport.abort()
                    self._open.clear()

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
            if self.mode == "partition":
                self._count("partition")
                while self.mode == "partition":
                    await asyncio.sleep(0.05)
            if self.mode == "delay":
                self._count("delay")
                await asyncio.sleep(random.uniform(0.02, 0.2))
            if self.mode == "truncate" and len(data) > 1 and random.random() < 0.2:
                self._count("truncate")
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return  # the rest never comes: the connection is cut
            if self.mode == "corrupt" and len(data) > LONG and not data.startswith(b"INFO"):
                if random.random() < 0.5:
                    writer.write(data)
                    continue
                self._count("corrupt")
                place = random.randrange(len(data))
                data = data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]
            writer.write(data)
            await writer.drain()
