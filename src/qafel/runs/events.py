"""The event log of a simulation: events.jsonl, one JSON array a line.

    ["start", time, client, task, version]      a client starts a task from that version of x̂
    ["report", time, client, task, staleness]   its update reaches the server and is counted
    ["rejected", time, client, task, reason]    its update reaches the server and is not counted
    ["lost", time, client, task]                it drops out
    ["step", time, version, bytes]              the buffer is full; the increment goes to every client

Times are those of the virtual clock. The log does not change a run, and a run does not read it.
"""

from pathlib import Path
from typing import Any

import msgspec

EVENTS = "events.jsonl"
Event = list[Any]


def read_events(path: Path, first: int = 0, count: int | None = None) -> list[Event]:
    """``count`` events from the ``first`` on; a line that is being written is left out."""
    decode = msgspec.json.Decoder(Event).decode
    events: list[Event] = []
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number < first or not line.endswith(b"\n"):
                continue
            if count is not None and len(events) >= count:
                break
            events.append(decode(line))
    return events
