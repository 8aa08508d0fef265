"""The settings of a run: one flat list of names, the same in a TOML file, after ``--set`` and in Python.

``Learning`` has what is learned, how, and for how long; the simulator adds its clock, the federation its
leases.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from qafel.config import ALGORITHMS, Job, Weight, algorithm
from qafel.errors import ConfigError, unknown
from qafel.tasks.target import parse_target
from qafel.tasks.values import NO_DATA, PYTHON, described_code, named, not_importable, to_toml
from qafel.vectors import Layout
from qafel.wire import fingerprint

if TYPE_CHECKING:
    from qafel.tasks.data.table import Population
    from qafel.tasks.functions import FunctionLearner
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
    "max_samples",
    "classes",
    "vocabulary",
)
MAX_CLIENTS = 1 << 31
"""The clients of a federation whose number is not known."""

LOCAL_RATES = {"cnn": 0.01, "logistic": 0.1, "softmax": 0.1, "mlp": 0.1, "resnet18": 0.01, "lstm": 1.0}
"""The default local learning rate of each built-in model, with which it learns its built-in data."""
LOCAL_RATE = 0.01
"""The default local learning rate of any other model."""

FUNCTIONS = (
    "model", "data", "test", "loss", "metrics", "optimizer", "train", "x", "evaluate", "aggregator",
    "staleness_weight",
)  # fmt: skip
"""Settings that may be objects of Python. They can be passed again to a resumed run."""


class Learning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what is learned, how, and for how long."""

    # what is learned
    data: Any = "faces"
    """``faces``, ``digits``, ``breast-cancer``, a file or folder, ``module:factory``; in Python also
    ``{client: (x, y)}``, a list of such pairs, ``(x, y)`` or Datasets."""
    test: Any = None
    """Samples to evaluate on, ``(x, y)`` or a Dataset; by default a share of the data is held out."""
    model: Any = "cnn"
    """``cnn``, ``logistic``, ``softmax``, ``mlp``, ``resnet18``, ``lstm``, ``module:factory``, or an
    ``nn.Module``."""
    loss: Any = None
    """A function (outputs, targets), or ``module:name``; by default it follows from the targets."""
    metrics: Any = None
    """``{name: function (outputs, targets)}``, measured beside the loss."""
    train: Any = None
    """A function (x̂, task, samples) -> delta, in place of a model; with ``x`` and ``evaluate``."""
    x: Any = None
    """The first model, where ``train`` is given."""
    evaluate: Any = None
    """A function x -> {name: value}, where ``train`` is given."""
    classes: int | None = None
    """The number of classes, if it is more than the labels show."""
    vocabulary: int | None = None
    """Inputs are integers below this, if it is more than the inputs show."""
    partition: str = "natural"
    """How samples are dealt to clients: ``natural``, ``iid``, ``consecutive``, ``dirichlet:0.5``,
    ``shards:2``, ``celeba`` or ``skewed:0.5``."""
    clients: int | None = None
    """The number of clients; by default that of the data and the partition."""
    held_out: float = 0.2
    """The share of users (or samples) that is not trained on."""
    local_rate: float | None = None
    """Local learning rate, η_ℓ; by default that of the model, and 0.01 for your own."""
    batch_size: int = 32
    """Samples in a local step."""
    epochs: int = 1
    """Passes over the client's samples in a task."""
    steps: int | None = None
    """P: local steps; by default ``epochs`` passes over the client's data."""
    local_momentum: float = 0.0
    """Momentum of local SGD, from zero in every task."""
    weight_decay: float = 0.0
    """Adds this times the parameters to the gradient."""
    prox: float = 0.0
    """μ of FedProx: adds μ·(y − y_0) to the gradient."""
    optimizer: Any = None
    """A function (parameters) or (parameters, task) that makes a PyTorch optimizer for each task."""
    batch_statistics: bool = False
    """Allow BatchNorm: its statistics stay on the clients, and the evaluation uses those of the batch."""
    engine: str = "auto"
    """``plain``, ``compile``, ``kernel`` (for the cnn); ``auto`` is the kernel for the cnn, else plain."""
    device: str = "cpu"
    """``cpu``, ``cuda`` or ``mps``."""

    # how it is learned: fields of Job
    algorithm: str = "qafel"
    """``qafel``, ``fedbuff``, ``fedasync``, ``fedavg`` (synchronous rounds of K clients) or ``naive``."""
    client_quantizer: str | None = None
    """Q_c, for updates; by default that of the algorithm. ``qafel quantizers`` lists them."""
    server_quantizer: str | None = None
    """Q_s, for increments; by default that of the algorithm."""
    buffer_size: int | None = None
    """K: the number of updates in a server step; by default 10, and 1 for fedasync."""
    server_rate: float = 1.0
    """Server learning rate, η_g, on the mean of the buffer."""
    momentum: float | None = None
    """Server momentum, β; by default 0.3, and 0 beside a server optimizer."""
    lookahead: float | None = None
    """How far ahead of the model x increments aim, as a share of the updates' mean staleness; 0: at
    x. By default 0.25 for qafel from 4,096 coordinates on; otherwise, or with a server optimizer, 0."""
    server_optimizer: str | None = None
    """``adam:rate=0.01``, or ``adagrad``, ``yogi``, ``sgd``: in place of server_rate and momentum."""
    staleness_weight: str | Callable[[int], float] | None = None
    """w(τ): ``constant``, ``sqrt`` = 1/√(1 + τ), ``polynomial:a`` = (1 + τ)^−a, or a function."""
    max_staleness: int | None = None
    """Updates with a larger τ are rejected."""
    weighting: Literal["equal", "samples"] = "equal"
    """Whether all updates of a buffer weigh the same, or as many samples as their clients have."""
    max_samples: int = 1000
    """With ``weighting = "samples"``: no update weighs more than this many samples."""
    aggregator: Any = None
    """An ``Aggregator`` in place of the buffer."""
    downlink: Literal["broadcast", "catch-up"] = "broadcast"
    """Clients get every increment, or fetch what they missed when they start a task."""

    # how long, and how it is evaluated
    uploads: int = 10_000
    """Stop after this many updates."""
    target: float | str | None = None
    """Stop when the smoothed accuracy reaches this; or ``"NAME <= NUMBER"``, ``"NAME >= NUMBER"``."""
    byte_budget: int | None = None
    """Stop when this many bytes went up and down."""
    time_limit: float | None = None
    """Stop at this time: virtual in a simulation, in seconds in a federation."""
    evaluate_every: int = 250
    """Uploads between two evaluations."""
    held_out_samples: int = 1000
    """Evaluate on at most this many held-out samples."""
    smoothing: int = 3
    """Smoothed metrics are medians over this many evaluations."""
    seed: int = 0
    """The seed of everything that is random."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise unknown("algorithm", self.algorithm, ALGORITHMS)
        if not isinstance(self.model, str) and not callable(self.model):
            raise ConfigError(
                f"model must be a name, an nn.Module, or a function that makes one, got {self.model!r:.60}"
            )
        if not isinstance(self.metrics, Mapping | None):
            raise ConfigError(f"metrics must be {{name: function}}, got {type(self.metrics).__name__}")
        if (self.train is None) != (self.x is None):
            raise ConfigError("train needs x, the first model, and x needs train")
        if self.aggregator is not None and self.weighting != "equal":
            raise ConfigError("weighting has no effect beside an aggregator of your own; leave it out")
        for name in COUNTS:
            value = getattr(self, name, None)
            if value is not None and not 1 <= value < 1 << 40:
                raise ConfigError(f"{name} must be at least 1 and below 2⁴⁰, got {value}")
        for name in ("local_rate", "time_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {value}")
        parse_target(self.target)
        self.job(1)

    def job(self, size: int, layout: Layout | None = None) -> Job:
        """The job that server and clients agree on."""
        chosen = {name: getattr(self, name) for name in JOB if getattr(self, name) is not None}
        if self._weight_is_function:
            del chosen["staleness_weight"]
        return algorithm(self.algorithm, size=size, layout=layout, **chosen)

    @property
    def rate_or_default(self) -> float:
        """The local learning rate, by default that of the model."""
        if self.local_rate is not None:
            return self.local_rate
        return LOCAL_RATES.get(self.model, LOCAL_RATE) if isinstance(self.model, str) else LOCAL_RATE

    @property
    def _weight_is_function(self) -> bool:
        chosen = self.staleness_weight
        if isinstance(chosen, str):
            return ":" in chosen and not chosen.startswith("polynomial:")
        return chosen is not None

    @property
    def weight(self) -> Weight | None:
        """The staleness weight, where it is a function."""
        return self.function("staleness_weight") if self._weight_is_function else None

    def resolved(self, learner: Any, **values: Any) -> Self:
        """The same settings with every value that was left open: what the model and the data decide, and
        ``values`` of the driver.

        The buffer has no more places than there are clients. How many there are stays open where the seed
        decides it: runs that differ only in their seed have the same settings.
        """
        drawn = self.data is None or getattr(learner.population, "drawn", False)
        clients = self.clients if drawn else learner.clients
        known = {name: getattr(learner.population, name, 0) or None for name in ("classes", "vocabulary")}
        settings = msgspec.structs.replace(
            self,
            clients=clients,
            engine=learner.engine_name,
            local_rate=self.rate_or_default,
            **known,
            **values,
        )
        buffer_size = min(self.job(1).buffer_size, learner.clients)
        if self.buffer_size is None:
            settings = msgspec.structs.replace(settings, buffer_size=buffer_size)
        elif self.buffer_size > learner.clients:
            raise ConfigError(
                f"buffer_size (K) is {self.buffer_size}, larger than the population of {learner.clients} "
                "clients; lower it"
            )
        return settings.with_job(settings.job(learner.x.size, learner.layout))

    def with_job(self, job: Job) -> Self:
        """The same settings with the values of a job."""
        known = {name: getattr(job, name) for name in JOB}
        if self._weight_is_function:
            del known["staleness_weight"]
        return msgspec.structs.replace(self, **known)

    @property
    def extras(self) -> list[str]:
        """The optional dependencies that a run of these settings needs, in a folder or not."""
        from qafel.tasks.data import BUNDLED

        needed = ["torch"] if self.train is None else []
        bundled = isinstance(self.data, str) and self.data in BUNDLED
        return [*needed, "data"] if bundled else needed

    def population(self) -> "Population":
        """The clients and their data."""
        from qafel.tasks.data import population

        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out must be between 0 and 1, got {self.held_out}")
        if self.data is None and self.train is not None:
            from qafel.tasks.functions import NoSamples

            return NoSamples(self.clients or MAX_CLIENTS)

        clients = population(
            self.object("data"),
            test=self.object("test"),
            partition=self.partition,
            clients=self.clients,
            held_out=self.held_out if self.train is None else 0.0,  # evaluate has its own samples
            seed=self.seed,
        )
        for name in ("classes", "vocabulary"):
            has, least = getattr(clients, name, 0), getattr(self, name)
            if has and least is not None and has != least:
                setattr(clients, name, max(has, least))
        return clients

    def object(self, name: str) -> Any:
        """The value of a setting that may be an object; ConfigError if it is one that cannot be imported."""
        value = getattr(self, name)
        if isinstance(value, str) and value.startswith(PYTHON):
            raise not_importable(name, value)
        return value

    def function(self, name: str) -> Any:
        """The value of a setting that is a function, imported if it is named by ``module:name``."""
        from qafel.tasks.functions import imported

        return imported(getattr(self, name), name)

    def learner(self) -> "Learner | FunctionLearner":
        """What is learned, ready to train."""
        if self.train is not None:
            from qafel.tasks.functions import FunctionLearner

            evaluate = self.function("evaluate")
            if evaluate is None:
                raise ConfigError("train needs evaluate, a function x -> {name: value}")
            return FunctionLearner(self.population(), self.object("x"), self.function("train"), evaluate)
        from qafel.tasks.functions import imported
        from qafel.tasks.learner import Learner
        from qafel.tasks.local import LocalSgd

        sgd = LocalSgd(
            rate=self.rate_or_default,
            batch_size=self.batch_size,
            epochs=self.epochs,
            steps=self.steps,
            momentum=self.local_momentum,
            weight_decay=self.weight_decay,
            prox=self.prox,
            optimizer=self.function("optimizer"),
        )
        metrics = self.object("metrics") or {}
        return Learner(
            self.population(),
            self.object("model"),
            sgd,
            loss=self.function("loss"),
            metrics={name: imported(value, "metrics") for name, value in metrics.items()},
            engine=self.engine,
            device=self.device,
            batch_statistics=self.batch_statistics,
            held_out_samples=self.held_out_samples,
            seed=self.seed,
        )

    @property
    def functions(self) -> str:
        """A fingerprint of the settings that are objects of Python without a name; empty without any."""
        unnamed = [getattr(self, name) for name, value in self.values().items() if PYTHON in str(value)]
        return f"{fingerprint(repr(list(map(described_code, unnamed))).encode()):016x}" if unnamed else ""

    def to_toml(self) -> str:
        """The settings as a TOML file, without those that are None."""
        values = {name: value for name, value in self.values().items() if value is not None}
        values.setdefault("data", NO_DATA)
        return "".join(f"{name} = {to_toml(value)}\n" for name, value in values.items())

    def values(self) -> dict[str, Any]:
        """All settings by name; an object of Python is named by where it can be imported from."""
        return {name: named(getattr(self, name)) for name in self.__struct_fields__}


JOB = tuple(name for name in Job.__struct_fields__ if name in Learning.__struct_fields__)
"""The settings that are fields of Job, too."""
