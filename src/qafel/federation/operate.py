"""What an operator does: watch federations, stop them, change their limits, list and delete them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from qafel.errors import BrokerError, ConfigError
from qafel.federation.connection import Connection
from qafel.federation.entries import Change, Decision, Skip, Stop
from qafel.federation.keys import read
from qafel.federation.plan import Plan, change
from qafel.federation.subjects import Subjects
from qafel.federation.waiting import Loop, complete
from qafel.tables import Columns

SILENCE = 10.0
"""``watch`` gives up after this many seconds without a status message."""
T = TypeVar("T")


READERS = ("operator", "observer", "server")
KeyFile = str | Path | None


async def _open(name: str, broker: str, keys: KeyFile, roles: tuple[str, ...]) -> Connection:
    key = read(keys) if keys else None
    role = key.role if key else "operator"
    if role not in roles:
        raise ConfigError(f"{keys} is the key of {role!r}; this needs the key of {' or '.join(roles)}")
    return await Connection.open(broker, Subjects(name), role, key=key)


def _run(
    name: str,
    broker: str,
    keys: KeyFile,
    action: Callable[[Connection], Awaitable[T]],
    *,
    roles: tuple[str, ...] = ("operator",),
) -> T:
    async def work() -> T:
        async with await _open(name, broker, keys, roles) as connection:
            return await action(connection)

    return complete(work())


def watch(name: str, broker: str, keys: KeyFile = None) -> Iterator[dict[str, Any]]:
    """The status of a server, every second, until it has ended; BrokerError if there is none.

    Of a federation that has ended, there is one last status.
    """
    loop, connection = Loop(), None
    try:
        connection = loop.complete(_open(name, broker, keys, READERS))
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


def facts(status: dict[str, Any]) -> list[tuple[str, str]]:
    """A status in words, for people; a client may have named a metric like another row."""
    buffered, size = status["buffer"]
    leases, concurrency = status["leases"]
    saved = status.get("checkpoint")
    metrics = status["metrics"].items()
    return [
        ("uploads", f"{status['uploads']:,} of {status['wanted']:,}"),
        ("version", f"{status['version']:,}"),
        ("buffer", f"{buffered} of {size}"),
        ("tasks in flight", f"{leases:,} of at most {concurrency:,}"),
        ("clients in the last minute", f"{status['clients']:,}"),
        ("mean staleness", f"{status['staleness']:.2f}"),
        ("MB up", f"{status['bytes_up'] / 1e6:,.2f}"),
        ("MB down", f"{status['bytes_down'] / 1e6:,.2f}"),
        *((name, "–" if value is None else f"{value:.4g}") for name, value in metrics),
        ("rejected", counts(status["rejected"])),
        ("leader's term", str(status["term"])),
        ("log entry", f"{status['sequence']:,}"),
        ("checkpoint", "none yet" if saved is None else f"{saved:,.0f} s ago"),
        ("state", f"ended: {status['reason']}" if status["reason"] else "running"),
    ]


def counts(reasons: dict[str, int]) -> str:
    """How many uploads were rejected for which reason, as text."""
    return ", ".join(f"{count:,} {why}" for why, count in reasons.items()) or "none"


class ClientRow(NamedTuple):
    """A client as the server has seen it; see ``Monitor.store``."""

    client: int
    seen: float
    """Seconds ago."""
    tasks: int
    reason: str | None
    """Why its last update was rejected, if it was."""
    rejected: dict[str, int]
    behind: int | None
    """Versions behind the server's."""


CLIENT_COLUMNS: Columns = {
    "client": "{.client}",
    "seen": "{.seen:,.0f} s ago",
    "tasks": "{.tasks:,}",
    "last task": lambda row: row.reason or "counted",
    "rejections": lambda row: counts(row.rejected),
    "versions behind": lambda row: "–" if row.behind is None else f"{row.behind:,}",
}


def clients(name: str, broker: str, keys: KeyFile = None) -> list[ClientRow]:
    """The clients of a federation, a few seconds old."""
    rows: list[list[Any]] | None = _table(name, broker, keys, "clients")
    if rows is None:
        raise ConfigError(f"the broker has no federation {name!r}, or its server has not saved a checkpoint")
    return [ClientRow(*row) for row in rows]


def points(name: str, broker: str, keys: KeyFile = None) -> list[dict[str, Any]]:
    """The evaluations of a federation, as of a few seconds ago."""
    return _table(name, broker, keys, "points") or []


def _table(name: str, broker: str, keys: KeyFile, table: str) -> Any:
    roles = ("operator", "observer")
    return _run(name, broker, keys, lambda one: _stored(one, table), roles=roles)


def decide(name: str, broker: str, decision: Stop | Change | Skip, keys: KeyFile = None) -> int:
    """Write a decision to the log of a federation and return its sequence number."""
    if isinstance(decision, Change):
        change(Plan(), decision)

    async def write(connection: Connection) -> int:
        await _exists(connection)
        return await connection.publish(connection.subjects.entry("operator"), Decision(decision).to_bytes())

    return _run(name, broker, keys, write)


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


def federations(broker: str, keys: KeyFile = None) -> list[dict[str, Any]]:
    """The federations of a broker with their last status, as far as the key may see them."""
    own = read(keys).name if keys else None

    async def work(connection: Connection) -> list[dict[str, Any]]:
        result = []
        for name in await _names(connection):
            if own is None or name == own:
                connection.subjects = Subjects(name)
                result.append(await _stored(connection, "status") or {"name": name, "reason": None})
        return result

    return _run(own or "qafel", broker, keys, work)


def delete(name: str, broker: str, keys: KeyFile = None) -> None:
    """Delete a federation from the broker, with its log, its model and its checkpoints."""

    async def work(connection: Connection) -> None:
        await _exists(connection)
        for stream in connection.subjects.streams:
            await connection.delete(stream)

    _run(name, broker, keys, work)
