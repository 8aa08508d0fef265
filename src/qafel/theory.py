"""The paper's convergence theory as formulas: what a choice of quantizers, rates and buffer size costs.

The formulas follow the paper's appendix, with the corrections that docs/theory.md lists. δ_c and δ_s are the
compression parameters of the client's and the server's quantizer. The proof needs an unbiased client
quantizer of any finite variance ω = 1 − δ_c, and a server quantizer with δ_s > 0.

    R = (1/T) Σ E‖∇f(x^t)‖² ≤ the sum of the terms of ``bound``
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from qafel.errors import ConfigError
from qafel.quantizers import Quantizer, quantizer

MAX_VALUE = 1e30
"""The largest value of a field of ``Setting``: products of larger values overflow."""


def alpha(rates: Sequence[float]) -> float:
    """α_P = Σ η_ℓ^(p)."""
    return math.fsum(rates)


def beta(rates: Sequence[float]) -> float:
    """β_P = Σ (η_ℓ^(p))²."""
    return math.fsum(rate * rate for rate in rates)


def buffered_staleness(max_staleness_1: int, buffer_size: int) -> int:
    """τ_max,K ≤ ⌈τ_max,1 / K⌉."""
    if max_staleness_1 < 0 or buffer_size < 1:
        raise ConfigError(
            f"max_staleness_1 must be at least 0 and buffer_size at least 1, got {max_staleness_1} and "
            f"{buffer_size}"
        )
    return -(-max_staleness_1 // buffer_size)


def c_max(model_bytes: float, increment_bytes: float) -> int:
    """C_max: the number of increments that cost as many bytes as one model."""
    return int(model_bytes // increment_bytes)


def phi(steps: int, delta: float) -> float:
    """φ(T) = ((1 − δ_s)(2 − δ_s)/δ_s) Σ_{t=0}^{T−1} (1 − δ_s/2)^t; infinite if δ_s ≤ 0.

    This is the paper's lemma for a general server quantizer, whose factor it rounds up to 2/δ_s. Its lemma
    for unbiased ones does not hold: docs/theory.md.
    """
    if delta <= 0:
        return math.inf
    return (1 - delta) * (2 - delta) / delta * _one_minus_power(delta / 2, steps) * 2 / delta


def _one_minus_power(delta: float, power: int) -> float:
    """1 − (1 − δ)^power, without cancellation for small δ."""
    return 1.0 if delta >= 1 else -math.expm1(power * math.log1p(-delta))


def phi_limit(delta: float) -> float:
    """An upper bound of φ(T) for all T: 2(1 − δ_s)(2 − δ_s)/δ_s²."""
    return math.inf if delta <= 0 else 2 * (1 - delta) * (2 - delta) / delta**2


@dataclass(frozen=True)
class Setting:
    """The quantities of a problem and a run that the theorem depends on."""

    smoothness: float
    """L: the smoothness constant of every F_n."""
    variance: float
    """σ_ℓ²: an upper bound on the variance of a stochastic gradient."""
    gradient_bound: float
    """G: an upper bound on ‖∇F_n‖²."""
    gap: float
    """F* = f(x⁰) − f*."""
    steps: int
    """T: the number of server steps."""
    buffer_size: int
    """K: the number of updates in a server step."""
    rates: tuple[float, ...]
    """η_ℓ^(p), one for each of the P local steps."""
    server_rate: float
    """η_g: the server learning rate."""
    max_staleness: int
    """τ_max,K: the largest staleness with a buffer of K updates."""
    client_delta: float = 1.0
    """δ_c: the compression parameter of the client quantizer."""
    server_delta: float = 1.0
    """δ_s: the compression parameter of the server quantizer."""

    def __post_init__(self) -> None:
        for name in ("smoothness", "server_rate"):
            if not 0 < getattr(self, name) <= MAX_VALUE:
                raise ConfigError(
                    f"{name} must be positive and at most {MAX_VALUE:g}, got {getattr(self, name)}"
                )
        for name in ("variance", "gradient_bound", "gap", "max_staleness", "steps", "buffer_size"):
            if not 0 <= getattr(self, name) <= MAX_VALUE:
                raise ConfigError(f"{name} must be from 0 to {MAX_VALUE:g}, got {getattr(self, name)}")
        if self.steps < 1 or self.buffer_size < 1:
            raise ConfigError(
                f"steps and buffer_size must be at least 1, got {self.steps} and {self.buffer_size}"
            )
        if not self.rates or not all(1 / MAX_VALUE <= rate <= MAX_VALUE for rate in self.rates):
            raise ConfigError(
                f"rates must be one learning rate per local step, from {1 / MAX_VALUE:g} to {MAX_VALUE:g}, "
                f"got {self.rates}"
            )

    @property
    def local_steps(self) -> int:
        """P: the number of local steps."""
        return len(self.rates)

    def with_quantizers(self, client: str | Quantizer, server: str | Quantizer, size: int) -> "Setting":
        """The same run with these quantizers, for a model of ``size`` coordinates."""
        client, server = quantizer(client), quantizer(server)
        if not client.unbiased:
            raise ConfigError(f"the theory needs an unbiased client quantizer; {client.spec} is biased")
        return replace(
            self,
            client_delta=client.delta(size),
            server_delta=server.delta(size),
        )


def condition(s: Setting) -> float:
    """The left-hand side of the condition on the learning rates; the theorem holds if it is at most 1."""
    a, b = _condition(s)
    return a * s.server_rate**2 + b * s.server_rate


def largest_server_rate(s: Setting) -> float:
    """The largest η_g that meets the condition with these local rates."""
    return _positive_root(*_condition(s))


def largest_local_rate(s: Setting) -> float:
    """The largest maximum of the local rates that meets the condition; the ratios between them stay."""
    a, b = _condition(s)
    return max(s.rates) * _positive_root(a * s.server_rate**2, b * s.server_rate)


def _condition(s: Setting) -> tuple[float, float]:
    """(a, b) of the condition a·η_g² + b·η_g ≤ 1.

    If all local rates are multiplied by c, a is multiplied by c² and b by c.
    """
    spread = (1 + (1 - s.client_delta) / s.buffer_size) * s.local_steps * max(s.rates)
    limit = phi_limit(s.server_delta)
    return 3 * alpha(s.rates) * s.smoothness**2 * limit * spread, s.smoothness * spread


def simple_rates(s: Setting) -> tuple[float, float]:
    """The largest (η_ℓ, η_g) that meet the paper's simpler, stricter condition."""
    k, p = s.buffer_size, s.local_steps
    limit = 3 * phi_limit(s.server_delta) * p
    quantized = 1 / limit if limit else math.inf
    return min(k / (2 * p * (k + 1 - s.client_delta)), quantized), 1 / s.smoothness


def _positive_root(a: float, b: float) -> float:
    """The positive c with a·c² + b·c = 1."""
    return 0.0 if math.isinf(a) else 2 / (b + math.sqrt(b * b + 4 * a))


@dataclass(frozen=True)
class Bound:
    """The theorem's bound on the mean squared gradient norm, term by term."""

    optimisation: float
    """The distance from the optimum, 2F*/(η_g·T·α_P); FedBuff has the same term."""
    noise: float
    """The variance of stochastic gradients, averaged over the buffer."""
    drift: float
    """The distance between a local model and the model that local training started from."""
    staleness: float
    """The cost of updates that start from old versions."""
    cross: float
    """The cost of client quantization in stale updates."""
    client_quantization: float
    server_quantization: float

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def bound(s: Setting, *, limit: bool = False) -> Bound:
    """The bound of the theorem; with ``limit``, that of the corollary: φ(T) is replaced by its limit."""
    a, b, omega = alpha(s.rates), beta(s.rates), 1 - s.client_delta
    trained = 3 * s.smoothness**2 * b * (s.variance + s.local_steps * s.gradient_bound)
    stepped = b * (s.variance + 4 * s.gradient_bound) / s.buffer_size
    noise = s.smoothness * s.server_rate / a * stepped
    spread = phi_limit(s.server_delta) if limit else phi(s.steps, s.server_delta)
    return Bound(
        optimisation=2 * s.gap / (s.server_rate * s.steps * a),
        noise=noise,
        drift=trained,
        staleness=trained * s.server_rate**2 * s.max_staleness**2,
        cross=trained * s.server_rate**2 * s.max_staleness * omega / s.buffer_size,
        client_quantization=noise * omega,
        server_quantization=3 * (s.smoothness * s.server_rate) ** 2 * spread * (1 + omega) * stepped,
    )


def hidden_state_bound(s: Setting) -> float:
    """The bound on the mean of ‖x − x̂‖² over T steps: φ(T) times the bound of a server step."""
    omega, k = 1 - s.client_delta, s.buffer_size
    noise = (1 + omega) / k * (s.variance + 4 * s.gradient_bound)
    drift = (1 + omega / k) * s.local_steps * s.gradient_bound
    return s.server_rate**2 * phi(s.steps, s.server_delta) * beta(s.rates) * (noise + drift)


def complexity_rates(steps: int, local_steps: int, buffer_size: int) -> tuple[float, float]:
    """The rates (η_ℓ, η_g) of the complexity corollary: 1/(K√(TP)) and K."""
    return 1 / (buffer_size * math.sqrt(steps * local_steps)), float(buffer_size)


def complexity(s: Setting, max_staleness_1: int) -> dict[str, float]:
    """The orders of the complexity corollary, without constants, by the names of the terms of ``Bound``."""
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
        * phi_limit(s.server_delta)
        * ((1 + omega) * stepped / (t * k)),
    }


@dataclass(frozen=True)
class Cost:
    """The cost of a quantizer that is used at the clients only, and at the server only."""

    spec: str
    payload_bytes: int
    bits: float
    unbiased: bool
    omega: float
    delta: float
    client: bool
    """Whether the theory allows it at the clients: it is unbiased, and the rates meet the condition."""
    server: bool
    """Whether the theory allows it at the server: δ is positive, and the rates meet the condition."""
    client_bound: float
    """The bound with it at the clients, divided by FedBuff's; infinite if the theory does not allow it."""
    server_bound: float
    client_max_rate: float
    """The largest local rate with it at the clients; 0 if the theory does not allow it."""
    server_max_rate: float


def costs(s: Setting, size: int, specs: Iterable[str]) -> list[Cost]:
    """The cost of each quantizer: its bytes, where the theory allows it, and its bound relative to FedBuff's.

    Raises ConfigError if FedBuff's bound is 0.
    """
    exact = quantizer("identity")
    reference = bound(s.with_quantizers(exact, exact, size)).total
    if reference == 0:
        raise ConfigError("there is nothing to bound: set gap, variance or gradient_bound above 0")
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
