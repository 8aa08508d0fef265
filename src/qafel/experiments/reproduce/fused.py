"""The logistic-regression study in legs: what happens between two steps of the server is one kernel.

A model of a hundred numbers trains in ten microseconds; a frame, an event and a task in Python cost more.
Between two steps x̂ does not move, so all tasks that start there train in one call, and their updates are
summed in the order in which they report. The server is the real one, with its real quantizer, digest and
increments; so is the coding of updates that are quantized. The model, x̂ and their digests equal those of a
``Simulation`` with a frame for every update, bit by bit, and tests say so.
"""

from collections.abc import Callable

import numpy as np

from qafel import vectors
from qafel.errors import ConfigError
from qafel.experiments.reproduce.logistic import STEPS, Logistic
from qafel.server import Server
from qafel.sim import Settings
from qafel.sim.timeline import Timeline
from qafel.streams import derive
from qafel.vectors import Vector
from qafel.wire import Update


class Total:
    """The aggregator of a server whose updates are summed elsewhere."""

    pending = False

    def __init__(self, size: int) -> None:
        self.sum = vectors.zeros(size)
        self.count = 0

    def add(self, update: Update, weight: float) -> None:
        """Updates do not come in frames here."""
        raise NotImplementedError

    def finish(self) -> Vector:
        """Σ Δ; a new sum starts at zero."""
        total, self.sum, self.count = self.sum, vectors.zeros(self.sum.size), 0
        return total

    def state(self) -> bytes:
        """Such a server is not saved."""
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        """Such a server is not saved."""
        raise NotImplementedError


class Fused:
    """A run of the study."""

    def __init__(self, settings: Settings, learner: Logistic) -> None:
        from qafel.experiments.reproduce import kernels

        job = settings.job(learner.x.size)
        if job.staleness_weight != "constant" or job.max_staleness is not None or settings.clock().live:
            raise ConfigError("legs know no staleness weight, no largest staleness and no bandwidth")
        self._kernels, self._learner = kernels, learner
        self._total = Total(job.size)
        self.server = Server(job, learner.x, aggregator=self._total)
        self.timeline = Timeline(
            settings.clock(), clients=learner.clients, buffer_size=job.buffer_size, seed=settings.seed
        )
        self.uploads = 0
        slots = learner.clients
        self._deltas = np.zeros((slots, job.size), np.float32)
        self._payloads: list[bytes] = [b""] * slots

    def run(self, steps: int, look: Callable[["Fused"], None] = lambda _: None) -> None:
        """So many steps of the server; ``look`` sees each."""
        position = count = 0
        while self.server.version < steps:
            if position == count:
                count, _ = self.timeline.block()
                position = 0
            position = self._leg(position, count)
            if self.server.advance():
                look(self)

    def _leg(self, position: int, count: int) -> int:
        """Events up to the report that fills the buffer, or to the end of the block; where it stopped."""
        kinds, _, whose = self.timeline.columns
        learner, total, job = self._learner, self._total, self.server.job
        coded = not self.server.client_quantizer.lossless
        end, added = self._kernels.leg(
            kinds,
            whose,
            position,
            count,
            job.buffer_size - total.count,
            learner.people,
            self.server.hidden.x,
            learner.rates,
            STEPS,
            learner.scratch,
            self._deltas,
            total.sum,
            coded,
        )
        if coded:
            self._code(kinds[position:end].tolist(), whose[position:end].tolist())
        total.count += added
        self.uploads += added
        return int(end)

    def _code(self, kinds: list[int], whose: list[list[int]]) -> None:
        """Updates through the real quantizer, there and back."""
        quantizer, seed, total = self.server.client_quantizer, self.server.job.seed, self._total.sum
        start = self.timeline._k.START
        for kind, (_, client, number, _, slot) in zip(kinds, whose, strict=True):
            if kind == start:
                task = derive(seed, "task", client, number)
                self._payloads[slot] = quantizer.encode(self._deltas[slot], derive(task, "update"))
            else:
                quantizer.decode_add(self._payloads[slot], total)
