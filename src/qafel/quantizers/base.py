"""The contract of a quantizer, and the registry that turns a spec string into one.

A quantizer turns a flat float32 vector into bytes and back, with a loss it can name (Definition 1 of the
paper):

    E‖Q(x) − x‖² ≤ ω ‖x‖² = (1 − δ) ‖x‖²

- ``encode(x, seed)``: the payload. Same vector and seed ⇒ same bytes, whatever the machine, threads or
  chunks. A vector with a NaN or an infinity gets a VectorError that names the coordinate; an empty vector
  gives a valid payload.
- ``decode(data, size)``: Q(x), finite; or FrameError: wrong length, codes out of range, stray bits, NaN.
  ``size`` is ours, never the peer's word, and ``len(data)`` is checked against it before anything is
  allocated.
- ``decode_add(data, out, weight)``: ``out += weight · Q(x)`` in place, in float32, bit for bit what decoding
  and adding give, but for the sign of a zero; ``out`` is untouched when the payload is bad.
- ``unbiased``: E[Q(x)] = x, up to 2⁻¹⁵ of a quantization step (16 random bits decide a rounding) and the
  rounding of float32.
- ``omega(size)``, ``delta(size)``: the worst case over all vectors of that size. δ ≤ 0 means: not a
  contraction.
- Scale invariance: Q(2ᵏ·x) = 2ᵏ·Q(x) while numbers stay normal; denormal results are the nearest
  representable ones, except that an L2 norm which is itself denormal is rounded first.
- ``spec``: the canonical string; ``quantizer(q.spec) == q``.

A new quantizer is a frozen dataclass with ``@register``; one in another package needs no change here: call
``register`` before using it, or declare an entry point in the group ``qafel.quantizers`` and it is found by
name.
"""

import difflib
from abc import ABC, abstractmethod
from functools import lru_cache
from importlib.metadata import entry_points
from typing import ClassVar, Self, TypeVar

import numpy as np

from qafel import vectors
from qafel.errors import ConfigError, FrameError, SpecError
from qafel.quantizers.spec import Arguments
from qafel.vectors import Layout, Vector

ENTRY_POINTS = "qafel.quantizers"
MAX_SPEC = 120
"""Characters a spec may have: quantizers nest, and so does reading them."""


class Quantizer(ABC):
    """See the module's docstring for the contract."""

    name: ClassVar[str]
    example: ClassVar[str]
    lossless: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Build it from what stands after the name in a spec."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The canonical string that gives this quantizer again."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E[Q(x)] = x."""

    @abstractmethod
    def omega(self, size: int) -> float:
        """The smallest known ω with E‖Q(x) − x‖² ≤ ω‖x‖² for every x of this size."""

    def delta(self, size: int) -> float:
        """The compression parameter δ = 1 − ω; not a contraction where it is not positive."""
        return 1.0 - self.omega(size)

    @abstractmethod
    def max_bytes(self, size: int) -> int:
        """No payload for this size is longer."""

    @abstractmethod
    def encode(self, x: Vector, seed: int) -> bytes:
        """The payload of ``x``; randomness, if any, comes from ``seed`` alone."""

    @abstractmethod
    def decode(self, data: bytes, size: int) -> Vector:
        """Q(x) from its payload, or FrameError."""

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """``out += weight · Q(x)``; ``out`` is untouched when the payload is bad."""
        vectors.check_target(out)
        x = self.decode(data, out.size)
        if x.shape != out.shape or not vectors.is_finite(x):
            raise FrameError(f"{self.spec} decoded to something other than {out.size} finite numbers")
        out += np.float32(weight) * x

    def bind(self, layout: Layout) -> "Quantizer":
        """This quantizer for vectors of that layout; most do not care."""
        del layout
        return self

    def __str__(self) -> str:
        return self.spec


class Dense(Quantizer):
    """A quantizer whose payload always has ``max_bytes`` and is best decoded by adding it to zero."""

    def check_length(self, data: bytes, size: int) -> None:
        """FrameError unless the payload is as long as it must be."""
        if len(data) != self.max_bytes(size):
            wanted = f"{self.max_bytes(size)} bytes for {size} coordinates"
            raise FrameError(f"{self.spec} needs {wanted}, got {len(data)}")

    def decode(self, data: bytes, size: int) -> Vector:
        """What ``decode_add`` adds."""
        self.check_length(data, size)
        out = vectors.zeros(size)
        self.decode_add(data, out)
        return out


Q = TypeVar("Q", bound=type[Quantizer])

_registry: dict[str, type[Quantizer]] = {}


def register(cls: Q) -> Q:
    """Class decorator: make a quantizer known by its ``name``. A taken name is refused."""
    if _registry.get(cls.name, cls) is not cls:
        raise ConfigError(f"a quantizer called {cls.name!r} is registered already")
    if not cls.name.isidentifier():
        raise ConfigError(f"a quantizer's name must be an identifier, not {cls.name!r}")
    _registry[cls.name] = cls
    return cls


def registered() -> dict[str, type[Quantizer]]:
    """Every known quantizer by name, those of installed packages included."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name not in _registry:
            register(point.load())
    return dict(sorted(_registry.items()))


def quantizer(spec: "str | Quantizer", layout: Layout | None = None) -> Quantizer:
    """The quantizer that ``spec`` describes, such as ``qsgd:4,bucket=256,norm=max``, bound to ``layout`` if
    given.
    """
    if not isinstance(spec, str | Quantizer):
        raise SpecError(f"a spec is a string such as 'qsgd:4', not {spec!r}", "qsgd:4")
    found = _parse(spec) if isinstance(spec, str) else spec
    return found.bind(layout) if layout is not None else found


@lru_cache(maxsize=256)
def _parse(spec: str) -> Quantizer:
    if len(spec) > MAX_SPEC:
        raise SpecError(f"a spec of {len(spec)} characters, where {MAX_SPEC} are the most", "qsgd:4")
    name, _, rest = spec.strip().partition(":")
    name, comma, options = name.partition(",")
    if comma and rest:
        moved = f"{name}:{rest},{options}"
        raise SpecError(
            f"options stand after the argument in a spec, not before it as in {spec!r}", _nearest(moved)
        )
    known = _registry if name in _registry else registered()
    if name in known:
        found = known[name].from_arguments(Arguments(name, rest or (comma and comma + options), quantizer))
        if len(found.spec) > MAX_SPEC:
            raise SpecError(
                f"a spec of {len(found.spec)} characters, where {MAX_SPEC} are the most", "qsgd:4"
            )
        return found
    closest = _closest(name, list(known))
    nearest = _nearest(f"{closest}:{rest}" if rest else closest)
    raise SpecError(f"unknown quantizer {name!r} in {spec!r}; known are {', '.join(known)}", nearest)


def _nearest(spec: str) -> str:
    """The spec itself where it is valid, or what is nearest to it."""
    try:
        return quantizer(spec).spec
    except SpecError as error:
        return error.nearest


def _closest(word: str, words: list[str]) -> str:
    near = [] if word.lower() == "none" else difflib.get_close_matches(word.lower(), words, 1, 0.5)
    return (near or ["identity"])[0]
