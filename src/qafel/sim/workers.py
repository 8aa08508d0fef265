"""Training in worker processes, one per core.

Workers are forked: they share the data and the code of this process, including functions that a user defined
in a notebook. Shared memory holds

    versions   the newest hidden states; one is overwritten when no task needs it any more
    queue      orders, earliest deadline first; an idle worker takes the next
    boxes      frames and metrics, from the worker that made them to this process

and pipes signal what is there: a ``token`` for every order, an ``answer`` for every box, and a ``wakeup``
for this process when the queue runs low. While the queue is full this process sleeps, and the workers have
all cores. The deadline of a task is when it reports, or when its hidden state is about to be overwritten.
"""

import contextlib
import heapq
import math
import mmap
import multiprocessing
import os
import select
import signal
import struct
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from qafel import wire
from qafel.client import assign
from qafel.coding.threads import set_threads
from qafel.config import Job
from qafel.errors import ConfigError, DivergenceError, QafelError, VectorError, WorkerError
from qafel.machine import signal_at_parents_end
from qafel.sim.frames import Frames
from qafel.sim.pool import Learner, Trainer, describe
from qafel.sim.timeline import Event
from qafel.vectors import Vector

BATCH = 4
"""The number of orders that a worker takes at once where there are many; it keeps the caches warm."""
VERSIONS = 16
"""The largest number of hidden states in shared memory; as few as 4 where they exceed ROOM bytes."""
BOXES = 64
"""The largest number of orders in the queue or in training; fewer where their frames exceed ROOM bytes."""
ROOM = 64 << 20
MAX_MESSAGE = 1 << 16
MAX_SLEEP = 100
"""The longest sleep of this process, in milliseconds."""
TRAIN, EVALUATE, FAILED = range(3)
_ANSWER = struct.Struct("<qqqq")
"""Kind, box, serial number or chunk, length of what is in the box."""


class _Shared:
    """The memory and the pipes that this process and its workers share."""

    def __init__(self, job: Job, workers: int) -> None:
        box = max(job.quantizers()[0].max_bytes(job.size) + wire.MAX_OVERHEAD, MAX_MESSAGE)
        count = max(2 * workers, min(BOXES, ROOM // box))
        places = max(4, min(VERSIONS, ROOM // (4 * job.size)))
        self.parent, self.low = os.getpid(), min(count // 2, workers * (BATCH + 1))
        self.versions: Any = _array((places, job.size), np.float32)
        self.model: Any = _array((job.size,), np.float32)
        self.boxes: Any = _array((count, box), np.uint8)
        self.seconds: Any = _array((workers, 3), np.float64)
        self.queue: Any = _array((count, 7), np.int64)
        """(kind, serial number or chunk, client, task, version, place of x̂, box)."""
        self.ends: Any = _array((2,), np.int64)
        """The first and the last index of the queue."""
        self.waiting: Any = _array((1,), np.uint8)
        """Whether the main process waits: then every answer wakes it up."""
        self.tokens, self.answers, self.wakeup, self._key = (os.pipe() for _ in range(4))
        os.set_blocking(self._key[0], False)
        os.write(self._key[1], b".")

    @property
    def length(self) -> int:
        """The length of the queue."""
        return int(self.ends[1] - self.ends[0])

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of the queue; ``check`` is called while another process holds it."""
        key = select.poll()
        key.register(self._key[0], select.POLLIN)
        while True:
            with contextlib.suppress(BlockingIOError):
                os.read(self._key[0], 1)
                break
            if not key.poll(MAX_SLEEP):
                check()
        try:
            yield
        finally:
            os.write(self._key[1], b".")

    def next_orders(self) -> list[Any]:
        """Wait for the next orders of a worker; an empty list when the parent process is gone.

        A token is written after its order, and read before the order is taken: a worker that holds tokens
        has as many orders in the queue.
        """
        many = max(0, min(BATCH - 1, self.length - 1 - self.low))
        held = len(os.read(self.tokens[0], 1 + many))
        if not held:
            return []
        with self.locked(self._check_parent):
            first, length = int(self.ends[0]), self.length
            self.ends[0] += held
            orders: list[Any] = self.queue[first : first + held].tolist()
        if length > self.low >= length - held:
            os.write(self.wakeup[1], b".")
        return orders

    def _check_parent(self) -> None:
        """End this worker when the process that forked it is gone."""
        if os.getppid() != self.parent:
            os._exit(0)

    def close(self) -> None:
        """Close the pipes."""
        for end in (*self.tokens, *self.answers, *self.wakeup, *self._key):
            with contextlib.suppress(OSError):
                os.close(end)


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
        self._wakeup = select.poll()
        self._wakeup.register(self._shared.wakeup[0], select.POLLIN)
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
        """The times of the newest hidden states."""
        self._orders: list[tuple[float, list[int]]] = []
        """A heap of orders that are not in the queue: (deadline, order without its box)."""
        self._waiting: dict[int, tuple[int, float]] = {}
        """(place of x̂, deadline) of every task that is not done."""
        self._evaluations: dict[int, dict[str, float]] = {}

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._processes]

    def follow(self, x: Vector, version: int, now: float) -> None:
        """Publish a new hidden state."""
        place = version % len(self._users)
        while self._users[place]:
            self._take()
        np.copyto(self._shared.versions[place], x)
        self._moved.append(now)

    def start(self, event: Event) -> None:
        """Train a task."""
        place = event.version % len(self._users)
        deadline = min(event.due, event.time + event.time - self._moved[0])
        self._waiting[event.serial] = place, deadline
        self._users[place] += 1
        order = [TRAIN, event.serial, event.client, event.task, event.version, place]
        heapq.heappush(self._orders, (deadline, order))
        if len(self._orders) >= BATCH:
            self._publish()

    def wait(self, serial: int) -> None:
        """Wait for the frame of a task."""
        while serial in self._waiting:
            self._take()

    def settle(self) -> None:
        """Wait for the frames of all tasks."""
        while self._waiting:
            self._take()

    def evaluate(self, x: Vector, client: int, task: int) -> tuple[list[dict[str, float]], float]:
        """Metrics on the held-out samples, part by part; and the client quantizer's error on a task."""
        self._evaluations.clear()
        np.copyto(self._shared.model, x)
        for chunk in range(self._chunks + 1):  # the last one is the task
            heapq.heappush(self._orders, (-math.inf, [EVALUATE, chunk, client, task, 0, 0]))
        while len(self._evaluations) <= self._chunks:
            self._take()
        error = self._evaluations[self._chunks]["error"]
        return [self._evaluations[chunk] for chunk in range(self._chunks)], error

    @property
    def seconds(self) -> list[float]:
        """Seconds that all workers spent on samples, training and coding."""
        return [float(s) for s in self._shared.seconds.sum(0)]

    def close(self) -> None:
        """Stop the workers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._shared.close()

    def _publish(self) -> None:
        """Move orders to the queue, as many as there are free boxes."""
        count = min(len(self._orders), len(self._boxes))
        if not count:
            return
        added = [[*heapq.heappop(self._orders)[1], self._boxes.pop()] for _ in range(count)]
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
        """Sleep until there are answers and the queue runs low, at most MAX_SLEEP; process the answers."""
        self._publish()
        self._shared.waiting[0] = self._shared.length <= self._shared.low
        if self._drain():
            return
        if self._wakeup.poll(MAX_SLEEP):
            os.read(self._shared.wakeup[0], 4096)
        else:
            self._check()
        self._drain()

    def _drain(self) -> bool:
        """Process the answers that are there; whether there were any."""
        try:
            data = os.read(self._shared.answers[0], BOXES * _ANSWER.size)
        except BlockingIOError:
            return False
        for kind, box, serial, length in _ANSWER.iter_unpack(data):
            self._boxes.append(box)
            content = bytes(self._shared.boxes[box, :length])
            if kind == FAILED:
                raise _failure(*content.decode(errors="replace").split("\0", 2))
            if kind == TRAIN:
                self._frames.put(serial, content)
                place, _ = self._waiting.pop(serial)
                self._users[place] -= 1
            else:
                self._evaluations[serial] = msgspec.msgpack.decode(content, type=dict[str, float])
        return True

    def _check(self) -> None:
        """Raise WorkerError if a worker has died."""
        for process in self._processes:
            code = process.exitcode
            if code is not None:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise WorkerError(f"a worker died ({why}), perhaps for lack of memory; try fewer workers")


def _work(k: int, shared: _Shared, job: Job, learner: Learner) -> None:
    """The main function of a worker: it ends when its parent process does."""
    signal_at_parents_end(signal.SIGKILL)
    os.close(shared.tokens[1])
    for interrupt in (signal.SIGINT, signal.SIGTERM):  # the parent process handles them
        signal.signal(interrupt, signal.SIG_IGN)
    set_threads(1)
    learner.prepare()
    trainer = Trainer(job, learner, shared.seconds[k], time.thread_time)  # others may share the core
    versions, model = shared.versions.view(), shared.model.view()
    versions.flags.writeable = model.flags.writeable = False

    def answer(kind: int, box: int, serial: int, content: bytes) -> bytes:
        shared.boxes[box, : len(content)] = np.frombuffer(content, np.uint8)
        return _ANSWER.pack(kind, box, serial, len(content))

    def answers(orders: list[Any]) -> Iterator[bytes]:
        training = [order for order in orders if order[0] == TRAIN]
        try:
            tasks = [
                assign(job, client, task, version, versions[place])
                for _, _, client, task, version, place, _ in training
            ]
            for (_, serial, *_, box), frame in zip(training, trainer.train(tasks), strict=True):
                yield answer(TRAIN, box, serial, frame)
            for kind, chunk, client, task, *_, box in orders:
                if kind == EVALUATE:
                    last = chunk == learner.chunks
                    sampled = assign(job, client, task, 0, model) if last else None
                    metrics = {"error": trainer.error(sampled)} if sampled else learner.evaluate(model, chunk)
                    yield answer(EVALUATE, box, chunk, msgspec.msgpack.encode(metrics))
        except Exception as error:
            message = f"{type(error).__name__}\0{describe(error)}\0{traceback.format_exc()}"
            failed.append(True)
            yield answer(FAILED, orders[-1][-1], 0, message.encode()[:MAX_MESSAGE])

    failed: list[bool] = []
    with contextlib.suppress(OSError):  # the parent process is gone
        while orders := shared.next_orders():
            os.write(shared.answers[1], b"".join(answers(orders)))
            if shared.waiting[0] or failed:
                os.write(shared.wakeup[1], b".")


def _failure(kind: str, message: str, remote: str) -> QafelError:
    """The error of a worker, with its traceback as a note: one of qafel's own, or a WorkerError."""
    kinds = {one.__name__: one for one in (ConfigError, DivergenceError, VectorError)}
    error = kinds.get(kind, WorkerError)(message)
    error.add_note(remote)
    return error
