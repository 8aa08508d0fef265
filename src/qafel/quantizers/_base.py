"""The contract of a quantizer, and the registry that turns a spec string into one.

A quantizer turns a flat float32 vector into bytes and back, with a bounded loss (Definition 1 of the paper):

    E‖Q(x) − x‖² ≤ ω ‖x‖² = (1 − δ) ‖x‖²

- ``encode(x, seed)`` returns the payload. The same vector and seed give the same bytes on every machine and
  with any number of threads. A NaN or an infinity raises a VectorError that names the coordinate; an empty
  vector has a valid payload.
- ``decode(data, size)`` returns Q(x), which is finite, or raises FrameError: wrong length, codes out of
  range, stray bits, NaN. ``size`` comes from the job, never from the peer, and ``len(data)`` is checked
  against it before anything is allocated.
- ``decode_add(data, out, weight)`` does ``out += weight · Q(x)`` in place, in float32, with the same bits as
  decoding and adding, except for the sign of a zero. ``out`` is unchanged if the payload is invalid.
- ``unbiased``: E[Q(x)] = x, up to 2⁻¹⁵ of a quantization step (16 random bits decide a rounding) and the
  rounding of float32.
- ``omega(size)`` and ``delta(size)`` hold for all vectors of that size. Q is a contraction if δ > 0.
- Scale invariance: Q(2ᵏ·x) = 2ᵏ·Q(x) for normal numbers. Denormal results are the nearest representable
  ones; a denormal L2 norm is rounded before it is used.
- ``spec`` is the canonical string; ``quantizer(q.spec) == q``.

A new quantizer is a frozen dataclass with ``@register_quantizer``. A quantizer of another package needs no
change here: call ``register_quantizer`` before using it, or declare an entry point in the group
``qafel.quantizers`` under its name.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import ClassVar, Self, TypeVar

import numpy as np

from qafel import vectors
from qafel.errors import ConfigError, FrameError, SpecError, VectorError
from qafel.quantizers._spec import Arguments
from qafel.vectors import Layout, Vector

ENTRY_POINTS = "qafel.quantizers"
MAX_SPEC = 120
"""The maximum number of characters of a spec; it also limits the recursion of nested specs."""


class Quantizer(ABC):
    """See the module's docstring for the contract."""

    name: ClassVar[str]
    example: ClassVar[str]
    lossless: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Return the quantizer with the arguments that follow the name in a spec."""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The canonical spec of this quantizer."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E[Q(x)] = x. Subclasses may define it as a class attribute."""

    @abstractmethod
    def omega(self, size: int) -> float:
        """Return the smallest known ω with E‖Q(x) − x‖² ≤ ω‖x‖² for every x of this size."""

    def delta(self, size: int) -> float:
        """Return the compression parameter δ = 1 − ω."""
        return 1.0 - self.omega(size)

    @abstractmethod
    def max_bytes(self, size: int) -> int:
        """Return the length of the longest payload for this size."""

    @abstractmethod
    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the payload of ``x``. All randomness comes from ``seed``."""

    @abstractmethod
    def decode(self, data: bytes, size: int) -> Vector:
        """Return Q(x), or raise FrameError."""

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Do ``out += weight · Q(x)``. ``out`` is unchanged if the payload is invalid."""
        vectors.check_target(out)
        x = self.decode(data, out.size)
        if x.shape != out.shape or not vectors.is_finite(x):
            raise FrameError(f"{self.spec} did not decode to {out.size} finite numbers")
        out += np.float32(weight) * x

    def encode_add(self, x: Vector, seed: int, out: Vector) -> bytes:
        """Return the payload of ``x``, and do ``out += Q(x)``, with the same bits as ``decode_add``."""
        payload = self.encode(x, seed)
        self.decode_add(payload, out)
        return payload

    def bind(self, layout: Layout) -> "Quantizer":
        """Return this quantizer for vectors of ``layout``. Most quantizers ignore the layout."""
        del layout
        return self

    def wrong_length(self, length: int, size: int) -> FrameError:
        """Return the error for a payload whose length is impossible."""
        return FrameError(
            f"{self.spec}: a payload of {size} coordinates cannot have {length} bytes "
            f"(at most {self.max_bytes(size)})"
        )

    def __str__(self) -> str:
        return self.spec


class Additive(Quantizer):
    """A quantizer that adds payloads; ``decode`` adds one to zero. The payload of an empty vector is empty.

    Payloads have exactly ``max_bytes``, unless ``check`` is overridden.
    """

    layout: Layout | None = None

    @abstractmethod
    def payload(self, x: Vector, seed: int) -> bytes:
        """Return the payload of a vector that is not empty."""

    @abstractmethod
    def add(self, data: bytes, weight: np.float32, out: Vector) -> None:
        """Do ``out += weight · Q(x)`` for a payload that ``check`` accepted; ``out`` is not empty."""

    def check(self, data: bytes, size: int) -> None:
        """Raise FrameError if the length of the payload is wrong."""
        if len(data) != self.max_bytes(size):
            wanted = f"{self.max_bytes(size)} bytes for {size} coordinates"
            raise FrameError(f"{self.spec} needs {wanted}, got {len(data)}")

    def encode(self, x: Vector, seed: int) -> bytes:
        """Return the payload of ``x``."""
        x = vectors.as_vector(x)
        if self.layout is not None:
            self.check_size(x.size)
        return self.payload(x, seed) if x.size else b""

    def check_size(self, size: int) -> None:
        """Raise VectorError if the layout has another size."""
        if self.layout is not None and size != self.layout.size:
            raise VectorError(f"the layout has {self.layout.size} coordinates, the vector {size}")

    def decode(self, data: bytes, size: int) -> Vector:
        """Return what ``decode_add`` adds."""
        self.check(data, size)
        out = vectors.zeros(size)
        if size:
            self.add(data, np.float32(1), out)
        return out

    def decode_add(self, data: bytes, out: Vector, weight: float = 1.0) -> None:
        """Check the payload, then add it."""
        vectors.check_target(out)
        self.check(data, out.size)
        if out.size:
            self.add(data, np.float32(weight), out)


class NoArguments(Quantizer):
    """A quantizer without arguments: its spec is its name."""

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take no arguments."""
        arguments.expect(None, ())
        return cls()

    @property
    def spec(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True)
class Bits(Additive):
    """A quantizer whose one argument is a number of bits."""

    max_bits: ClassVar[int]

    bits: int

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        """Take ``BITS``."""
        arguments.expect("bits", ())
        bits = arguments.integer("bits", 1, cls.max_bits)
        if bits is None:
            arguments.fail_with("needs a number of bits", cls.example)
        return cls(bits)

    @property
    def spec(self) -> str:
        """``NAME:BITS``."""
        return f"{self.name}:{self.bits}"


def check_finite(x: Vector) -> None:
    """Raise VectorError if a coordinate is not finite."""
    if not vectors.is_finite(x):
        raise vectors.not_finite(x)


def finite_payload(values: Vector) -> Vector:
    """Return ``values``, read from a payload; raise FrameError if one is not finite."""
    if not vectors.is_finite(values):
        raise FrameError("the payload has a NaN or an infinity")
    return values


Q = TypeVar("Q", bound=type[Quantizer])

_registry: dict[str, type[Quantizer]] = {}


def register_quantizer(cls: Q) -> Q:
    """Class decorator: make a quantizer available under its ``name``.

    Raises ConfigError if the name is taken or not an identifier.
    """
    if _registry.get(cls.name, cls) is not cls:
        raise ConfigError(f"a quantizer named {cls.name!r} is registered already; choose another name")
    if not cls.name.isidentifier():
        raise ConfigError(f"the name of a quantizer must be an identifier such as 'qsgd', got {cls.name!r}")
    _registry[cls.name] = cls
    return cls


def registered_quantizers() -> dict[str, type[Quantizer]]:
    """Return every known quantizer by name, including those of installed packages."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name not in _registry:
            register_quantizer(point.load())
    return dict(sorted(_registry.items()))


def quantizer(spec: "str | Quantizer", layout: Layout | None = None) -> Quantizer:
    """Return the quantizer of ``spec``, such as ``qsgd:4,bucket=256,norm=max``, bound to ``layout`` if given.

    Raises SpecError, which carries the nearest valid spec.
    """
    if not isinstance(spec, str | Quantizer):
        raise SpecError(f"a spec is a string such as 'qsgd:4', got {spec!r}", "qsgd:4")
    q = _parse(spec) if isinstance(spec, str) else spec
    return q.bind(layout) if layout is not None else q


def inner_quantizer(arguments: Arguments, spec: str, wrap: Callable[[str], str]) -> Quantizer:
    """Return the quantizer of ``spec``, a part of a longer one. ``wrap`` turns its nearest valid spec into a
    whole spec for the error.
    """
    try:
        return quantizer(spec)
    except SpecError as error:
        arguments.fail_with(str(error).partition("; nearest valid")[0], wrap(error.nearest))


@lru_cache(maxsize=256)
def _parse(spec: str) -> Quantizer:
    _check_length(spec)
    name, _, rest = spec.strip().partition(":")
    name, comma, options = name.partition(",")
    if comma and rest:
        moved = f"{name}:{rest},{options}"
        raise SpecError(f"in {spec!r} the options must follow the argument", _nearest(moved))
    known = _registry if name in _registry else registered_quantizers()
    if name in known:
        q = known[name].from_arguments(Arguments(name, rest or (comma and comma + options), _nearest))
        _check_length(q.spec)
        return q
    closest = _closest(name, list(known))
    nearest = _nearest(f"{closest}:{rest}" if rest else closest)
    raise SpecError(f"unknown quantizer {name!r} in {spec!r}; known are {', '.join(known)}", nearest)


def _check_length(spec: str) -> None:
    if len(spec) > MAX_SPEC:
        raise SpecError(f"a spec must have at most {MAX_SPEC} characters, got {len(spec)}", "qsgd:4")


def _nearest(spec: str) -> str:
    """Return ``spec`` in its canonical form if it is valid, else the nearest valid one."""
    try:
        return quantizer(spec).spec
    except SpecError as error:
        return error.nearest


def _closest(word: str, words: list[str]) -> str:
    near = [] if word.lower() == "none" else difflib.get_close_matches(word.lower(), words, 1, 0.5)
    return (near or ["identity"])[0]
