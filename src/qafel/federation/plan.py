"""The plan of a federation (``JOB.toml``): what is learned and how, and which clients train when."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from qafel.config import Job
from qafel.errors import BrokerError, ConfigError, FormatError, FrameError
from qafel.federation.connection import Connection, retry
from qafel.federation.entries import Change
from qafel.federation.messages import Welcome
from qafel.federation.subjects import Subjects
from qafel.tasks.settings import Learning
from qafel.tasks.values import checked, read_file

CHANGEABLE = (
    "uploads",
    "target",
    "byte_budget",
    "time_limit",
    "max_norm",
    "concurrency",
    "rest_seconds",
    "lease_seconds",
)
"""The settings that an operator may change while a federation runs."""


class Plan(Learning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a federation does."""

    name: str = "qafel"
    """The name of the federation: part of its streams and subjects."""
    concurrency: int = 100
    """The largest number of clients that train at a time."""
    lease_seconds: float = 300.0
    """A lease older than this no longer counts towards ``concurrency``; its update is still accepted."""
    rest_seconds: float = 0.0
    """The pause of a client between two tasks."""
    max_norm: float = 1e6
    """Updates with a larger norm are rejected, and those above 30 times the median norm."""
    evaluate_on: Literal["server", "clients"] = "server"
    """The server evaluates x on its held-out samples, or clients evaluate x̂ on theirs."""
    checkpoint_seconds: float = 1.0
    """The time between two checkpoints; until then the broker keeps the log."""
    replicas: int = 1
    """Copies of everything in the broker; 3 in a cluster of three."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Subjects(self.name)
        for name in ("concurrency", "replicas"):
            if not 1 <= getattr(self, name) < 1 << 31:
                raise ConfigError(f"{name} must be from 1 to 2³¹ − 1, got {getattr(self, name)}")
        for name in ("lease_seconds", "rest_seconds", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if not 0 < self.max_norm < math.inf:
            raise ConfigError(f"max_norm must be positive and finite, got {self.max_norm}")
        for field, name in (("aggregator", "aggregator"), ("weight", "staleness_weight")):
            if getattr(self, field) is not None:
                raise ConfigError(f"a federation does not take a function as {name}; remove it from the plan")
        if self.algorithm == "fedavg":
            raise ConfigError("a federation is asynchronous, and fedavg is not; use fedbuff or qafel")


def read_plan(path: Path | None, changes: Iterable[str] = ()) -> Plan:
    """A plan from a TOML file and ``key=value`` changes."""
    return read_file(Plan, path, changes)


def change(plan: Plan, decision: Change) -> Plan:
    """The plan with changed settings; ConfigError if one cannot be changed, or has a wrong value."""
    for name in decision.values:
        if name not in CHANGEABLE:
            raise ConfigError(
                f"{name} cannot be changed while a federation runs; {', '.join(CHANGEABLE)} can"
            )
    known = {name: value for name, value in plan.values().items() if value is not None}
    return checked(Plan, {**known, **decision.values}, "the change")


async def read_welcome(connection: Connection, notice: Callable[[BrokerError], None]) -> Welcome:
    """The welcome of a federation; waits until its server has published it."""
    subjects = connection.subjects

    async def read() -> Welcome:
        try:
            message = await connection.last(subjects.keys, subjects.public("welcome"))
        except BrokerError as error:
            raise BrokerError(f"the federation {subjects.name!r} does not answer: {error}") from error
        if message is None:
            raise BrokerError(f"the federation {subjects.name!r} has not been started")
        try:
            return Welcome.from_bytes(message.data)
        except FormatError as error:
            raise ConfigError(f"the federation {subjects.name!r} runs another version: {error}") from error
        except FrameError as error:
            raise BrokerError(f"the welcome is damaged: {error}") from error

    return await retry(read, notice)


async def write_welcome(connection: Connection, job: Job, plan: Plan) -> None:
    """Publish the job and the plan; ConfigError if another job runs under this name."""
    subjects = connection.subjects
    welcome = Welcome(job.to_bytes(), plan.to_toml())
    stored = await connection.newest(subjects.keys, subjects.public("welcome"))
    if stored is not None:
        try:
            other = Welcome.from_bytes(stored.data) != welcome
        except FormatError as error:
            raise ConfigError(
                f"the federation {subjects.name!r} in the broker is of another version ({error}); choose "
                f"another name, or remove it with qafel federation delete {subjects.name}"
            ) from error
        except FrameError:
            stored, other = None, False  # it was damaged on its way into the broker
        if other:
            raise ConfigError(
                f"the broker runs another job under the name {subjects.name!r}; choose another name, "
                f"or remove it with qafel federation delete {subjects.name}"
            )
    if stored is None:
        await connection.publish(subjects.public("welcome"), welcome.to_bytes())
