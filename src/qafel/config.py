"""The job: everything that server and clients agree on before the first byte; and its defaults.

The algorithms are presets of a job for the same server:

    qafel      a quantizer each way, the increment is Q_s(x − x̂)
    fedbuff    identity both ways: full precision
    fedasync   fedbuff with a buffer of one and the weight 1/√(1 + τ)
    fedavg     fedbuff whose clients train in rounds of K: only its clock is synchronous
    naive      the model itself is quantized, Q_s(x), without a hidden state: the paper's counter-example
"""

import math
import operator
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from qafel import wire
from qafel.errors import ConfigError, SpecError, unknown
from qafel.optimizers import Optimizer, Sgd, optimizer
from qafel.quantizers import Contract, Quantizer, quantizer
from qafel.vectors import MAX_SIZE, Layout

Weight = Callable[[int], float]

MAX_PAYLOAD = (1 << 32) - 1
"""The longest field that a frame can have, in bytes."""
DEFAULT_QUANTIZER = "qsgd:4,bucket=256,norm=max"
"""Both quantizers of a bare ``Job``, and of models below SMALL_MODEL coordinates."""
CLIENT_QUANTIZER, SERVER_QUANTIZER, LOOKAHEAD = "rotated:bits=0.4", "deadzone:step=2.2", 0.25
"""The defaults of ``algorithm("qafel")``; docs/frontier.md measures them."""
SMALL_MODEL = 4096
"""Below this many coordinates a frame is mostly header, and four bits cost little."""
MOMENTUM = 0.3
"""The default server momentum of ``algorithm``, unless there is another server optimizer."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What server and clients agree on. Its ``id``, a fingerprint of all fields, is part of every frame."""

    size: int
    """Coordinates of the model, d."""
    client_quantizer: str = DEFAULT_QUANTIZER
    """Q_c, for updates."""
    server_quantizer: str = DEFAULT_QUANTIZER
    """Q_s, for increments."""
    broadcast: Literal["difference", "model"] = "difference"
    """What an increment carries: Q_s(x − x̂), or the model itself, Q_s(x)."""
    buffer_size: int = 10
    """K: the number of updates in a server step."""
    server_rate: float = 1.0
    """Server learning rate, η_g."""
    momentum: float = 0.0
    """Server momentum, β."""
    staleness_weight: str = "constant"
    """w(τ): ``constant``, ``sqrt`` = 1/√(1 + τ), or ``polynomial:a`` = (1 + τ)^−a."""
    max_staleness: int | None = None
    """Updates with a larger τ are rejected."""
    seed: int = 0
    """The seed of the quantizers and of everything else that is random."""
    layout: Layout | None = None
    """The model's named tensors, for quantizers that use them."""
    lookahead: float = 0.0
    """How far ahead of x an increment aims: at x + λ·τ̄·(x − x before the step), with the buffer's mean
    staleness τ̄ (values are clipped to 30 times the median). Later updates start from where x will be."""
    server_optimizer: str | None = None
    """A spec of ``qafel.optimizers``, in place of ``server_rate`` and ``momentum``."""

    def __post_init__(self) -> None:
        for name in ("size", "buffer_size", "max_staleness", "seed"):
            _set(self, name, operator.index, "an integer", optional=name == "max_staleness")
        for name in ("server_rate", "momentum", "lookahead"):
            _set(self, name, lambda value: float(value) + 0.0, "a number")
        if not 1 <= self.size <= MAX_SIZE:
            raise ConfigError(f"size must be from 1 to {MAX_SIZE}, got {self.size}")
        if not isinstance(self.layout, Layout | None):
            raise ConfigError("layout must be a Layout; Layout.of({name: shape, …}) makes one")
        if self.layout is not None and self.layout.size != self.size:
            raise ConfigError(f"the layout has {self.layout.size} coordinates, the job {self.size}")
        if not 1 <= self.buffer_size < 1 << 31:
            raise ConfigError(f"buffer_size must be at least 1 and below 2³¹, got {self.buffer_size}")
        if not 0 < self.server_rate < 3.4e38:
            raise ConfigError(f"server_rate must be positive and finite, got {self.server_rate}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if not 0 <= self.lookahead <= 1:
            raise ConfigError(f"lookahead must be from 0 to 1, got {self.lookahead}")
        if self.max_staleness is not None and not 0 <= self.max_staleness < 1 << 40:
            raise ConfigError(f"max_staleness must be at least 0 and below 2⁴⁰, got {self.max_staleness}")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ConfigError(f"seed must be at least −2⁶³ and below 2⁶³, got {self.seed}")
        if self.broadcast not in ("difference", "model"):
            raise ConfigError(f"broadcast must be 'difference' or 'model', got {self.broadcast!r}")
        if not isinstance(self.staleness_weight, str):
            raise ConfigError("staleness_weight must be a name; pass a function as Server(…, weight=…)")
        named_weight(self.staleness_weight)
        for name in ("client_quantizer", "server_quantizer"):
            q = quantizer(getattr(self, name), self.layout)
            if q.max_bytes(self.size) > MAX_PAYLOAD:
                raise ConfigError(f"a message of {q.spec} at {self.size} coordinates would exceed 4 GB")
            msgspec.structs.force_setattr(self, name, q.spec)
        if self.server_optimizer is not None:
            if self.momentum or self.server_rate != 1:
                raise ConfigError(
                    f"momentum and server_rate have no effect beside server_optimizer = "
                    f"{self.server_optimizer!r}; leave them out, and give rate=… in the optimizer"
                )
            msgspec.structs.force_setattr(self, "server_optimizer", optimizer(self.server_optimizer).spec)

    def to_bytes(self) -> bytes:
        """The job as bytes, for a client that joins; ``id`` is their fingerprint."""
        fields = msgspec.structs.asdict(self)
        for name, absent in (("server_optimizer", None), ("lookahead", 0.0)):
            if fields[name] == absent:
                del fields[name]
        return msgspec.msgpack.encode(fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Job":
        """The inverse of ``to_bytes``, or FrameError."""
        return wire.unpack(data, wire.decoder(cls))

    @property
    def id(self) -> int:
        """The job's fingerprint."""
        return wire.fingerprint(self.to_bytes())

    @property
    def replaces(self) -> bool:
        """Whether an increment carries the model itself.

        In full precision x costs as many bytes as x − x̂, and arrives exactly, which x̂ + (x − x̂) in float32
        does not.
        """
        return self.broadcast == "model" or quantizer(self.server_quantizer).lossless

    @property
    def optimizer(self) -> Optimizer:
        """How the server moves the model."""
        if self.server_optimizer is None:
            return Sgd(self.server_rate, self.momentum)
        return optimizer(self.server_optimizer)

    def quantizers(self) -> tuple[Quantizer, Quantizer]:
        """(Q_c, Q_s), bound to the layout."""
        return quantizer(self.client_quantizer, self.layout), quantizer(self.server_quantizer, self.layout)


def _set(job: Job, name: str, convert: Callable[[Any], Any], what: str, *, optional: bool = False) -> None:
    """Convert a field to its type: equal jobs need equal bytes, but 1 and 1.0 are encoded differently."""
    value = getattr(job, name)
    if value is None and optional:
        return
    try:
        if isinstance(value, str | bool):
            raise TypeError
        msgspec.structs.force_setattr(job, name, convert(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name} must be {what}, got {value!r}") from error


ALGORITHMS: dict[str, dict[str, Any]] = {
    "qafel": {},
    "fedbuff": {"client_quantizer": "identity", "server_quantizer": "identity"},
    "fedasync": {
        "client_quantizer": "identity",
        "server_quantizer": "identity",
        "buffer_size": 1,
        "staleness_weight": "sqrt",
    },
    "fedavg": {"client_quantizer": "identity", "server_quantizer": "identity"},
    "naive": {"broadcast": "model"},
}


def defaults(name: str, size: int, server_optimizer: str | None = None) -> dict[str, Any]:
    """Return the default options of Job for an algorithm and a model of ``size`` coordinates.

    Beside a server optimizer there is neither momentum nor look-ahead.
    """
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    chosen = {"momentum": MOMENTUM, **ALGORITHMS[name]}
    if name == "qafel" and size >= SMALL_MODEL:
        chosen |= {"client_quantizer": CLIENT_QUANTIZER, "server_quantizer": SERVER_QUANTIZER}
        chosen["lookahead"] = LOOKAHEAD
    if server_optimizer is not None:
        chosen |= {"momentum": 0.0, "lookahead": 0.0}
    return chosen


def algorithm(name: str, *, size: int, **options: Any) -> Job:
    """The job of a named algorithm: its ``defaults``, then ``options`` of Job."""
    unknown = sorted(set(options) - set(Job.__struct_fields__))
    if unknown:
        raise ConfigError(f"a job has no {unknown[0]!r}; it has {', '.join(Job.__struct_fields__)}")
    return Job(size=size, **{**defaults(name, size, options.get("server_optimizer")), **options})


def named_weight(name: str) -> Weight:
    """The staleness weight w(τ) of that name."""
    kind, _, argument = name.partition(":")
    if name == "constant":
        return lambda staleness: 1.0  # noqa: ARG005
    if name == "sqrt":
        return lambda staleness: 1.0 / math.sqrt(1 + staleness)
    try:
        power = float(argument)
    except ValueError:
        power = math.nan
    if kind == "polynomial" and 0 <= power < math.inf:
        return lambda staleness: float((1 + staleness) ** -power)
    raise ConfigError(f"unknown staleness weight {name!r}; use constant, sqrt, or polynomial:a with a ≥ 0")


def remedy(q: Quantizer, size: int) -> str:
    """The specs to use instead of a server quantizer that is not a contraction."""
    fixes = [DEFAULT_QUANTIZER] if quantizer(DEFAULT_QUANTIZER).delta(size) > 0 else []
    if q.unbiased:
        fixes.append(f"contract:{q.spec} (delta {Contract(q).delta(size):.3g})")
    advice = ", or more levels, a smaller bucket, the max norm" if q.name == "qsgd" else ""
    return " or ".join(fixes) + advice


def unbiased_one(q: Quantizer) -> str:
    """The spec of an unbiased quantizer to use instead of ``q``."""
    try:
        return quantizer(f"induced:{q.spec}+{DEFAULT_QUANTIZER}").spec
    except SpecError:
        return DEFAULT_QUANTIZER
