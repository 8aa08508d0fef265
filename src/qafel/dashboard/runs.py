"""The runs in a folder, as the page shows them: a list, and what each one recorded.

Files are read as they grow. A line that is being written is left out; one that cannot be read is an error
that the page shows beside what was read before it.
"""

import math
import os
import re
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from qafel.errors import ConfigError
from qafel.runs.events import EVENTS, read_events
from qafel.runs.folder import LIVE
from qafel.runs.result import decode_point
from qafel.runs.summary import Point, main_metric
from qafel.wire import Increment, Update, encode, fingerprint

MAX_POINTS = 400
MAX_EVENTS = 3000
MAX_DEPTH = 5
FRESH = 90.0
"""A run without a summary whose files are younger than this many seconds is running."""
REAL = 2_000_000
"""Models up to this size get the length of a real frame; the header of a longer one is as long."""
SEED = re.compile(r"[-_ ]*seed[-_ ]*\d+$")
NUMBERS = ("uploads", "version", "time", "bytes_up", "bytes_down", "staleness", "in_flight", "residual")
ERRORS = ("buffer", "server_error", "client_error")


class Listed(msgspec.Struct):
    """A run in the list."""

    id: str
    name: str
    group: str
    state: str
    """``ended``, ``running``, ``not ended`` or ``unreadable``."""
    seed: int | None = None
    uploads: int = 0
    metrics: dict[str, float] = {}
    """The newest smoothed metrics."""
    error: str | None = None


Known = tuple[tuple[float, ...], Listed, str]
"""What changes when a run does, the run, and what runs of one configuration have in common."""


class _Metrics:
    """The evaluations of a run, read as the file grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.points, self.error = path, list[Point](), ""
        self._read, self._damaged = 0, False
        self._file: tuple[int, int] | None = None

    def update(self) -> None:
        """Read what is new."""
        try:
            stat, config = self.path.stat(), self.path.with_name("config.toml").stat()
            size, identity = stat.st_size, (stat.st_ino, config.st_mtime_ns)
            if size < self._read or identity != self._file:  # resumed from a checkpoint, or another run
                self.points, self._read, self._damaged, self._file = [], 0, False, identity
            if self._damaged:
                return
            self.error = ""
            if size == self._read:
                return
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read(size - self._read)
        except OSError as error:
            self.error = f"{self.path.name} cannot be read: {error.strerror or error}"
            return
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                self.points.append(decode_point(line))
            except msgspec.MsgspecError as error:
                self.error = f"line {len(self.points) + 1} of {self.path.name} is not an evaluation: {error}"
                self._damaged = True
                return
        self._read += len(whole)


class Runs:
    """The runs below a folder; ids are opaque, and links to other folders are not followed.

    Requests come from several threads, one at a time.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(f"there is no folder {root}; name the folder of your runs")
        self.root = root
        self._paths: dict[str, Path] = {}
        self._metrics: dict[str, _Metrics] = {}
        self._known: dict[str, Known] = {}
        self._lock = threading.RLock()

    def known(self) -> list[Known]:
        """All runs, the newest first, without their groups."""
        with self._lock:
            runs = [self._look(path) for path in _folders(self.root)]
        return sorted(runs, key=lambda one: (-one[0][0], one[1].name))

    def list(self) -> list[Listed]:
        """All runs, the newest first; those that differ only in their seed have the same group."""
        runs = self.known()
        name_groups(runs)
        return [listed for _, listed, _ in runs]

    def _look(self, path: Path) -> Known:
        """A run, which is read again if it may have changed."""
        name = str(path.relative_to(self.root)) if path != self.root else path.resolve().name
        identity = f"{fingerprint(name.encode('utf-8', 'surrogateescape')):016x}"
        self._paths[identity] = path
        stamp = _stamp(path)
        known = self._known.get(identity)
        if known is None or known[0] != stamp or known[1].state == "running":
            known = self._known[identity] = stamp, *self._read(identity, name, path, stamp)
        return known

    def _read(self, identity: str, name: str, path: Path, stamp: tuple[float, ...]) -> tuple[Listed, str]:
        """A run, and what runs of one configuration have in common."""
        listed = Listed(id=identity, name=readable(name), group="", state="ended")
        try:
            config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
            listed.seed = config.get("seed")
            if (path / "summary.json").exists():
                summary = msgspec.json.decode((path / "summary.json").read_bytes())
                listed.uploads, newest = summary["uploads"], summary["smoothed"]
            else:
                listed.state = "running" if _age(stamp) < FRESH else "not ended"
                points = self._points(identity).points
                listed.uploads, newest = (points[-1].uploads, points[-1].smoothed) if points else (0, {})
            listed.metrics = {str(k): v for k, v in newest.items() if _is_finite(v)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            listed.state, listed.error = "unreadable", f"the run cannot be read: {error}"
            config = {"name": name}
        settings = {key: value for key, value in config.items() if key != "seed"}
        return listed, msgspec.json.encode([readable(path.parent), settings], enc_hook=str).decode()

    def _points(self, identity: str) -> _Metrics:
        metrics = self._metrics.setdefault(identity, _Metrics(self._paths[identity] / "metrics.jsonl"))
        metrics.update()
        return metrics

    def path(self, identity: str) -> Path:
        """The folder of a run, or ConfigError."""
        if identity not in self._paths:
            self.list()
        if identity not in self._paths:
            raise ConfigError("there is no such run; load the page again")
        return self._paths[identity]

    def stamp(self, identity: str) -> tuple[float, ...]:
        """What changes when a run does."""
        return _stamp(self.path(identity))

    def run(self, identity: str) -> dict[str, Any]:
        """What a run recorded: columns of its points, its staleness, and the bytes of full precision."""
        path = self.path(identity)
        with self._lock:
            metrics = self._points(identity)
            points = [metrics.points[k] for k in thinned(metrics.points)]
        about, error = _about(path)
        content: dict[str, Any] = {"points": columns(points), "error": metrics.error or error}
        content["staleness"], size = about.get("staleness", {}), about.get("size")
        content["events"] = (path / EVENTS).exists()
        if isinstance(size, int) and size > 0:
            up, down = full_precision(size)
            content["full_up"] = [up * point.uploads for point in points]
            broadcast = about.get("downlink", "broadcast") == "broadcast"
            content["full_down"] = [down * (p.version if broadcast else p.uploads) for p in points]
        return content

    def events(self, identity: str, first: int = 0) -> dict[str, Any]:
        """Events of a run from the ``first`` on, at most MAX_EVENTS; their number; and the buffer's size."""
        path = self.path(identity) / EVENTS
        try:
            with path.open("rb") as file:
                total = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
            events = read_events(path, max(0, first), MAX_EVENTS)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the events of the run cannot be read: {error}") from error
        try:
            config = tomllib.loads((path.parent / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            config = {}
        return {"events": events, "total": total, "buffer": config.get("buffer_size", 10)}


def readable(text: str | Path) -> str:
    """A name with replacement characters for what is not UTF-8."""
    return str(text).encode("utf-8", "replace").decode()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def full_precision(size: int) -> tuple[int, int]:
    """The lengths of a real update and a real increment of ``size`` float32 numbers."""
    word, payload = (1 << 64) - 1, bytes(4 * min(size, REAL))
    rest = 4 * (size - min(size, REAL))
    update, increment = Update(word, 1000, 100, 1000, payload), Increment(word, 1000, word, True, payload)
    return len(encode(update)) + rest, len(encode(increment)) + rest


def thinned(points: list[Point]) -> list[int]:
    """The places of at most MAX_POINTS points: the first, the last, and the extremes of each stretch between.

    A peak of the main metric is never lost.
    """
    count = len(points)
    if count <= MAX_POINTS:
        return list(range(count))
    name = main_metric(points[-1].metrics)
    chosen = {0, count - 1}
    stretches = MAX_POINTS // 2 - 1
    for k in range(stretches):
        stretch = range(k * count // stretches, (k + 1) * count // stretches)
        values = [points[place].metrics.get(name, math.nan) for place in stretch]
        known = [(value, place) for value, place in zip(values, stretch, strict=True) if value == value]
        chosen |= {min(known)[1], max(known)[1]} if known else {stretch[0]}
    return sorted(chosen)


def columns(points: list[Point]) -> dict[str, Any]:
    """The points as lists of numbers by name."""
    values: dict[str, Any] = {
        name: [getattr(point, name) for point in points] for name in (*NUMBERS, *ERRORS)
    }
    names = dict.fromkeys(name for point in points for name in point.metrics)
    for kind in ("metrics", "smoothed"):
        values[kind] = {name: [getattr(point, kind).get(name) for point in points] for name in names}
    return values


def _about(path: Path) -> tuple[dict[str, Any], str | None]:
    """Size and staleness of a run: of its summary, or of live.json while it runs."""
    ended = (path / "summary.json").exists()
    file = path / ("summary.json" if ended else LIVE)
    if not file.exists():
        return {}, None
    try:
        about = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        staleness = about.get("staleness", {})
        histogram = staleness.get("histogram", {}) if ended else staleness
        about["staleness"] = {str(int(tau)): int(count) for tau, count in histogram.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return {}, f"{file.name} cannot be read: {error}"
    return about, None


def _folders(root: Path) -> list[Path]:
    """The folders of runs below a folder; links are not followed."""
    runs = []
    for place, folders, files in os.walk(root):
        path = Path(place)
        depth = len(path.relative_to(root).parts)
        if "config.toml" in files and ("metrics.jsonl" in files or "summary.json" in files):
            runs.append(path)
            folders.clear()
        elif depth >= MAX_DEPTH:
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
    return runs


def _stamp(path: Path) -> tuple[float, ...]:
    """(newest change, sizes) of the files of a run."""
    changes, sizes = [0.0], []
    for name in ("metrics.jsonl", "summary.json"):
        try:
            stat = (path / name).stat()
        except OSError:
            sizes.append(-1.0)
            continue
        changes.append(stat.st_mtime)
        sizes.append(float(stat.st_size))
    return max(changes), *sizes


def _age(stamp: tuple[float, ...]) -> float:
    return time.time() - stamp[0]


def name_groups(runs: list[Known]) -> None:
    """Give runs of one configuration, which have different seeds, the same group."""
    groups: dict[str, list[Listed]] = {}
    for _, listed, key in runs:
        place = key
        while any(other.seed == listed.seed for other in groups.get(place, ())):
            place += "+"  # the same seed again is another group
        groups.setdefault(place, []).append(listed)
    taken: set[str] = set()
    for group in groups.values():
        name = group[0].name if len(group) == 1 else SEED.sub("", group[-1].name) or group[-1].name
        while name in taken:
            name += "′"
        taken.add(name)
        for listed in group:
            listed.group = name
