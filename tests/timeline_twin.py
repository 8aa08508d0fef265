"""The slow twin of the timeline: its rules, one event at a time, with a heap of tuples and no kernel."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qafel.sim import Settings
from qafel.streams import generator

BLOCK = 8192
Row = tuple[str, float, int, int, int, int]


def _durations(spec: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    kind, _, scale = spec.partition(":")
    if kind == "fixed":
        return np.full(BLOCK, float(scale))
    return {
        "halfnormal": lambda: float(scale) * abs(rng.standard_normal(BLOCK)),
        "exponential": lambda: float(scale) * rng.standard_exponential(BLOCK),
    }[kind]()


class Stream:
    """Numbers of one purpose, block by block."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw, self.block, self.values, self.next = draw, 0, np.empty(0), 0

    def __call__(self) -> float:
        if self.next == len(self.values):
            self.values, self.block, self.next = self.draw(self.block), self.block + 1, 0
        self.next += 1
        return float(self.values[self.next - 1])


def walk(
    clock: Settings,
    clients: int,
    *,
    download: Callable[[int, int], float] = lambda client, version: 0.0,
    upload: Callable[[int], float] = lambda serial: 0.0,
    broadcast: Callable[[int], float] | None = None,
) -> Iterator[Row]:
    """Events (kind, time, serial, client, task, version or staleness), for ever."""
    mode, seed, max_staleness = clock.arrival_process, clock.seed, clock.max_staleness
    buffer_size = clock.buffer_size or 10
    duration = Stream(lambda b: _durations(clock.duration, generator(seed, "durations", b)))
    dropout = Stream(lambda b: generator(seed, "dropouts", b).random(BLOCK))
    chosen = Stream(lambda b: generator(seed, "clients", b).integers(0, clients, BLOCK))
    gap = Stream(lambda b: generator(seed, "arrivals", b).standard_exponential(BLOCK) / clock.rate)
    slow = generator(seed, "speeds").random(clients) < clock.slow_fraction
    heap: list[tuple[float, int, str, Any]] = []
    pushes = tasks = in_flight = version = delivered = buffered = arrivals = 0
    busy: Counter[int] = Counter()
    numbers: Counter[int] = Counter()
    now = before = 0.0
    following = np.inf
    if mode == "constant":
        following = 0.0
    elif mode == "poisson":
        following = gap()

    def push(time: float, kind: str, what: Any) -> None:
        nonlocal pushes
        heapq.heappush(heap, (time, pushes, kind, what))
        pushes += 1

    def start(client: int | None) -> Row:
        nonlocal tasks, in_flight
        task, tasks = tasks, tasks + 1
        while client is None:
            client = int(chosen())
            if (clock.sampling == "idle" or clock.arrival_process == "rounds") and busy[client]:
                client = None
        number = numbers[client]
        numbers[client] += 1
        busy[client] += 1
        in_flight += 1
        length, lost = duration() * (clock.slow_factor if slow[client] else 1.0), dropout() < clock.dropouts
        row = ("never" if lost else "start", now, task, client, number, delivered)
        wait = download(client, delivered)
        what = (task, client, number, delivered)
        push(now + wait + length, "lost" if lost else "trained" if clock.live else "report", what)
        return row

    if mode == "refill":
        assert clock.concurrency is not None
        for _ in range(clock.concurrency):
            yield start(None)
    elif mode == "closed":
        for client in range(clients):
            yield start(client)
    elif mode == "rounds":
        for _ in range(buffer_size):
            yield start(None)
    while heap or following < np.inf:
        if heap and heap[0][0] <= following:
            now, _, kind, what = heapq.heappop(heap)
            if kind == "deliver":
                delivered = what
                yield ("deliver", now, -1, -1, -1, what)
                if mode == "rounds":
                    busy.clear()
                    for _ in range(buffer_size):
                        yield start(None)
                continue
            task, client, number, began = what
            if mode == "closed" and kind != "trained":
                yield start(client)
            yield (kind, now, task, client, number, version - began)
            if kind == "trained":
                push(now + upload(task), "report", what)
                continue
            stepped = False
            if kind == "report" and (max_staleness is None or version - began <= max_staleness):
                buffered += 1
                stepped = buffered == buffer_size
            in_flight -= 1
            if mode != "rounds" or kind == "lost":
                busy[client] -= 1
            if stepped:
                buffered, version = 0, version + 1
                if broadcast is None:
                    delivered = version
                else:
                    before = max(before, now) + broadcast(version)
                    push(before, "deliver", version)
            if mode == "refill" or (mode == "rounds" and kind == "lost"):
                yield start(None)
            elif mode == "rounds" and stepped and broadcast is None:
                busy.clear()
                for _ in range(buffer_size):
                    yield start(None)
        else:
            now = following
            arrivals += 1
            following = arrivals / clock.rate if mode == "constant" else following + gap()
            capped = clock.concurrency is not None and in_flight >= clock.concurrency
            if capped or (clock.sampling == "idle" and in_flight >= clients):
                yield ("away", now, -1, -1, -1, -1)
            else:
                yield start(None)
