"""The streams of a federation: how they are made, their limits, and how the log is opened.

NATS has no limits on rates, so each stream has limits on what it holds: one that is full refuses new messages
and stops none of the others. What a client can fill is limited per client.
"""

import asyncio
import time
from typing import Any

from qafel import wire
from qafel.errors import StateError
from qafel.federation.connection import OVERHEAD, Connection
from qafel.federation.objects import piece_size
from qafel.federation.server.state import FederationState
from qafel.runs.folder import RunFolder

LOG_BYTES, MIN_ENTRIES, MAX_ENTRIES = 1 << 22, 16, 1024
"""The log holds about LOG_BYTES of each client, but not fewer than MIN_ENTRIES nor more than MAX_ENTRIES."""
KEYS_BYTES = 1 << 25
PER_CLIENT = {"discard": "new", "discard_new_per_subject": True}


def max_entries(frame_limit: int) -> int:
    """The number of entries of one client that the log holds."""
    return max(MIN_ENTRIES, min(MAX_ENTRIES, LOG_BYTES // frame_limit))


async def open_keys(connection: Connection, replicas: int, *, patience: float = 0.0) -> bool:
    """Open the stream of keys; False if it did not exist. It has room of its own, which nothing else fills.

    A standby has ``patience``, in seconds, until the first server has made it.
    """
    subjects = connection.subjects
    until = time.monotonic() + patience
    existed = await connection.stream(subjects.keys) is not None
    while not existed and time.monotonic() < until:
        await asyncio.sleep(0.25)
        existed = await connection.stream(subjects.keys) is not None
    if existed or not patience:
        config = {
            "subjects": [subjects.public(), subjects.report(), subjects.private()],
            "max_msgs_per_subject": 2,
            "max_bytes": KEYS_BYTES,
            "allow_direct": True,
            "num_replicas": replicas,
        }
        await connection.ensure(subjects.keys, config)
    return existed


async def open_streams(connection: Connection, replicas: int, frame_limit: int) -> None:
    """Open the streams of pieces, requests, objects and checkpoints."""
    subjects, piece = connection.subjects, piece_size(connection.max_payload)
    kept = {"num_replicas": replicas, "allow_direct": True}
    pieces = 3 * (frame_limit // piece + 1)
    configs: dict[str, dict[str, Any]] = {
        subjects.pieces: {
            "subjects": [subjects.piece()],
            "max_msgs_per_subject": pieces,
            "max_msg_size": piece,
            **PER_CLIENT,
            **kept,
        },
        subjects.asks: {
            "subjects": [subjects.ask()],
            "storage": "memory" if replicas == 1 else "file",  # copies in memory may not agree on a leader
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "max_msg_size": 512,
            "max_age": 60_000_000_000,
            "num_replicas": replicas,
            **PER_CLIENT,
        },
        subjects.objects: {"subjects": [subjects.object()], **kept},
        subjects.saved: {"subjects": [subjects.checkpoint], **kept},
    }
    for name, config in configs.items():
        await connection.ensure(name, config)


async def open_log(connection: Connection, state: FederationState, replicas: int) -> int | None:
    """Open the log; None if it continues after the state, otherwise the entry after which to read again.

    The last entry that was processed stays in the log. If the broker does not have it, it has lost its tail,
    and new entries have the numbers of lost ones: what it has is read again. StateError if entries between
    the state and the log are missing.
    """
    subjects = connection.subjects
    limit = state.server.frame_limit
    config = {
        "subjects": [subjects.upload(), subjects.entry()],
        "max_msgs_per_subject": 2 * max_entries(limit),
        **PER_CLIENT,
        "max_msg_size": min(connection.max_payload, limit + OVERHEAD),
        "first_seq": state.sequence + 1,
        "allow_direct": True,
        "num_replicas": replicas,
    }
    existed = await connection.stream(subjects.log) is not None
    log = (await connection.ensure(subjects.log, config))["state"]
    if not existed or state.sequence + 1 == log["first_seq"]:
        return None
    if log["first_seq"] > state.sequence + 1:
        raise StateError(
            f"the log starts at entry {log['first_seq']}, and the newest checkpoint ends at {state.sequence}:"
            " entries are missing; start the server that has the state folder, or start anew under another "
            "name"
        )
    last = await connection.stored(subjects.log, state.sequence)
    if state.sequence == 0 or (last is not None and wire.fingerprint(last.data) == state.tail):
        return None
    return int(max(0, log["first_seq"] - 1))


async def remove_finished(connection: Connection, folder: RunFolder, replicas: int) -> None:
    """Make room for a new federation under the name of one that has ended."""
    subjects = connection.subjects
    ended = await connection.newest(subjects.keys, subjects.public("done"))
    if ended is not None and folder.checkpoint() is None:
        for stream in subjects.streams:
            await connection.delete(stream)
        await open_keys(connection, replicas)
