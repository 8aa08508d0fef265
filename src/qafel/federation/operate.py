"""What an operator does: watch federations, stop them, change their limits, list and delete them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from qafel.errors import BrokerError, ConfigError
from qafel.federation.entries import Change, Decision, Skip, Stop
from qafel.federation.keys import Key, read
from qafel.federation.nats import Connection
from qafel.federation.plan import Plan, change
from qafel.federation.subjects import Subjects
from qafel.federation.waiting import Loop, complete

SILENCE = 10.0
"""``watch`` gives up after this many seconds without a status message."""
T = TypeVar("T")


def _role(key: Key | None) -> str:
    return key.role if key is not None else "operator"


async def _open(name: str, broker: str, keys: Path | None) -> Connection:
    key = read(keys) if keys else None
    return await Connection.open(broker, Subjects(name), _role(key), key=key)


def _run(
    name: str,
    broker: str,
    keys: Path | None,
    action: Callable[[Connection], Awaitable[T]],
    *,
    roles: tuple[str, ...] = ("operator",),
) -> T:
    async def work() -> T:
        if keys is not None and (role := read(keys).role) not in roles:
            raise ConfigError(f"{keys} is the key of {role!r}; this needs the key of {' or '.join(roles)}")
        async with await _open(name, broker, keys) as connection:
            return await action(connection)

    return complete(work())


def watch(name: str, broker: str, keys: str | Path | None = None) -> Iterator[dict[str, Any]]:
    """The status of a server, every second, until it has ended; BrokerError if there is none.

    Of a federation that has ended, there is one last status.
    """
    loop, connection = Loop(), None
    try:
        connection = loop.complete(_open(name, broker, Path(keys) if keys else None))
        subjects, messages = connection.subjects, asyncio.Queue[bytes]()

        async def receive(message: Any) -> None:
            messages.put_nowait(message.data)

        loop.complete(connection.subscribe(subjects.status, receive))
        stored = loop.complete(_stored(connection, "status"))
        if stored is not None and stored["reason"]:
            yield stored
            return
        while True:
            try:
                data = loop.complete(asyncio.wait_for(messages.get(), SILENCE))
            except TimeoutError:
                raise BrokerError(
                    f"no server of the federation {name!r} at {broker} has reported for {SILENCE:.0f} s; "
                    "start one with qafel serve"
                ) from None
            status: dict[str, Any] = msgspec.json.decode(data)
            yield status
            if status["reason"]:
                return
    finally:
        if connection is not None:
            loop.complete(connection.close())
        loop.close()


async def _stored(connection: Connection, key: str) -> Any:
    subjects = connection.subjects
    try:
        message = await connection.last(subjects.keys, subjects.report(key))
    except BrokerError:
        return None  # there is no such federation
    return msgspec.json.decode(message.data) if message else None


def clients(name: str, broker: str, keys: str | Path | None = None) -> list[list[Any]]:
    """The table of clients, a few seconds old; see ``Monitor.store``."""
    rows: list[list[Any]] | None = _table(name, broker, keys, "clients")
    if rows is None:
        raise ConfigError(f"the broker has no federation {name!r}, or its server has not saved a checkpoint")
    return rows


def points(name: str, broker: str, keys: str | Path | None = None) -> list[dict[str, Any]]:
    """The evaluations of a federation, as of a few seconds ago."""
    return _table(name, broker, keys, "points") or []


def _table(name: str, broker: str, keys: str | Path | None, table: str) -> Any:
    path, roles = Path(keys) if keys else None, ("operator", "observer")
    return _run(name, broker, path, lambda one: _stored(one, table), roles=roles)


def decide(name: str, broker: str, decision: Stop | Change | Skip, keys: str | Path | None = None) -> int:
    """Write a decision to the log of a federation and return its sequence number."""
    if isinstance(decision, Change):
        change(Plan(), decision)

    async def write(connection: Connection) -> int:
        await _exists(connection)
        return await connection.publish(connection.subjects.entry("operator"), Decision(decision).to_bytes())

    return _run(name, broker, Path(keys) if keys else None, write)


async def _exists(connection: Connection) -> None:
    names = await _names(connection)
    if connection.subjects.name not in names:
        known = f"; there are {', '.join(names)}" if names else ""
        raise ConfigError(f"the broker has no federation {connection.subjects.name!r}{known}")


async def _names(connection: Connection) -> list[str]:
    """The names of the federations in the broker, as far as the key may see them."""
    names, offset = list[str](), 0
    while True:
        answer = await connection.call("$JS.API.STREAM.NAMES", msgspec.json.encode({"offset": offset}))
        page = answer.get("streams") or []
        names += [name[6:-5] for name in page if name.startswith("QAFEL_") and name.endswith("_KEYS")]
        offset += len(page)
        if not page or offset >= answer.get("total", 0):
            return sorted(names)


def federations(broker: str, keys: str | Path | None = None) -> list[dict[str, Any]]:
    """The federations of a broker with their last status, as far as the key may see them."""
    path = Path(keys) if keys else None
    own = read(path).name if path else None

    async def work(connection: Connection) -> list[dict[str, Any]]:
        result = []
        for name in await _names(connection):
            if own is None or name == own:
                connection.subjects = Subjects(name)
                result.append(await _stored(connection, "status") or {"name": name, "reason": None})
        return result

    return _run(own or "qafel", broker, path, work)


def delete(name: str, broker: str, keys: str | Path | None = None) -> None:
    """Delete a federation from the broker, with its log, its model and its checkpoints."""

    async def work(connection: Connection) -> None:
        await _exists(connection)
        for stream in connection.subjects.streams:
            await connection.delete(stream)

    _run(name, broker, Path(keys) if keys else None, work)
