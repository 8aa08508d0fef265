"""The paper's convergence theory as formulas: what a choice of quantizers, rates and buffer costs.

All of it follows the appendix with its slips mended. δ_c and δ_s are the compression parameters of the
client's and server's quantizer; the proof needs an unbiased client quantizer of any finite variance ω = 1 −
δ_c, and a server quantizer with δ_s > 0.

    R = (1/T) Σ E‖∇f(x^t)‖² ≤ the sum of the terms of ``bound``
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from qafel.errors import ConfigError
from qafel.quantizers import Quantizer, quantizer

LARGEST = 1e30
"""Beyond this, numbers of a setting say nothing and their products overflow."""


def alpha(rates: Sequence[float]) -> float:
    """α_P = Σ η_ℓ^(p)."""
    return math.fsum(rates)


def beta(rates: Sequence[float]) -> float:
    """β_P = Σ (η_ℓ^(p))²."""
    return math.fsum(rate * rate for rate in rates)


def buffered_staleness(max_staleness_1: int, buffer_size: int) -> int:
    """τ_max,K ≤ ⌈τ_max,1 / K⌉."""
    if max_staleness_1 < 0 or buffer_size < 1:
        raise ConfigError("the staleness must not be negative, and the buffer size at least 1")
    return -(-max_staleness_1 // buffer_size)


def c_max(model_bytes: float, increment_bytes: float) -> int:
    """C_max: how many increments cost one model."""
    return int(model_bytes // increment_bytes)


def phi(steps: int, delta: float, *, unbiased: bool) -> float:
    """φ(T): Σ_{t=1}^{T−1} (1 − δ_s)^t; biased server quantizers: (2/δ_s) Σ_{t=0}^{T−1} (1 − δ_s/2)^t."""
    if delta <= 0:
        return math.inf
    if unbiased:
        return (1 - delta) * _one_minus_power(delta, steps - 1) / delta
    return 4 / delta**2 * _one_minus_power(delta / 2, steps)


def _one_minus_power(delta: float, power: int) -> float:
    """1 − (1 − δ)^power, exact for tiny δ."""
    return 1.0 if delta >= 1 else -math.expm1(power * math.log1p(-delta))


def phi_limit(delta: float, *, unbiased: bool) -> float:
    """What φ(T) never exceeds: 1/δ_s, or 4/δ_s² for a biased server quantizer."""
    if delta <= 0:
        return math.inf
    return 1 / delta if unbiased else 4 / delta**2


@dataclass(frozen=True)
class Setting:
    """A problem and a run, as the theorem sees them."""

    smoothness: float
    """L of every F_n."""
    variance: float
    """σ_ℓ²: bound on the variance of a stochastic gradient."""
    gradient_bound: float
    """G: bound on ‖∇F_n‖²."""
    gap: float
    """F* = f(x⁰) − f*."""
    steps: int
    """T: server steps."""
    buffer_size: int
    """K."""
    rates: tuple[float, ...]
    """η_ℓ^(p), one for each of the P local steps."""
    server_rate: float
    """η_g."""
    max_staleness: int
    """τ_max,K."""
    client_delta: float = 1.0
    """δ_c."""
    server_delta: float = 1.0
    """δ_s."""
    server_unbiased: bool = True

    def __post_init__(self) -> None:
        for name in ("smoothness", "server_rate"):
            if not 0 < getattr(self, name) <= LARGEST:
                raise ConfigError(
                    f"{name} must be positive and at most {LARGEST:g}, not {getattr(self, name)}"
                )
        for name in ("variance", "gradient_bound", "gap", "max_staleness", "steps", "buffer_size"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise ConfigError(f"{name} must be from 0 to {LARGEST:g}, and is {getattr(self, name)}")
        if self.steps < 1 or self.buffer_size < 1:
            raise ConfigError("steps and buffer_size must be at least 1")
        if not self.rates or not all(1 / LARGEST <= rate <= LARGEST for rate in self.rates):
            raise ConfigError(
                f"rates must name a learning rate for each local step, from {1 / LARGEST:g} to {LARGEST:g}"
            )

    @property
    def local_steps(self) -> int:
        """P."""
        return len(self.rates)

    def with_quantizers(self, client: str | Quantizer, server: str | Quantizer, size: int) -> "Setting":
        """The same run with these quantizers at a dimension."""
        client, server = quantizer(client), quantizer(server)
        if not client.unbiased:
            raise ConfigError(f"the theory needs an unbiased client quantizer, and {client.spec} is biased")
        return replace(
            self,
            client_delta=client.delta(size),
            server_delta=server.delta(size),
            server_unbiased=server.unbiased,
        )


def condition(s: Setting) -> float:
    """The left-hand side of the learning-rate condition (biased server quantizers have their own): ≤ 1."""
    a, b = _condition(s)
    return a * s.server_rate**2 + b * s.server_rate


def largest_server_rate(s: Setting) -> float:
    """The largest η_g that meets the condition with the local rates as they are."""
    return _positive_root(*_condition(s))


def largest_local_rate(s: Setting) -> float:
    """The largest peak of the local rates, their schedule's shape kept, that meets the condition."""
    a, b = _condition(s)
    return max(s.rates) * _positive_root(a * s.server_rate**2, b * s.server_rate)


def _condition(s: Setting) -> tuple[float, float]:
    """(a, b) of the condition a·η_g² + b·η_g ≤ 1; scaling all local rates by c scales them by c² and c."""
    spread = (1 + (1 - s.client_delta) / s.buffer_size) * s.local_steps * max(s.rates)
    limit = phi_limit(s.server_delta, unbiased=s.server_unbiased)
    return 3 * alpha(s.rates) * s.smoothness**2 * limit * spread, s.smoothness * spread


def simple_rates(s: Setting) -> tuple[float, float]:
    """(η_ℓ, η_g) of the paper's simpler, less precise condition: any smaller ones will do."""
    k, p = s.buffer_size, s.local_steps
    quantized = 1 / (3 * phi_limit(s.server_delta, unbiased=s.server_unbiased) * p)
    return min(k / (2 * p * (k + 1 - s.client_delta)), quantized), 1 / s.smoothness


def _positive_root(a: float, b: float) -> float:
    """The positive c with a·c² + b·c = 1."""
    return 0.0 if math.isinf(a) else 2 / (b + math.sqrt(b * b + 4 * a))


@dataclass(frozen=True)
class Bound:
    """The theorem's bound on the mean squared gradient norm, term by term."""

    optimisation: float
    """What FedBuff has as well: 2F*/(η_g·T·α_P)."""
    noise: float
    """Stochastic gradients, averaged over the buffer."""
    drift: float
    """Local steps leave the point they started from."""
    staleness: float
    """Updates start from old versions."""
    cross: float
    """Staleness and client quantization together."""
    client_quantization: float
    server_quantization: float

    @property
    def total(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def bound(s: Setting, *, limit: bool = False) -> Bound:
    """The bound of the theorem; with ``limit``, of the corollary: φ's limit in the place of φ(T)."""
    a, b, omega = alpha(s.rates), beta(s.rates), 1 - s.client_delta
    trained = 3 * s.smoothness**2 * b * (s.variance + s.local_steps * s.gradient_bound)
    stepped = b * (s.variance + 4 * s.gradient_bound) / s.buffer_size
    noise = s.smoothness * s.server_rate / a * stepped
    if limit:
        spread = phi_limit(s.server_delta, unbiased=s.server_unbiased)
    else:
        spread = phi(s.steps, s.server_delta, unbiased=s.server_unbiased)
    return Bound(
        optimisation=2 * s.gap / (s.server_rate * s.steps * a),
        noise=noise,
        drift=trained,
        staleness=trained * s.server_rate**2 * s.max_staleness**2,
        cross=trained * s.server_rate**2 * s.max_staleness * omega / s.buffer_size,
        client_quantization=noise * omega,
        server_quantization=3 * (s.smoothness * s.server_rate) ** 2 * spread * (1 + omega) * stepped,
    )


def complexity_rates(steps: int, local_steps: int, buffer_size: int) -> tuple[float, float]:
    """(η_ℓ, η_g) of the complexity corollary: 1/(K√(TP)) and K."""
    return 1 / (buffer_size * math.sqrt(steps * local_steps)), float(buffer_size)


def complexity(s: Setting, max_staleness_1: int) -> dict[str, float]:
    """The orders of the complexity corollary, constants left out, by the names of ``Bound``'s terms."""
    t, k, p, omega = s.steps, s.buffer_size, s.local_steps, 1 - s.client_delta
    slow, fast = math.sqrt(t * p), t * k * k
    trained, stepped = s.variance + p * s.gradient_bound, s.variance + 4 * s.gradient_bound
    return {
        "optimisation": s.gap / slow,
        "noise": s.smoothness * stepped / (k * slow),
        "drift": s.smoothness**2 * trained / fast,
        "staleness": s.smoothness**2 * trained * max_staleness_1**2 / fast,
        "cross": s.smoothness**2 * trained * max_staleness_1 * omega / fast,
        "client_quantization": s.smoothness * stepped * omega / (k * slow),
        "server_quantization": s.smoothness**2
        * phi_limit(s.server_delta, unbiased=s.server_unbiased)
        * ((1 + omega) * stepped / (t * k)),
    }


@dataclass(frozen=True)
class Cost:
    """What a quantizer costs, alone at the client and alone at the server."""

    spec: str
    payload_bytes: int
    bits: float
    unbiased: bool
    omega: float
    delta: float
    client: bool
    """Whether the theory allows it at clients: unbiased, and the rates meet the condition."""
    server: bool
    """Whether the theory allows it at the server: δ > 0, and the rates meet the condition."""
    client_bound: float
    """The bound with it at clients, in units of FedBuff's; infinite where there is none."""
    server_bound: float
    client_max_rate: float
    """The largest local rate with it at clients; 0 where none is allowed."""
    server_max_rate: float


def costs(s: Setting, size: int, specs: Iterable[str]) -> list[Cost]:
    """Which quantizers may be used, and what each costs: its bytes, and the bound against that of FedBuff."""
    exact = quantizer("identity")
    reference = bound(s.with_quantizers(exact, exact, size)).total
    if reference == 0:
        raise ConfigError("with no gap, variance and gradient bound there is nothing to bound")
    rows = []
    for q in map(quantizer, specs):
        at_client = s.with_quantizers(q, exact, size) if q.unbiased else None
        at_server = s.with_quantizers(exact, q, size) if q.delta(size) > 0 else None
        client, server = (at is not None and condition(at) <= 1 for at in (at_client, at_server))
        rows.append(
            Cost(
                spec=q.spec,
                payload_bytes=q.max_bytes(size),
                bits=8 * q.max_bytes(size) / size,
                unbiased=q.unbiased,
                omega=q.omega(size),
                delta=q.delta(size),
                client=client,
                server=server,
                client_bound=bound(at_client).total / reference if at_client and client else math.inf,
                server_bound=bound(at_server).total / reference if at_server and server else math.inf,
                client_max_rate=largest_local_rate(at_client) if at_client else 0.0,
                server_max_rate=largest_local_rate(at_server) if at_server else 0.0,
            )
        )
    return rows
