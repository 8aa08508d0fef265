"""The logistic-regression study in legs: what happens between two steps of the server is one kernel.

A model of a hundred numbers trains in ten microseconds; a frame, an event and a task in Python cost more.
Between two steps x̂ does not move, so all tasks that start there train in one call, and their updates are
summed in the order in which they report. What is quantized goes through the real quantizer, and then the
server is the real one; where nothing is, the server's step is in the kernel too. The model and x̂ equal those
of a ``Simulation`` with a frame for every update, bit by bit, and tests say so.
"""

from collections.abc import Callable, Iterable

import numpy as np

from qafel import hidden, vectors
from qafel.buffer import Buffer
from qafel.errors import ConfigError, DivergenceError
from qafel.reproduce.logistic import STEPS, Logistic
from qafel.server import Server
from qafel.sim import Settings
from qafel.sim.clock import Times
from qafel.sim.timeline import Timeline
from qafel.streams import derive
from qafel.vectors import Vector


class Fused:
    """A run of the study."""

    def __init__(
        self, settings: Settings, learner: Logistic, durations: Callable[[int], Times] | None = None
    ) -> None:
        from qafel.reproduce import kernels

        job = settings.job(learner.x.size)
        if job.staleness_weight != "constant" or job.max_staleness is not None or settings.clock().live:
            raise ConfigError("legs know no staleness weight, no largest staleness and no bandwidth")
        self._kernels, self._learner, self._job = kernels, learner, job
        self._total = Buffer(job.quantizers()[0], job.size)
        self._server = Server(job, learner.x, aggregator=self._total)
        self._coded, coded = (not q.lossless for q in job.quantizers())
        self._plain = not (self._coded or coded)
        self._x, self._momentum = vectors.copy(learner.x), vectors.zeros(job.size)
        self._ahead, self._none = vectors.zeros(job.size), vectors.zeros(0)
        self._timeline = Timeline(
            settings.clock(),
            clients=learner.clients,
            buffer_size=job.buffer_size,
            seed=settings.seed,
            durations=durations,
        )
        self._events = (0, 0)
        """Where the block of events is read, and where it ends."""
        rows = 2 * learner.clients  # a client starts again just before its report counts
        self._deltas = np.zeros((rows, job.size), np.float32)
        self._payloads = [b""] * rows
        self.uploads = 0

    @property
    def version(self) -> int:
        """Steps the server has taken."""
        return self.uploads // self._job.buffer_size

    @property
    def x(self) -> Vector:
        """The model."""
        return self._x if self._plain else self._server.x

    @property
    def digest(self) -> int:
        """Of x̂."""
        return hidden.digest(self._x, self.version) if self._plain else self._server.hidden.digest

    def run(self, marks: Iterable[int], look: Callable[["Fused"], None] = lambda _: None) -> None:
        """To the last of the steps in ``marks``; ``look`` sees each of them."""
        for mark in marks:
            while self.version < mark:
                position, count = self._events
                if position == count:
                    position, count = 0, self._timeline.block()[0]
                move = self._legs if self._plain else self._leg
                self._events = move(position, count, mark - self.version), count
            if not vectors.is_finite(self.x):
                raise DivergenceError(f"the model left float32 by version {self.version}; lower the rates")
            look(self)

    def _legs(self, position: int, count: int, most: int) -> int:
        """At most so many steps, without Python; where in the block it stopped."""
        kinds, _, whose = self._timeline.columns
        learner, job = self._learner, self._job
        beta, rate = np.float32(job.momentum), np.float32(job.server_rate)
        position, reported = self._kernels.legs(
            kinds,
            whose,
            position,
            count,
            most,
            job.buffer_size,
            self.uploads % job.buffer_size,
            learner.people,
            learner.rates,
            STEPS,
            learner.scratch,
            self._deltas,
            self._total.sum,
            (self._x, self._momentum, beta, rate, self._ahead),
        )
        self.uploads += reported
        return position

    def _leg(self, position: int, count: int, most: int) -> int:
        """Up to the next step, or to the end of the block; where in the block it stopped."""
        del most
        kinds, _, whose = self._timeline.columns
        learner, total = self._learner, self._total
        end, reported = self._kernels.leg(
            kinds,
            whose,
            position,
            count,
            self._job.buffer_size - total.count,
            learner.people,
            self._server.hidden.x,
            learner.rates,
            STEPS,
            learner.scratch,
            self._deltas,
            self._none if self._coded else total.sum,
        )
        if self._coded:
            self._code(kinds[position:end].tolist(), whose[position:end].tolist())
        total.count += reported
        self.uploads += reported
        self._server.advance()
        return int(end)

    def _code(self, kinds: list[int], whose: list[list[int]]) -> None:
        """Updates through the real quantizer, there and back."""
        quantizer, seed, total = self._server.client_quantizer, self._job.seed, self._total.sum
        start = self._timeline._k.START
        for kind, (_, client, number, _, _) in zip(kinds, whose, strict=True):
            row = 2 * client + number % 2
            if kind == start:
                task = derive(seed, "task", client, number)
                self._payloads[row] = quantizer.encode(self._deltas[row], derive(task, "update"))
            else:
                quantizer.decode_add(self._payloads[row], total)
