"""A problem whose constants are known: its runs, and the same runs as settings of the theorem.

Logistic regression without ridge on samples of norm one: every F_n is L-smooth with L = λ_max/4 ≤ 1/4, a
gradient has at most norm one (G = 1), a stochastic gradient of one sample at most variance one (σ² = 1), and
f ≥ 0, so F* ≤ f(x⁰) = log 2. Rates are of the order of the complexity corollary, η_ℓ = c/(K√(TP)) and
η_g = K, with a tenth of the largest c that the learning-rate condition allows in all runs: R is the mean of
‖∇f(x^t)‖² over the steps.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from qafel import theory as formulas
from qafel import wire
from qafel.client import Task
from qafel.sim import Simulation, make_settings
from qafel.sim.processes import run_to_the_end
from qafel.streams import generator
from qafel.vectors import Vector

CLIENTS, SAMPLES, SIZE = 100, 20, 64
BUFFER, LOCAL_STEPS = 10, 2
RATE = 25.0
"""Arrivals per unit of time: about 20 in flight."""
CAUTION = 0.1
"""Of the largest local rate that the condition allows."""
BITS = (2, 3, 4, 6, 8)
STEPS, QUICK_STEPS = (250, 1000, 4000), (250, 1000)


class InMemory:
    """A learner for the simulator that needs no preparation."""

    chunks = 1
    parts: Any
    """The samples, by client."""

    def prepare(self) -> None:
        """Nothing to prepare."""

    def release(self) -> None:
        """Nothing to release."""

    def samples(self, client: int) -> Any:
        """The samples of a client."""
        return self.parts[client]


class Problem(InMemory):
    """A learner for the simulator; every client has labels of its own."""

    def __init__(self, rate: float) -> None:
        rng = generator(0, "theory")
        x = rng.standard_normal((CLIENTS, SAMPLES, SIZE))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        truth = rng.standard_normal(SIZE) + rng.standard_normal((CLIENTS, SIZE))
        signs = np.where(np.einsum("nik,nk->ni", x, truth) > 0, 1.0, -1.0)
        self.parts = self.signed = x * signs[..., None]
        self.flat = self.signed.reshape(-1, SIZE)
        self.rate, self.clients, self.held_out = rate, CLIENTS, CLIENTS * SAMPLES
        self.x: Vector = np.zeros(SIZE, np.float32)
        self.fingerprint = wire.fingerprint(self.flat.tobytes())

    @property
    def smoothness(self) -> float:
        """L: the largest λ_max/4 over the clients."""
        return max(float(np.linalg.eigvalsh(a.T @ a / SAMPLES)[-1]) / 4 for a in self.signed)

    def delta(self, task: Task, samples: Any) -> Vector:
        """P steps, one sample each."""
        y, chosen = task.x.astype(np.float64), task.generator().integers(0, SAMPLES, LOCAL_STEPS)
        for row in samples[chosen]:
            y += self.rate * row / (1 + math.exp(float(row @ y)))
        return (y - task.x).astype(np.float32)

    def gradient(self, x: Vector) -> float:
        """‖∇f(x)‖²."""
        w = x.astype(np.float64)
        g = self.flat.T @ (1 / (1 + np.exp(self.flat @ w))) / len(self.flat)
        return float(g @ g)

    def evaluate(self, x: Vector, chunk: int) -> dict[str, float]:
        """Accuracy and loss, each summed over the samples."""
        del chunk
        scores = self.flat @ x.astype(np.float64)
        return {"accuracy": float((scores > 0).sum()), "loss": float(np.logaddexp(0, -scores).sum())}


class Measured(msgspec.Struct, frozen=True):
    """One run: R, the mean of ‖x − x̂‖², and the largest staleness."""

    mean_gradient: float
    mean_error: float
    max_staleness: int
    gradients: list[float]
    """‖∇f(x^t)‖² of every step."""
    errors: list[float]
    """‖x^t − x̂^t‖² of every step."""


def quantizers(side: str, bits: int) -> dict[str, str]:
    """Bits at both sides or one; QSGD of the max norm in buckets of 16, of which δ > 0 at any bits."""
    spec = f"qsgd:{bits},bucket=16,norm=max" if bits > 2 else "qsgd:2,bucket=4,norm=max"
    return {
        "client_quantizer": "identity" if side == "server" else spec,
        "server_quantizer": "identity" if side == "client" else spec,
    }


@lru_cache
def rates(steps: int) -> tuple[float, float]:
    """(η_ℓ, η_g) of the complexity corollary, as large as the condition allows for 2 bits and the shortest
    run.
    """
    plain = formulas.complexity_rates(STEPS[0], LOCAL_STEPS, BUFFER)
    coarsest = setting(quantizers("both", BITS[0]), STEPS[0], 0, plain)
    return CAUTION * formulas.largest_local_rate(coarsest) * math.sqrt(STEPS[0] / steps), plain[1]


def measure(
    chosen: Mapping[str, str], steps: int, seed: int, progress: Callable[[int], None] = lambda _: None
) -> Measured:
    """One run of the real server and clients."""
    local, server = rates(steps)
    problem = Problem(local)
    fixed = {"momentum": 0.0, "server_rate": server, "buffer_size": BUFFER, "rate": RATE, "seed": seed}
    length = {"uploads": steps * BUFFER, "evaluate_every": steps * BUFFER}
    gradients, errors = [problem.gradient(problem.x)], [0.0]

    def record(run: Simulation) -> None:
        if run.server.hidden.version == len(gradients):
            gradients.append(problem.gradient(run.x))
            errors.append(run.tracker.totals.residual**2)
            if len(gradients) % 100 == 0:
                progress(run.tracker.totals.uploads)

    run = Simulation(make_settings({**chosen, **fixed, **length}), problem, workers=1, progress=record)
    run_to_the_end(run)
    means = statistics.fmean(gradients[:steps]), statistics.fmean(errors)
    return Measured(*means, max(run.tracker.totals.staleness), gradients, errors)


def setting(
    chosen: Mapping[str, str], steps: int, staleness: int, both: tuple[float, float] | None = None
) -> formulas.Setting:
    """The run as a setting of the theorem; ``both`` are its rates, by default ``rates``."""
    local, server = both or rates(steps)
    plain = formulas.Setting(
        smoothness=Problem(local).smoothness,
        variance=1.0,
        gradient_bound=1.0,
        gap=math.log(2),
        steps=steps,
        buffer_size=BUFFER,
        rates=(local,) * LOCAL_STEPS,
        server_rate=server,
        max_staleness=staleness,
    )
    return plain.with_quantizers(chosen["client_quantizer"], chosen["server_quantizer"], SIZE)
