"""The timeline: when each task starts and reports, and from which version; in a fixed order, from a seed.

Arrivals:

    open       clients arrive at a rate, or from a trace; beyond ``concurrency`` they are turned away
    refill     ``concurrency`` clients train at any time; one that reports is replaced at once
    closed     every client starts again when its report arrives, before the step that it may cause
    rounds     K different clients start together, the next K when all have reported (synchronous FedAvg)

    A client that arrives is drawn uniformly, from all clients or from the idle ones. It starts from the
    newest version that has reached the clients. K reports that are not too stale make the next version. A
    client that drops out takes its time and never reports.

    Events at the same time happen in the order they were scheduled, reports before arrivals.

Without bandwidths the clock does not depend on the learning, and the timeline is computed ahead in blocks.
With bandwidths (``live``) it stops after every event whose consequences depend on the length of a frame, and
continues when it gets an ``answer``: how long the download, the upload or the broadcast takes. One kernel
does both.

Random numbers are named by what they are for and by the block of tasks, so the order of execution does not
matter, and the state to be saved is small.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from qafel.errors import ConfigError, StateError
from qafel.lazy import Lazy
from qafel.sim.clock import Times, duration_sampler, trace
from qafel.sim.settings import Settings
from qafel.streams import generator

BLOCK = 8192
EVENTS = 4096

kernels = Lazy("qafel.sim.kernels")


class Event(NamedTuple):
    """An event; ``kind`` is START, NEVER, TRAINED, REPORT, LOST, DELIVER or AWAY of ``qafel.sim.kernels``.

    ``serial`` numbers all tasks of the timeline, ``task`` those of the client. ``version`` is the version
    that a task starts from, its staleness when it reports, or the version that is delivered. ``due`` is when
    a task that starts will be trained, without transfers. NEVER is the start of a task that will be LOST;
    AWAY is an arrival that was turned away because the concurrency was reached.
    """

    kind: int
    time: float
    serial: int
    client: int
    task: int
    version: int
    slot: int
    due: float


class _State(msgspec.Struct, array_like=True):
    arrays: list[bytes]
    room: int
    blocks: tuple[int, int]
    ended: bool
    times: tuple[float, float]
    ahead: list[Event]


class Timeline:
    """An iterator of events."""

    def __init__(
        self, settings: Settings, *, clients: int, durations: Callable[[int], Times] | None = None
    ) -> None:
        """``durations(block)``, if given, are the training times of a block's tasks in order."""
        seed, mode = settings.seed, settings.arrival_process
        self.settings, self.live = settings, settings.live
        self._seed, self._clients = seed, clients
        draw = duration_sampler(settings.duration)
        self._durations = durations or (lambda block: draw(generator(seed, "durations", block), BLOCK))
        modes = {"refill": kernels.REFILL, "closed": kernels.CLOSED, "rounds": kernels.ROUNDS}
        self._mode = modes.get(mode, kernels.OPEN)
        self._rules = self._kernel_rules()
        self._counters = np.zeros(kernels.COUNTERS, np.int64)
        self._clocks = np.zeros(kernels.CLOCKS)
        self._clocks[kernels.LENGTH] = -1
        self._counters[kernels.FORCED] = -1
        rounds = self._rules[1]
        first = {kernels.REFILL: settings.concurrency, kernels.CLOSED: clients, kernels.ROUNDS: rounds}
        self._counters[kernels.PENDING] = first.get(self._mode) or 0
        slowness = np.ones(1)
        if settings.slow_fraction:
            slow = generator(seed, "speeds").random(clients) < settings.slow_fraction
            slowness = np.where(slow, float(settings.slow_factor), 1.0)
        self._by_client = np.zeros(clients, np.int32), np.zeros(clients, np.int64), slowness
        self._trace = None
        if mode.startswith("trace:"):
            self._trace = trace(Path(mode.partition(":")[2]), clients)
        self._slots, self._free = np.zeros((0, kernels.FIELDS), np.int64), np.zeros(0, np.int64)
        self._heap: tuple[Any, Any, Any] = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
        self._room(256)
        self._draws: tuple[Any, ...] = np.empty(BLOCK), np.empty(BLOCK), np.empty(0, np.int64)
        empty = np.empty(0)
        self._arrivals: tuple[Any, ...] = empty, np.empty(0, np.int64), empty, self._mode != kernels.OPEN
        self._blocks = (0, 0)
        """Blocks drawn of arrivals and of clients."""
        self._gap_total, self._before = 0.0, 0.0
        ahead = 1 if self.live else EVENTS
        whose = np.empty((ahead, 5), np.int64)
        self._events = np.empty(ahead, np.int64), np.empty(ahead), whose, np.zeros(ahead)
        self._ahead: Iterator[Event] = iter(())
        self._last: Event | None = None
        self.asks = False
        """Whether the last event needs an answer."""

    def _kernel_rules(self) -> tuple[Any, ...]:
        """The rules of this clock as ``kernels.advance`` takes them; ConfigError if they cannot be met."""
        settings, clients, buffer_size = self.settings, self._clients, self.settings.job(1).buffer_size
        limit, idle = settings.concurrency, settings.sampling == "idle" or self._mode == kernels.ROUNDS
        if self._mode == kernels.REFILL and idle and (limit or 0) > clients:
            raise ConfigError(f"concurrency is {limit}, but there are only {clients} clients")
        if self._mode == kernels.ROUNDS and buffer_size > clients:
            raise ConfigError(
                f"a round has buffer_size = {buffer_size} clients, but there are only {clients}"
            )
        max_staleness = -1 if settings.max_staleness is None else settings.max_staleness
        cap = limit if self._mode == kernels.OPEN and limit is not None else 0
        instant = settings.down_bandwidth is None or settings.downlink == "catch-up"
        dropouts = float(settings.dropouts)
        return self._mode, buffer_size, max_staleness, cap, idle, self.live, instant, dropouts

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while True:
            event = next(self._ahead, None)
            if event is not None:
                self._last = event
                return event
            if self.asks:
                raise StateError("the timeline needs the duration of the last transfer; call answer(delay)")
            count, ended = self.block()
            if not count and ended:
                raise StopIteration
            kinds, times, whose, dues = (column[:count].tolist() for column in self._events)
            rows = zip(kinds, times, whose, dues, strict=True)
            self._ahead = iter([Event._make((kind, time, *row, due)) for kind, time, row, due in rows])

    def block(self) -> tuple[int, bool]:
        """Compute at most a block of events: (their number, whether they are the last)."""
        count = 0
        while not count:
            clock = self._rules, self._counters, self._clocks, self._heap, self._slots, self._free
            count, why = kernels.advance(*clock, self._by_client, self._draws, self._arrivals, self._events)
            if why == kernels.NEEDS_DRAWS:
                self._draw_block()
            elif why == kernels.NEEDS_CLIENTS:
                self._draw_clients()
            elif why == kernels.NEEDS_ARRIVALS:
                self._draw_arrivals()
            elif why == kernels.NEEDS_ROOM:
                self._room(2 * len(self._slots))
            elif why == kernels.ENDED:
                return count, True
        self.asks = why == kernels.ASKS
        return count, False

    def answer(self, delay: float) -> None:
        """Say how long the transfer takes that the last event began; only when ``live``."""
        event = self._last
        if not self.asks or event is None:
            raise StateError("the timeline does not wait for an answer")
        self.asks = False
        due, kind, slot = self.now + delay, kernels.REPORT, event.slot
        if event.kind in (kernels.START, kernels.NEVER):
            due += float(self._clocks[kernels.LENGTH])
            kind = kernels.TRAINED if event.kind == kernels.START else kernels.LOST
            self._clocks[kernels.LENGTH] = -1
        elif event.kind != kernels.TRAINED:
            due = self._before = max(self._before, self.now) + delay
            kind, slot = kernels.DELIVER, self.version
        kernels.push(self._counters, *self._heap, due, kind, slot)

    @property
    def now(self) -> float:
        """The time of the newest event computed."""
        return float(self._clocks[kernels.NOW])

    @property
    def version(self) -> int:
        """The server's version after the events computed."""
        return int(self._counters[kernels.VERSION])

    @property
    def concurrency(self) -> float:
        """The mean number of clients in flight, over time."""
        return float(self._clocks[kernels.AREA]) / self.now if self.now else 0.0

    @property
    def expected_in_flight(self) -> float:
        """About how many tasks will be in flight, without transfers; a client may have several of them."""
        settings, mode = self.settings, self._mode
        if settings.sampling == "idle" or mode in (kernels.CLOSED, kernels.ROUNDS) or self._trace is not None:
            return 0.0
        if mode == kernels.REFILL:
            return float(settings.concurrency or 0)
        mean = float(self._durations(0).mean()) * float(self._by_client[2].mean())
        return min(settings.rate * mean, settings.concurrency or math.inf)

    @property
    def columns(self) -> tuple[Any, Any, Any]:
        """(kinds, times, [serial, client, task, version or staleness, slot]) of the block computed last."""
        return self._events[:3]

    def _room(self, size: int) -> None:
        """Make room for this many tasks in flight."""
        heap = np.zeros(2 * size + 4), np.zeros(2 * size + 4, np.int64), np.zeros((2 * size + 4, 2), np.int64)
        slots, free = np.zeros((size, kernels.FIELDS), np.int64), np.zeros(size, np.int64)
        before = len(self._slots)
        if before:
            for new, old in zip(heap, self._heap, strict=True):
                new[: len(old)] = old
            slots[:before] = self._slots
            free[: self._counters[kernels.FREE]] = self._free[: self._counters[kernels.FREE]]
        added = np.arange(size - 1, before - 1, -1)
        free[self._counters[kernels.FREE] : self._counters[kernels.FREE] + len(added)] = added
        self._counters[kernels.FREE] += len(added)
        self._heap, self._slots, self._free = heap, slots, free

    def _draw_block(self) -> None:
        """Draw durations and drop-outs of the next block of tasks."""
        block = int(self._counters[kernels.TASKS]) // BLOCK
        dropping = generator(self._seed, "dropouts", block).random(BLOCK)
        self._draws = self._durations(block), dropping, self._draws[2]
        self._counters[kernels.DRAWN] = (block + 1) * BLOCK

    def _draw_clients(self) -> None:
        """Draw the next block of clients."""
        arrivals, block = self._blocks
        chosen = generator(self._seed, "clients", block).integers(0, self._clients, BLOCK)
        self._draws = *self._draws[:2], chosen
        self._blocks = arrivals, block + 1
        self._counters[kernels.CLIENT] = 0

    def _draw_arrivals(self) -> None:
        """Draw the next block of open arrivals."""
        block, clients = self._blocks
        if self._trace is not None:
            self._arrivals = (*self._trace, True)
        else:
            starts = np.arange(block * BLOCK, (block + 1) * BLOCK) / self.settings.rate
            if self.settings.arrival_process == "poisson":
                gaps = generator(self._seed, "arrivals", block).standard_exponential(BLOCK)
                starts = np.cumsum(np.concatenate([[self._gap_total], gaps / self.settings.rate]))[1:]
                self._gap_total = float(starts[-1])
            self._arrivals = starts, np.full(BLOCK, -1), np.full(BLOCK, -1.0), False
        self._blocks = block + 1, clients
        self._counters[kernels.ARRIVAL] = 0

    def state(self) -> bytes:
        """Everything that decides what happens next."""
        ahead = list(self._ahead)
        self._ahead = iter(ahead)
        saved = _State(
            arrays=[array.tobytes() for array in self._arrays()],
            room=len(self._slots),
            blocks=self._blocks,
            ended=bool(self._arrivals[3]),
            times=(self._gap_total, self._before),
            ahead=ahead,
        )
        return msgspec.msgpack.encode(saved)

    def restore(self, state: bytes) -> None:
        """Continue from ``state`` of a timeline with the same settings."""
        saved = msgspec.msgpack.decode(state, type=_State)
        self._room(saved.room)
        types = [array.dtype for array in self._arrays()]
        shapes = [(-1, *array.shape[1:]) for array in self._arrays()]
        arrays = [
            np.frombuffer(data, kind).reshape(shape).copy()
            for data, kind, shape in zip(saved.arrays, types, shapes, strict=True)
        ]
        self._counters, self._clocks = arrays[:2]
        self._heap, self._slots, self._free = (arrays[2], arrays[3], arrays[4]), arrays[5], arrays[6]
        self._by_client = arrays[7], arrays[8], self._by_client[2]
        self._draws, self._arrivals = tuple(arrays[9:12]), (*arrays[12:15], saved.ended)
        self._blocks, (self._gap_total, self._before) = saved.blocks, saved.times
        self._ahead = iter(saved.ahead)

    def _arrays(self) -> list[Any]:
        whole = [self._counters, self._clocks, *self._heap, self._slots, self._free, *self._by_client[:2]]
        return [*whole, *self._draws, *self._arrivals[:3]]
