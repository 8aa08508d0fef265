"""Histories: what every client saw, and whether it agrees with what the server counted.

A client appends a line for every event, without waiting for the disk: ``trained``, ``acknowledged``,
``counted``, ``rejected``, and at the end ``left`` with its x̂. The server's side is its last checkpoint in the
broker. Of each update that the broker acknowledged, one of three must hold: the server counted it; its client
was told why it was rejected; or its client was killed for good, and the update reached the log after the end.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from qafel.errors import FrameError
from qafel.federation import Plan, Subjects
from qafel.federation.connection import Connection
from qafel.federation.entries import Upload
from qafel.federation.keys import Key, read
from qafel.federation.server.checkpoints import Checkpoints
from qafel.federation.server.state import FederationState
from qafel.federation.subjects import owner
from qafel.runs.folder import RunFolder

ELSEWHERE = "another update of this client was decided in its place"
ENDED = "the training had ended"


class History:
    """A file of events that survives the death of its writer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, event: str, **fields: Any) -> None:
        """Append an event, in one write."""
        line = json.dumps({"event": event, "process": os.getpid(), **fields}, default=str)
        os.write(self._file, line.encode() + b"\n")


def events(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a history; of one kind, or all. The last line may be cut off."""
    kept = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if kind in (None, event["event"]):
            kept.append(event)
    return kept


class Seen(NamedTuple):
    """An update: its client, its task and the fingerprint of its frame."""

    client: int
    task: int
    frame: int


class Told(NamedTuple):
    """What one client saw."""

    trained: set[Seen]
    acknowledged: set[Seen]
    counted: set[Seen]
    rejected: dict[Seen, str]
    ends: list[str]


def told(path: Path, client: int) -> Told:
    """The history of a client; an event of a task is about the frame that was trained last for it."""
    result, frames = Told(set(), set(), set(), {}, []), dict[int, int]()
    for event in events(path):
        kind, task = event["event"], event.get("task", -1)
        update = Seen(client, task, frames.get(task, 0))
        if kind == "trained":
            frames[task] = event["frame"]
            result.trained.add(Seen(client, task, event["frame"]))
        elif kind == "acknowledged":
            result.acknowledged.add(update)
        elif kind == "counted":
            result.counted.add(update)
        elif kind == "rejected":
            result.rejected[update] = event["reason"]
        elif kind == "left":
            result.ends.append(f"{event['version']} {event['digest']}")
    return result


async def link(url: str, name: str, keys: Path | None = None) -> Connection:
    """A connection of somebody who watches; with keys, those of the server."""
    key: Key | None = read(keys / name / "server.key") if keys else None
    return await Connection.open(url, Subjects(name), "server" if key else "watcher", key=key, patience=60)


async def ledger(
    url: str, chosen: Plan, size: int, keys: Path | None = None
) -> tuple[FederationState, set[tuple[int, int]]]:
    """The state in the broker's checkpoint, and (client, task) of the uploads that came after the end."""
    async with await link(url, chosen.name, keys) as one:
        with tempfile.TemporaryDirectory() as nothing:
            checkpoints = Checkpoints(one, RunFolder(Path(nothing)))
            state = await checkpoints.broker_state(chosen, chosen.job(size))
        assert state is not None
        log = await one.stream(one.subjects.log)
        unread = set()
        for sequence in range(state.sequence + 1, log["state"]["last_seq"] + 1 if log else 0):
            message = await one.stored(one.subjects.log, sequence)
            client = owner(message.subject) if message else None
            with contextlib.suppress(FrameError):
                if message is not None and client is not None:
                    unread.add((client, Upload.from_bytes(message.data).task))
        return state, unread


def check(
    state: FederationState,
    unread: set[tuple[int, int]],
    summary: dict[str, Any],
    histories: Iterable[Told],
    *,
    dead: Iterable[Told] = (),
    strangers: Iterable[int] = (),
    stuck: int = 0,
) -> dict[str, Any]:
    """What did not hold; ``held`` if everything did. ``dead``: clients killed for good, with their folders.

    ``strangers`` are clients without a history: what the server counted of them is not compared.
    """
    living, gone = list(histories), list(dead)
    everybody = living + gone
    acknowledged = {update for one in everybody for update in one.acknowledged}
    counted = {update for one in everybody for update in one.counted}
    rejected = {update: why for one in everybody for update, why in one.rejected.items()}
    trained = {(u.client, u.task) for one in everybody for u in one.trained}
    seen = {task for task in trained if task in state.server.seen}
    excused = {u for one in gone for u in one.acknowledged if (u.client, u.task) in unread}
    lost = {u for u in acknowledged if (u.client, u.task) not in seen} - rejected.keys() - excused
    untold = {u for one in living for u in one.acknowledged} - counted - rejected.keys()
    both = {(u.client, u.task) for u in counted}
    wrong = {u for u in counted if (u.client, u.task) not in seen}
    wrong |= {
        u for u, why in rejected.items() if (u.client, u.task) in seen and not why.startswith(ELSEWHERE)
    }
    foreign = sum(sum(1 for task in range(1 << 12) if (k, task) in state.server.seen) for k in strangers)
    accepted, version = summary.get("uploads", -1), summary.get("version")
    ends = {end for one in living for end in one.ends[-1:] or ["none"]}
    same = ends == {f"{version} {str(summary.get('digest'))[16:]}"}
    missing = len(seen) - len(both) if not gone else 0
    reasons: dict[str, int] = {}
    for why in rejected.values():
        short = next((known for known in (ELSEWHERE, ENDED) if why.startswith(known)), why[:60])
        reasons[short] = reasons.get(short, 0) + 1
    facts = {
        "acknowledged": len(acknowledged),
        "accepted": accepted,
        "rejected, and told so": reasons,
        "lost": len(lost),
        "twice": accepted - len(seen) - foreign,
        "stuck": stuck,
        "without a receipt": len(untold) + missing,
        "told the wrong thing": len(wrong),
        "x̂ equal on all sides": same,
    }
    bad = ("lost", "twice", "stuck", "without a receipt", "told the wrong thing")
    return {**facts, "held": same and accepted > 0 and not any(facts[name] for name in bad)}
