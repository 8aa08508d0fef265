"""Who trains: this process, or one single-threaded worker process per core.

    follow(x̂, version)        x̂ moves on, for every task started after this
    start(task, client, …)    train from the x̂ of this moment; the frame goes to ``frames``
    wait(task), settle()      until the frame of a task, or of all tasks, is there
    judge(x)                  verdicts on the held-out samples

Workers are forked: they share the data and the code of this process, and whatever a user defined in a
notebook. The newest versions of x̂ lie in shared memory, where tasks read them and leave their frames; a
version is overwritten when no task needs it any more. Pipes only carry numbers. Who trains what changes
nothing in the result: a task is named by its client and number, and so is its randomness.
"""

import contextlib
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
from typing import Any, Protocol

import numpy as np

from qafel import wire
from qafel.client import Client, Task, assign
from qafel.coding import work
from qafel.config import Job
from qafel.errors import ConfigError, QafelError, QafelWarning
from qafel.sim.frames import Frames
from qafel.vectors import Vector

AHEAD = 2
"""Tasks a worker has at most: the one it trains and the next."""
VERSIONS = 4
"""Versions of x̂ in shared memory."""
LAST_WORDS = 1 << 16
_ORDER = struct.Struct("<cqqqqqq")
_ANSWER = struct.Struct("<cqqqd")
TRAIN, JUDGE, DONE, JUDGED, FAILED = b"T", b"J", b"D", b"V", b"F"


class Learner(Protocol):
    """What is learned; see ``qafel.tasks.learner``."""

    x: Vector
    clients: int
    fingerprint: int
    """Of the data and the model, to notice when a run is resumed with others."""

    @property
    def chunks(self) -> int:
        """Into how many pieces the held-out samples are cut."""

    @property
    def held_out(self) -> int:
        """How many held-out samples there are."""

    def prepare(self) -> None:
        """Called once in the process that trains."""

    def release(self) -> None:
        """Called in a process that trained and goes on with something else."""

    def samples(self, client: int) -> Any:
        """The samples of a client."""

    def delta(self, task: Task, samples: Any) -> Vector:
        """y_P − y_0 of a task; it must not change ``task.x``."""

    def judge(self, x: Vector, chunk: int) -> tuple[int, float]:
        """(how many are right, the sum of the losses) of a piece of the held-out samples."""


class WorkerError(QafelError):
    """Something went wrong in a worker; ``remote`` is its traceback."""

    def __init__(self, message: str, remote: str = "") -> None:
        super().__init__(message)
        self.remote = remote


class _Trainer:
    """One core's work; keeps time."""

    def __init__(self, job: Job, learner: Learner, seconds: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QafelWarning)
            self._client = Client(job, client=0)
        self._job, self._learner = job, learner
        self.seconds = seconds
        """Spent on samples, on training, and on coding."""

    def train(self, client: int, number: int, version: int, x: Vector) -> bytes:
        marks = [time.thread_time()]
        task = assign(self._job, client, number, version, x)
        samples = self._learner.samples(client)
        marks.append(time.thread_time())
        delta = self._learner.delta(task, samples)
        marks.append(time.thread_time())
        frame = self._client.finish(task, delta)
        marks.append(time.thread_time())
        self.seconds += np.diff(marks)
        return frame


class Here:
    """Training in this process."""

    def __init__(self, job: Job, learner: Learner, frames: Frames) -> None:
        learner.prepare()
        self._trainer = _Trainer(job, learner, np.zeros(3))
        self._frames, self._learner = frames, learner
        self._x = learner.x
        self.processes: list[int] = []

    def follow(self, x: Vector, version: int) -> None:
        """See the module."""
        del version
        self._x = x

    def start(self, task: int, client: int, number: int, version: int) -> None:
        """See the module."""
        try:
            frame = self._trainer.train(client, number, version, self._x)
        except QafelError:
            raise
        except Exception as error:
            raise WorkerError(_sentence(error), traceback.format_exc()) from error
        self._frames.put(task, frame)

    def wait(self, task: int) -> None:
        """See the module."""

    def settle(self) -> None:
        """See the module."""

    def judge(self, x: Vector) -> list[tuple[int, float]]:
        """See the module."""
        return [self._learner.judge(x, chunk) for chunk in range(self._learner.chunks)]

    @property
    def seconds(self) -> list[float]:
        """Spent on samples, on training, and on coding."""
        return [float(s) for s in self._trainer.seconds]

    def close(self) -> None:
        """See the module."""
        self._learner.release()


class _Shared:
    """Memory that this process and its workers see alike."""

    def __init__(self, job: Job, workers: int) -> None:
        box = max(job.quantizers()[0].max_bytes(job.size) + wire.MAX_OVERHEAD, LAST_WORDS)
        self.versions: Any = _array((VERSIONS, job.size), np.float32)
        self.model: Any = _array((job.size,), np.float32)
        self.boxes: Any = _array((workers, AHEAD, box), np.uint8)
        self.seconds: Any = _array((workers, 3), np.float64)

    def take(self, worker: int, box: int, length: int) -> bytes:
        return bytes(self.boxes[worker, box, :length])


def _array(shape: tuple[int, ...], kind: Any) -> Any:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(mmap.mmap(-1, size), kind).reshape(shape)


class Workers:
    """Training in ``count`` processes."""

    def __init__(self, job: Job, learner: Learner, frames: Frames, count: int) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("more than one worker needs a system that can fork processes; use one worker")
        _Trainer(job, learner, np.zeros(3))._client.quantizer.encode(
            learner.x, 0
        )  # load the kernels once for all
        self._frames, self._chunks, self._shared = frames, learner.chunks, _Shared(job, count)
        self._answers, answers = os.pipe()
        self._ready = select.poll()
        self._ready.register(self._answers, select.POLLIN)
        self._orders: list[int] = []
        self._processes: list[Any] = []
        context = multiprocessing.get_context("fork")
        for k in range(count):
            theirs, mine = os.pipe()
            self._orders.append(mine)
            ends = (theirs, answers, [*self._orders, self._answers])
            process = context.Process(target=_work, args=(k, ends, self._shared, job, learner), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads
                process.start()
            os.close(theirs)
            self._processes.append(process)
        os.close(answers)
        self._boxes = [list(range(AHEAD)) for _ in range(count)]
        self._users = [0] * VERSIONS
        self._todo: deque[tuple[bytes, int, int, int, int]] = deque()
        """(kind, task or chunk, client, number, version)."""
        self._waiting: dict[int, int] = {}
        """The place of x̂ of every task that is not done."""
        self._verdicts: dict[int, tuple[int, float]] = {}

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [process.pid for process in self._processes]

    def follow(self, x: Vector, version: int) -> None:
        """See the module."""
        place = version % VERSIONS
        while self._users[place]:
            self._take()
        np.copyto(self._shared.versions[place], x)

    def start(self, task: int, client: int, number: int, version: int) -> None:
        """See the module."""
        place = version % VERSIONS
        self._waiting[task] = place
        self._users[place] += 1
        self._todo.append((TRAIN, task, client, number, version))
        self._hand_out()

    def wait(self, task: int) -> None:
        """See the module; what somebody waits for is trained first."""
        if task not in self._waiting:
            return
        for k, order in enumerate(self._todo):
            if order[1] == task:
                del self._todo[k]
                self._todo.appendleft(order)
                break
        while task in self._waiting:
            self._take()

    def settle(self) -> None:
        """See the module."""
        while self._waiting:
            self._take()

    def judge(self, x: Vector) -> list[tuple[int, float]]:
        """See the module."""
        self._verdicts.clear()
        np.copyto(self._shared.model, x)
        self._todo.extendleft((JUDGE, chunk, 0, 0, 0) for chunk in reversed(range(self._chunks)))
        self._hand_out()
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
            process.join()
        for end in (self._answers, *self._orders):
            os.close(end)

    def _hand_out(self) -> None:
        while self._todo:
            k = max(range(len(self._boxes)), key=lambda k: len(self._boxes[k]))
            if not self._boxes[k]:
                return
            kind, task, client, number, version = self._todo.popleft()
            box = self._boxes[k].pop()
            try:
                os.write(
                    self._orders[k], _ORDER.pack(kind, task, client, number, version, version % VERSIONS, box)
                )
            except OSError:
                raise self._died(k) from None

    def _take(self) -> None:
        """Take in one answer, and hand out what can be handed out now."""
        while not self._ready.poll(1000):
            for k, process in enumerate(self._processes):
                if process.exitcode is not None:
                    raise self._died(k)
        data = os.read(self._answers, _ANSWER.size)
        if not data:
            raise self._died(0)
        kind, worker_box, task, number, loss = _ANSWER.unpack(data)
        k, box = divmod(worker_box, AHEAD)
        self._boxes[k].append(box)
        if kind == FAILED:
            message, remote = self._shared.take(k, box, number).decode(errors="replace").split("\0", 1)
            raise WorkerError(message, remote)
        if kind == DONE:
            self._frames.put(task, self._shared.take(k, box, number))
            self._users[self._waiting.pop(task)] -= 1
        else:
            self._verdicts[task] = number, loss
        self._hand_out()

    def _died(self, k: int) -> WorkerError:
        self._processes[k].join(5)
        code = self._processes[k].exitcode
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerError(f"a worker died ({why}), perhaps for lack of memory; try fewer workers")


def _work(k: int, ends: tuple[int, int, list[int]], shared: _Shared, job: Job, learner: Learner) -> None:
    """The life of a worker: until its pipe closes, even if nobody says so."""
    orders, answers, others = ends
    for end in others:
        os.close(end)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the process that hands out the work
        signal.signal(number, signal.SIG_IGN)
    work.set_threads(1)
    learner.prepare()
    trainer = _Trainer(job, learner, shared.seconds[k])
    versions, model = shared.versions.view(), shared.model.view()
    versions.flags.writeable = model.flags.writeable = False
    with contextlib.suppress(OSError):  # nobody listens any more
        while data := os.read(orders, _ORDER.size):
            kind, task, client, number, version, place, box = _ORDER.unpack(data)
            try:
                if kind == TRAIN:
                    frame = trainer.train(client, number, version, versions[place])
                    shared.boxes[k, box, : len(frame)] = np.frombuffer(frame, np.uint8)
                    answer = _ANSWER.pack(DONE, k * AHEAD + box, task, len(frame), 0.0)
                else:
                    right, loss = learner.judge(model, task)
                    answer = _ANSWER.pack(JUDGED, k * AHEAD + box, task, right, loss)
            except Exception as error:
                words = f"{_sentence(error)}\0{traceback.format_exc()}".encode()[:LAST_WORDS]
                shared.boxes[k, box, : len(words)] = np.frombuffer(words, np.uint8)
                answer = _ANSWER.pack(FAILED, k * AHEAD + box, 0, len(words), 0.0)
            os.write(answers, answer)


def _sentence(error: Exception) -> str:
    said = " ".join(str(error).split())
    own = isinstance(error, QafelError)
    return said if own else f"local training failed: {type(error).__name__}: {said[:400]}"
