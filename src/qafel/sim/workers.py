"""Training in worker processes, one per core.

Workers are forked: they share the data and the code of this process, and whatever a user defined in a
notebook. Shared memory holds

    versions   the newest x̂; one is overwritten when no task needs it any more
    queue      orders, those with the earliest deadline first; whoever is idle takes the next
    boxes      frames, from the worker that made them to this process

and pipes say that something is there: a ``token`` for every order, an ``answer`` for every frame, and a
``bell`` that wakes this process when the queue runs low. While there is enough to do it sleeps, and leaves
the cores to the workers. A task's deadline is when it reports, or when its x̂ is about to be overwritten.
"""

import contextlib
import ctypes
import heapq
import math
import mmap
import multiprocessing
import os
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qafel import wire
from qafel.client import assign
from qafel.coding.threads import set_threads
from qafel.config import Job
from qafel.errors import ConfigError, DivergenceError
from qafel.sim.frames import Frames
from qafel.sim.pool import Learner, Trainer, WorkerError, sentence
from qafel.sim.timeline import Event
from qafel.vectors import Vector

BATCH = 4
"""Orders that a worker takes at once where there are many: one kind of work warms the cache for the next."""
VERSIONS = 16
"""Versions of x̂ in shared memory, at most; as few as 4 where they would take up more than ROOM."""
BOXES = 64
"""Orders in the queue or in training, at most; fewer where their frames would take up more than ROOM."""
ROOM = 64 << 20
LAST_WORDS = 1 << 16
MILLISECONDS = 100
"""How long this process sleeps at most."""
TRAIN, JUDGE, FAILED = range(3)
_ANSWER = struct.Struct("<qqqqd")
"""Kind, box, task or chunk, length or how many are right, loss."""


class _Shared:
    """What this process and its workers see alike."""

    def __init__(self, job: Job, workers: int) -> None:
        box = max(job.quantizers()[0].max_bytes(job.size) + wire.MAX_OVERHEAD, LAST_WORDS)
        count = max(2 * workers, min(BOXES, ROOM // box))
        places = max(4, min(VERSIONS, ROOM // (4 * job.size)))
        self.parent, self.low = os.getpid(), min(count // 2, workers * (BATCH + 1))
        self.versions: Any = _array((places, job.size), np.float32)
        self.model: Any = _array((job.size,), np.float32)
        self.boxes: Any = _array((count, box), np.uint8)
        self.seconds: Any = _array((workers, 3), np.float64)
        self.queue: Any = _array((count, 7), np.int64)
        """(kind, task or chunk, client, number, version, place of x̂, box)."""
        self.ends: Any = _array((2,), np.int64)
        """Where the queue begins and ends."""
        self.hungry: Any = _array((1,), np.uint8)
        """Whether every answer rings the bell."""
        self.tokens, self.answers, self.bell, self._key = (os.pipe() for _ in range(4))
        os.set_blocking(self._key[0], False)
        os.write(self._key[1], b".")

    def put(self, box: int, data: bytes) -> None:
        """Leave something in a box."""
        self.boxes[box, : len(data)] = np.frombuffer(data, np.uint8)

    def take(self, box: int, length: int) -> bytes:
        """What is in a box."""
        return bytes(self.boxes[box, :length])

    @property
    def length(self) -> int:
        """Of the queue."""
        return int(self.ends[1] - self.ends[0])

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Whoever holds the key may touch the queue; ``check`` is called when it does not come back."""
        key = select.poll()
        key.register(self._key[0], select.POLLIN)
        while True:
            with contextlib.suppress(BlockingIOError):
                os.read(self._key[0], 1)
                break
            if not key.poll(MILLISECONDS):
                check()
        try:
            yield
        finally:
            os.write(self._key[1], b".")

    def next_orders(self) -> list[Any]:
        """Orders for a worker; it waits for them. None when this process is gone.

        A token is read before its order is taken, and written after the order is there: whoever has tokens
        finds as many orders.
        """
        many = max(0, min(BATCH - 1, self.length - 1 - self.low))
        held = len(os.read(self.tokens[0], 1 + many))
        if not held:
            return []
        with self.locked(_check_parent(self.parent)):
            first, length = int(self.ends[0]), self.length
            self.ends[0] += held
            orders: list[Any] = self.queue[first : first + held].tolist()
        if length > self.low >= length - held:
            os.write(self.bell[1], b".")
        return orders

    def close(self) -> None:
        """Close the pipes."""
        for end in (*self.tokens, *self.answers, *self.bell, *self._key):
            with contextlib.suppress(OSError):
                os.close(end)


def _check_parent(parent: int) -> Callable[[], None]:
    """End this worker when the process that forked it is gone."""

    def check() -> None:
        if os.getppid() != parent:
            os._exit(0)

    return check


def _array(shape: tuple[int, ...], kind: Any) -> Any:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(mmap.mmap(-1, size), kind).reshape(shape)


class Workers:
    """Training in ``count`` processes; see ``qafel.sim.pool`` for what each method does."""

    def __init__(self, job: Job, learner: Learner, frames: Frames, count: int) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("more than one worker needs a system that can fork processes; use one worker")
        Trainer(job, learner, np.zeros(3)).warm(learner.x)  # load the kernels once for all
        self._frames, self._chunks, self._shared = frames, learner.chunks, _Shared(job, count)
        self._bell = select.poll()
        self._bell.register(self._shared.bell[0], select.POLLIN)
        context = multiprocessing.get_context("fork")
        self._processes: list[Any] = []
        try:
            for k in range(count):
                process = context.Process(target=_work, args=(k, self._shared, job, learner), daemon=True)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads
                    process.start()
                self._processes.append(process)
        except BaseException:
            self.close()
            raise
        os.set_blocking(self._shared.answers[0], False)
        places = len(self._shared.versions)
        self._boxes = list(range(len(self._shared.boxes)))
        self._users = [0] * places
        self._moved = deque([0.0], maxlen=places // 2)
        """When x̂ moved on lately."""
        self._todo: list[tuple[float, list[int]]] = []
        """A heap of orders that are not in the queue: (deadline, order without its box)."""
        self._waiting: dict[int, tuple[int, float]] = {}
        """(place of x̂, deadline) of every task that is not done."""
        self._verdicts: dict[int, tuple[int, float]] = {}

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [process.pid for process in self._processes]

    def follow(self, x: Vector, version: int, now: float) -> None:
        """x̂ moves on."""
        place = version % len(self._users)
        while self._users[place]:
            self._take()
        np.copyto(self._shared.versions[place], x)
        self._moved.append(now)

    def start(self, event: Event) -> None:
        """Train a task."""
        place = event.version % len(self._users)
        deadline = min(event.due, event.time + event.time - self._moved[0])
        self._waiting[event.task] = place, deadline
        self._users[place] += 1
        order = [TRAIN, event.task, event.client, event.number, event.version, place]
        heapq.heappush(self._todo, (deadline, order))
        if len(self._todo) >= BATCH:
            self._publish()

    def wait(self, task: int) -> None:
        """Until the frame of a task is there."""
        while task in self._waiting:
            self._take()

    def settle(self) -> None:
        """Until all frames are there."""
        while self._waiting:
            self._take()

    def judge(self, x: Vector) -> list[tuple[int, float]]:
        """Verdicts on the held-out samples."""
        self._verdicts.clear()
        np.copyto(self._shared.model, x)
        for chunk in range(self._chunks):
            heapq.heappush(self._todo, (-math.inf, [JUDGE, chunk, 0, 0, 0, 0]))
        while len(self._verdicts) < self._chunks:
            self._take()
        return [self._verdicts[chunk] for chunk in range(self._chunks)]

    @property
    def seconds(self) -> list[float]:
        """Spent by all workers on samples, on training, and on coding."""
        return [float(s) for s in self._shared.seconds.sum(0)]

    def close(self) -> None:
        """Stop the workers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._shared.close()

    def _publish(self) -> None:
        """Put orders into the queue, as many as there are boxes for."""
        count = min(len(self._todo), len(self._boxes))
        if not count:
            return
        added = [[*heapq.heappop(self._todo)[1], self._boxes.pop()] for _ in range(count)]
        shared = self._shared
        with shared.locked(self._check):
            orders = shared.queue[shared.ends[0] : shared.ends[1]].tolist() + added
            orders.sort(key=self._deadline)
            shared.queue[: len(orders)] = orders
            shared.ends[:] = 0, len(orders)
        os.write(shared.tokens[1], bytes(count))

    def _deadline(self, order: list[int]) -> float:
        return self._waiting[order[1]][1] if order[0] == TRAIN else -math.inf

    def _take(self) -> None:
        """Sleep until there are answers and the queue runs low, or for a moment; take the answers in."""
        self._publish()
        self._shared.hungry[0] = self._shared.length <= self._shared.low
        if self._drain():
            return
        if self._bell.poll(MILLISECONDS):
            os.read(self._shared.bell[0], 4096)
        else:
            self._check()
        self._drain()

    def _drain(self) -> bool:
        """Take in the answers that are there."""
        try:
            data = os.read(self._shared.answers[0], BOXES * _ANSWER.size)
        except BlockingIOError:
            return False
        for kind, box, task, number, loss in _ANSWER.iter_unpack(data):
            self._boxes.append(box)
            if kind == FAILED:
                said = self._shared.take(box, number).decode(errors="replace")
                error, message, remote = said.split("\0", 2)
                if error == DivergenceError.__name__:
                    raise DivergenceError(message)
                raise WorkerError(message, remote)
            if kind == TRAIN:
                self._frames.put(task, self._shared.take(box, number))
                place, _ = self._waiting.pop(task)
                self._users[place] -= 1
            else:
                self._verdicts[task] = number, loss
        return True

    def _check(self) -> None:
        """Complain if a worker is gone."""
        for process in self._processes:
            code = process.exitcode
            if code is not None:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise WorkerError(f"a worker died ({why}), perhaps for lack of memory; try fewer workers")


def _work(k: int, shared: _Shared, job: Job, learner: Learner) -> None:
    """The life of a worker: until the process that forked it is gone, even if nobody says so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.close(shared.tokens[1])
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the process that hands out the work
        signal.signal(number, signal.SIG_IGN)
    set_threads(1)
    learner.prepare()
    trainer = Trainer(job, learner, shared.seconds[k], time.thread_time)  # others may share the core
    versions, model = shared.versions.view(), shared.model.view()
    versions.flags.writeable = model.flags.writeable = False

    def answers(orders: list[Any]) -> Iterator[tuple[int, int, int, int, float]]:
        training = [order for order in orders if order[0] == TRAIN]
        try:
            tasks = [
                assign(job, client, number, version, versions[place])
                for _, _, client, number, version, place, _ in training
            ]
            for (_, task, *_, box), frame in zip(training, trainer.train(tasks), strict=True):
                shared.put(box, frame)
                yield TRAIN, box, task, len(frame), 0.0
            for kind, chunk, *_, box in orders:
                if kind == JUDGE:
                    yield JUDGE, box, chunk, *learner.judge(model, chunk)
        except Exception as error:
            words = f"{type(error).__name__}\0{sentence(error)}\0{traceback.format_exc()}".encode()[
                :LAST_WORDS
            ]
            box = orders[-1][-1]
            shared.put(box, words)
            yield FAILED, box, 0, len(words), 0.0

    with contextlib.suppress(OSError):  # nobody listens any more
        while orders := shared.next_orders():
            said = list(answers(orders))
            os.write(shared.answers[1], b"".join(_ANSWER.pack(*answer) for answer in said))
            if shared.hungry[0] or said[-1][0] == FAILED:
                os.write(shared.bell[1], b".")
