"""The settings of a run: one flat list of names, the same in a TOML file, after ``--set`` and in Python.

``Learning`` has what is learned, how, and for how long; the simulator adds its clock, the federation its
leases.
"""

import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec
import numpy as np

from qafel.config import ALGORITHMS, MOMENTUM, Job, algorithm
from qafel.errors import ConfigError
from qafel.vectors import Layout

if TYPE_CHECKING:
    from qafel.tasks.data.table import Population
    from qafel.tasks.learner import Learner

COUNTS = (
    "uploads",
    "evaluate_every",
    "held_out_samples",
    "smoothing",
    "clients",
    "concurrency",
    "batch_size",
    "epochs",
    "steps",
    "byte_budget",
)

JOB = (
    "client_quantizer",
    "server_quantizer",
    "buffer_size",
    "server_rate",
    "momentum",
    "staleness_weight",
    "max_staleness",
    "seed",
)
"""The settings that are fields of Job, too."""

S = TypeVar("S", bound="Learning")


class Learning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what is learned, how, and for how long."""

    # what is learned
    data: Any = "faces"
    """``faces``, ``digits``, ``breast-cancer``, a file or folder, ``module:factory``."""
    model: Any = "cnn"
    """``cnn``, ``logistic``, ``softmax``, ``mlp``, ``resnet18``, ``module:factory``."""
    partition: str = "natural"
    clients: int | None = None
    """The number of clients; by default that of the data and the partition."""
    held_out: float = 0.2
    """The share of users (or samples) that is not trained on."""
    local_rate: float = 0.01
    """Local learning rate, η_ℓ."""
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None
    """P: local steps; by default ``epochs`` passes over the client's data."""
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    """μ of FedProx: adds μ·(y − y_0) to the gradient."""
    engine: str = "auto"
    """``plain``, ``compile``, ``kernel`` (for the cnn); ``auto`` is the kernel for the cnn, else plain."""
    device: str = "cpu"

    # how it is learned: fields of Job
    algorithm: str = "qafel"
    client_quantizer: str | None = None
    server_quantizer: str | None = None
    buffer_size: int | None = None
    server_rate: float = 1.0
    momentum: float = MOMENTUM
    staleness_weight: str | None = None
    max_staleness: int | None = None
    downlink: Literal["broadcast", "catch-up"] = "broadcast"
    """Clients get every increment, or fetch what they missed when they start a task."""

    # how long, and how it is evaluated
    uploads: int = 10_000
    target: float | None = None
    """Stop when the smoothed accuracy reaches this."""
    byte_budget: int | None = None
    """Stop when this many bytes went up and down."""
    time_limit: float | None = None
    """Stop at this time: virtual in a simulation, in seconds in a federation."""
    evaluate_every: int = 250
    held_out_samples: int = 1000
    """Evaluate on at most this many held-out samples."""
    smoothing: int = 3
    """Smoothed metrics are medians over this many evaluations."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise unknown("algorithm", self.algorithm, ALGORITHMS)
        for name in ("data", "model"):
            value = getattr(self, name)
            if not isinstance(value, str) and (not callable(value) or hasattr(value, "parameters")):
                raise ConfigError(f"{name} must be text or a function that makes it, got {value!r:.60}")
        for name in COUNTS:
            value = getattr(self, name, None)
            if value is not None and not 1 <= value < 1 << 40:
                raise ConfigError(f"{name} must be at least 1 and below 2⁴⁰, got {value}")
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ConfigError(f"time_limit must be positive and finite, got {self.time_limit}")
        if self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"target must be an accuracy between 0 and 1, got {self.target}")
        self.job(1)

    def job(self, size: int, layout: Layout | None = None) -> Job:
        """The job that server and clients agree on."""
        chosen = {name: getattr(self, name) for name in JOB if getattr(self, name) is not None}
        return algorithm(self.algorithm, size=size, layout=layout, **chosen)

    def resolved(self, job: Job, **values: Any) -> Self:
        """The same settings with every value that was left open: the job's, and ``values`` of the driver."""
        return msgspec.structs.replace(self, **{name: getattr(job, name) for name in JOB}, **values)

    def population(self) -> "Population":
        """The clients and their data."""
        from qafel.tasks.data import population

        clients = population(
            self.data,
            partition=self.partition,
            clients=self.clients,
            held_out=self.held_out,
            seed=self.seed,
        )
        buffer_size = self.job(1).buffer_size
        if buffer_size > clients.clients:
            raise ConfigError(
                f"buffer_size (K) is {buffer_size}, larger than the population of {clients.clients} "
                "clients; lower it"
            )
        return clients

    def learner(self) -> "Learner":
        """What is learned, ready to train."""
        from qafel.tasks.learner import Learner
        from qafel.tasks.local import LocalSgd

        sgd = LocalSgd(
            rate=self.local_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            steps=self.steps,
            momentum=self.local_momentum,
            weight_decay=self.weight_decay,
            prox=self.prox,
        )
        return Learner(
            self.population(),
            self.model,
            sgd,
            engine=self.engine,
            device=self.device,
            held_out_samples=self.held_out_samples,
            seed=self.seed,
        )

    def to_toml(self) -> str:
        """The settings as a TOML file, without those that are None."""
        values = {name: value for name, value in self.values().items() if value is not None}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def values(self) -> dict[str, Any]:
        """All settings by name; a function is named by where it can be imported from."""
        return {name: named(getattr(self, name)) for name in self.__struct_fields__}


def named(value: Any) -> Any:
    """The import path of a function; any other value as it is."""
    if not callable(value):
        return value
    return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"


def checked(kind: type[S], values: Mapping[str, Any], where: str = "the settings") -> S:
    """Settings from names and values; ConfigError says what is wrong, and where."""
    for name in values:
        if name not in kind.__struct_fields__:
            raise unknown("setting", name, kind.__struct_fields__, where)
    hints = typing.get_type_hints(kind)
    converted = {}
    for name, given in values.items():
        value = given.item() if isinstance(given, np.generic) else given
        value = str(value) if isinstance(value, Path) else value
        try:
            converted[name] = msgspec.convert(value, hints[name], strict=True)
        except msgspec.ValidationError:
            raise ConfigError(f"{name} in {where} must be {_kind(hints[name])}, got {value!r}") from None
    return kind(**converted)


def read_file(kind: type[S], path: Path | None, changes: Iterable[str] = ()) -> S:
    """Settings from a TOML file and ``key=value`` changes."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # also of a number of 5,000 digits, or deep nesting
            raise ConfigError(f"{path} is not a TOML file: {str(error)[:200]}") from None
        checked(kind, values, str(path))
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set takes key=value, got {change!r}")
        values[name.strip()] = parse(text.strip())
    return checked(kind, values, "--set" if path is None else f"{path} or --set")


def parse(text: str) -> Any:
    """A value in TOML syntax; anything else is text, and ``none`` is None."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def unknown(what: str, name: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"there is no {what} {name!r}{f' ({where})' if where else ''}; {hint}")


def _kind(hint: Any) -> str:
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return " or ".join(_kind(part) for part in typing.get_args(hint) if part is not type(None))
    return names.get(hint, str(hint))
