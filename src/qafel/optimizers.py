"""Server optimizers: how the mean update of a buffer, Δ̄, moves the model (FedOpt, Reddi et al., 2021).

    sgd       m ← β·m + Δ̄                         x ← x + η·m
    adam      m ← β₁·m + (1 − β₁)·Δ̄               x ← x + η·m̂ / (√v̂ + ε), m̂ and v̂ corrected for their bias
              v ← β₂·v + (1 − β₂)·Δ̄²
    adagrad   v ← v + Δ̄²                          x ← x + η·Δ̄ / (√v + ε)
    yogi      m as for adam                       x ← x + η·m / (√v + ε)
              v ← v − (1 − β₂)·sign(v − Δ̄²)·Δ̄²

Adam and Adagrad are those of ``torch.optim``, with −Δ̄ as the gradient; Yogi is that of its paper (Zaheer et
al., 2018). Specs are ``adam:rate=0.01``, ``adam:rate=0.01,beta1=0.9,beta2=0.999,eps=0.001`` and the like;
``optimizer(o.spec) == o``. A new optimizer is a frozen dataclass with ``@register_optimizer``.
"""

import difflib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

import numpy as np

from qafel import vectors
from qafel.errors import ConfigError, SpecError
from qafel.lazy import Lazy
from qafel.quantizers import Arguments
from qafel.vectors import Vector

kernels = Lazy("qafel.optimizers_kernels")
F32 = np.float32
LIMITS = {
    "rate": ("0.0000001", "1000000"),
    "momentum": ("0", "0.99999999"),
    "beta1": ("0", "0.99999999"),
    "beta2": ("0", "0.99999999"),
    "eps": ("0.00000001", "1000"),
}
"""The smallest and the largest value of each argument; any other one is from 0 to a million."""


class Optimizer(ABC):
    """A rule that moves the model. Its state is a list of ``slots`` vectors, which begin at zero."""

    name: ClassVar[str]
    slots: ClassVar[int]

    @property
    def spec(self) -> str:
        """The canonical spec, with every argument."""
        values = (f"{f.name}={Decimal(repr(getattr(self, f.name))):f}" for f in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{','.join(values)}"

    def step(
        self, version: int, total: Vector, count: int, state: list[Vector], x: Vector, hidden: Vector
    ) -> tuple[list[Vector], Vector, Vector]:
        """Step number ``version`` + 1, with Δ̄ = ``total``/``count``: the new state, x, and x − x̂."""
        new = [vectors.empty(x.size) for _ in range(self.slots + 2)]
        self._run(version + 1, total, F32(count), *state, x, hidden, *new)
        return new[:-2], new[-2], new[-1]

    @abstractmethod
    def _run(self, number: int, *vectors: Any) -> None:
        """Call the kernel: (total, count, state…, x, x̂, new state…, new x, x − x̂)."""


O = TypeVar("O", bound=type[Optimizer])  # noqa: E741
_registry: dict[str, type[Optimizer]] = {}


def register_optimizer(kind: O) -> O:
    """Make an optimizer known by its name; ConfigError if the name is taken."""
    if kind.name in _registry:
        raise ConfigError(f"there is an optimizer {kind.name!r} already")
    _registry[kind.name] = kind
    return kind


def registered_optimizers() -> dict[str, type[Optimizer]]:
    """All optimizers by name."""
    return dict(_registry)


def optimizer(spec: str) -> Optimizer:
    """The optimizer of a spec; SpecError names the problem and the nearest valid spec."""
    name, _, rest = spec.strip().partition(":")
    if name not in _registry:
        nearest = (difflib.get_close_matches(name, _registry, 1, 0.0) or ["adam"])[0]
        raise SpecError(
            f"unknown server optimizer {name!r}; known are {', '.join(_registry)}", f"{nearest}:rate=0.01"
        )
    kind = _registry[name]
    arguments = Arguments(name, rest, lambda candidate: _nearest(candidate, name))
    options = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    arguments.expect(None, options)
    if "rate" not in arguments.places:
        arguments.fail_with("needs rate=…", f"{name}:{','.join(['rate=0.01', *arguments.items])}")
    given = [key for key in options if key in arguments.places]
    limits = {key: map(Decimal, LIMITS.get(key, ("0", "1000000"))) for key in given}
    return kind(**{key: float(arguments.decimal(key, *limits[key])) for key in given})


def _nearest(candidate: str, name: str) -> str:
    """The candidate if it is valid, otherwise a spec that is."""
    try:
        return optimizer(candidate).spec
    except SpecError:
        return f"{name}:rate=0.01"


@register_optimizer
@dataclass(frozen=True)
class Sgd(Optimizer):
    """The paper's server: a step with momentum."""

    name = "sgd"
    slots = 1

    rate: float
    momentum: float = 0.0

    def _run(self, number: int, *vectors: Any) -> None:
        del number
        kernels.sgd(F32(self.momentum), F32(self.rate), *vectors)


@register_optimizer
@dataclass(frozen=True)
class Adam(Optimizer):
    """FedAdam: ``torch.optim.Adam`` on −Δ̄."""

    name = "adam"
    slots = 2

    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 0.001

    def _run(self, number: int, *vectors: Any) -> None:
        rate = self.rate / (1 - _power(self.beta1, number))
        root = math.sqrt(1 - _power(self.beta2, number))
        betas = F32(self.beta1), F32(1 - self.beta1), F32(self.beta2), F32(1 - self.beta2)
        kernels.adam(*betas, F32(rate), F32(root), F32(self.eps), *vectors)


@register_optimizer
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """FedAdagrad: ``torch.optim.Adagrad`` on −Δ̄."""

    name = "adagrad"
    slots = 1

    rate: float
    eps: float = 0.001

    def _run(self, number: int, *vectors: Any) -> None:
        del number
        kernels.adagrad(F32(self.rate), F32(self.eps), *vectors)


@register_optimizer
@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: Yogi, as in its paper, on −Δ̄."""

    name = "yogi"

    def _run(self, number: int, *vectors: Any) -> None:
        del number
        betas = F32(self.beta1), F32(1 - self.beta1), F32(1 - self.beta2)
        kernels.yogi(*betas, F32(self.rate), F32(self.eps), *vectors)


def _power(base: float, exponent: int) -> float:
    """``base`` to a whole power by multiplications only: the same bits on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
