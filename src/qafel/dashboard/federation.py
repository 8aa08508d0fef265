"""A running federation on the page: followed in a thread, with a key that can only read."""

import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from qafel.dashboard.runs import Listed, columns, thinned
from qafel.errors import one_line
from qafel.runs.result import decode_point
from qafel.runs.summary import Point
from qafel.tables import Table

if TYPE_CHECKING:
    from qafel.federation.operate import ClientRow

PAUSE = 2.0
"""Seconds until a federation that does not answer is asked again."""
EVERY = 5
"""The tables are read with every fifth status."""
MAX_CLIENTS = 1000
SHOWN = ("client", "seen", "versions behind", "tasks", "rejections")
IDENTITY = "federation"


class Federation:
    """Follows a federation by name; ``content()`` is what the page shows of it."""

    def __init__(self, name: str, broker: str, keys: str | Path | None = None) -> None:
        self.name, self._broker, self._keys = name, broker, keys
        self._content: dict[str, Any] = {"name": name, "error": "waiting for its server"}
        self._points: list[Point] = []
        self._reason: str | None = None
        threading.Thread(target=self._follow, daemon=True).start()

    def content(self) -> dict[str, Any]:
        """Facts, clients, and an error if there is one."""
        return self._content

    @property
    def listed(self) -> Listed:
        """The federation as a run."""
        last = self._points[-1] if self._points else None
        return Listed(
            id=IDENTITY,
            name=f"federation {self.name}",
            group=f"federation {self.name}",
            state="ended" if self._reason else "running",
            uploads=last.uploads if last else 0,
            metrics={k: v for k, v in last.smoothed.items() if math.isfinite(v)} if last else {},
        )

    @property
    def stamp(self) -> int:
        """What changes when there is an evaluation more."""
        return len(self._points)

    def run(self) -> dict[str, Any]:
        """The evaluations of the federation as of a few seconds ago."""
        points = [self._points[k] for k in thinned(self._points)]
        return {"points": columns(points), "error": None, "staleness": {}, "events": False}

    def _follow(self) -> None:
        from qafel.federation import watch
        from qafel.federation.operate import clients, facts, points

        rows: list[ClientRow] = []
        while True:
            try:
                for number, status in enumerate(watch(self.name, self._broker, self._keys)):
                    if number % EVERY == 0 or status["reason"]:
                        rows = clients(self.name, self._broker, self._keys)
                        read = points(self.name, self._broker, self._keys)
                        self._points = [decode_point(msgspec.json.encode(point)) for point in read]
                    self._reason = status["reason"]
                    self._content = {
                        "name": self.name,
                        "facts": facts(status),
                        "clients": _rows(rows),
                    }
                if self._reason:
                    return
            except Exception as error:
                self._content = {**self._content, "error": one_line(error)}
            time.sleep(PAUSE)


def _rows(rows: "list[ClientRow]") -> list[list[str]]:
    """The columns of the clients that the page shows."""
    from qafel.federation.operate import CLIENT_COLUMNS

    return Table.of("", {name: CLIENT_COLUMNS[name] for name in SHOWN}, rows[:MAX_CLIENTS]).rows
