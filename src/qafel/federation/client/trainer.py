"""What a client trains: the server's plan, as far as the client's owner allows it.

The plan comes over the network. A client runs built-in models on built-in data by itself; a function
(``package.module:name``) only if its owner allowed that name or passed one in its place, and files only if
its owner named them.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from qafel.client import Task, Trainer
from qafel.config import Job
from qafel.errors import ConfigError
from qafel.federation.client import Evaluator
from qafel.federation.entries import Report
from qafel.federation.plan import Plan
from qafel.runs.tracker import sum_metrics
from qafel.tasks.data import BUILT_IN as DATA
from qafel.tasks.data import arrays
from qafel.tasks.functions import as_delta, parameters_of
from qafel.tasks.settings import LOCAL_RATES
from qafel.tasks.values import PYTHON, checked
from qafel.vectors import Vector

BUILT_IN: dict[str, tuple[str, ...]] = {
    "data": DATA,
    "model": tuple(LOCAL_RATES),
    "loss": (),
    "optimizer": (),
    "train": (),
}
"""The settings that decide what a client runs, and the names that every client knows."""
OF_THE_SERVER: dict[str, Any] = {"test": None, "x": None, "evaluate": None, "metrics": None}
"""Settings that a client does not use."""
MAX_SIZES = {"classes": 1 << 16, "vocabulary": 1 << 20}
"""A plan cannot make a client build a larger model than these lead to."""
MAX_PLAN = 1 << 16
"""A plan of more bytes is refused."""


class Training(NamedTuple):
    """How a client trains and evaluates, and on how many samples."""

    train: Trainer
    evaluate: Evaluator | None
    samples: int


def parse_plan(text: str) -> Plan:
    """Parse the server's plan; ConfigError if it is too long, not TOML, or not a valid plan."""
    if len(text) > MAX_PLAN:
        raise ConfigError(f"the server's plan has {len(text)} characters; the limit is {MAX_PLAN}")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the server's plan cannot be read: {str(error)[:200] or 'it is nested too deeply'}"
        ) from None
    return checked(Plan, values, "the server's plan")


def check_allowed(plan: Plan, mine: Mapping[str, Any], allow: Sequence[str]) -> None:
    """Refuse a plan that would run code or read files that the client's owner did not allow."""
    allowed = [name for name in ([allow] if isinstance(allow, str) else allow) if ":" in name]
    wanted = {what: getattr(plan, what) for what in BUILT_IN if what not in mine}
    if "train" in mine:
        wanted = {}
    elif plan.evaluate_on == "clients" and "metrics" not in mine and isinstance(plan.metrics, Mapping):
        wanted |= {f"metrics.{name}": value for name, value in plan.metrics.items()}
    for what, limit in MAX_SIZES.items():
        if (getattr(plan, what) or 0) > limit:
            raise ConfigError(f"the server's plan has {getattr(plan, what)} {what}; the limit is {limit}")
    for what, value in wanted.items():
        if value is None or value in BUILT_IN.get(what, ()) or value in allowed:
            continue
        if not isinstance(value, str):
            raise ConfigError(f"the server's plan has {what} = {value!r:.60}; it must be a name")
        if value.startswith(PYTHON):
            raise ConfigError(
                f"the server's plan has {what} = {value}, which only the server's program knows; pass "
                f"join(…, {what.partition('.')[0]}=…)"
            )
        if ":" in value:
            raise ConfigError(
                f"the server's plan wants to call {value!r} for its {what}, which this client does not "
                f"allow; if you trust it, allow {value!r}"
            )
        if what == "data":
            raise ConfigError(
                f"the server's plan trains on the file {value!r}; a client reads only data that its owner "
                "names: pass it"
            )
        raise ConfigError(
            f"the server's plan has the unknown {what} {value!r}; this qafel has "
            f"{', '.join(BUILT_IN.get(what, ())) or 'none'}"
        )


def plan_training(
    text: str, job: Job, client: int, mine: Mapping[str, Any], allow: Sequence[str] = ()
) -> Training:
    """The training of the server's plan, with what is ``mine`` (data, model, loss, …) in place of the plan's.

    Without data of its own, a client has its share of the plan's data.
    """
    plan = parse_plan(text)
    check_allowed(plan, mine, allow)
    own = plan.evaluate_on == "clients"
    changes = (OF_THE_SERVER if not own else OF_THE_SERVER | {"metrics": plan.metrics}) | dict(mine)
    data, share = mine.get("data"), client
    if plan.train is not None:  # the server's own: the client needs none of them
        changes |= {"x": np.zeros(job.size), "evaluate": lambda x: {"size": float(x.size)}}
    if data is None and plan.data is None:
        raise ConfigError("the server's plan has no data, so that clients bring their own: join(…, data=…)")
    if data is not None:
        share = 0
        changes |= {"clients": 1, "buffer_size": 1}
        if isinstance(data, str | Path):
            changes |= {"data": str(data), "partition": "iid"}
        else:
            changes |= {"data": [data], "partition": "natural", "test": None if own else data}
    learner = msgspec.structs.replace(plan, **changes, target=None).learner()
    if learner.x.size != job.size:
        raise ConfigError(
            f"the model has {learner.x.size} parameters on this data; the federation's has {job.size}"
        )
    if share >= learner.clients:
        raise ConfigError(
            f"client {client} has no share of the plan's data, which has {learner.clients}; pass data of "
            "its own"
        )
    learner.prepare()
    samples = learner.samples(share)
    if own and data is None:
        samples, held = _split(samples, plan.held_out)
        learner.hold_out(*held)  # type: ignore[union-attr]

    def train(x: Vector, task: Task) -> Vector:
        del x  # it is task.x
        return learner.delta(task, samples)

    def evaluate(x: Vector) -> Report:
        return Report(learner.held_out, sum_metrics(learner.evaluate(x, k) for k in range(learner.chunks)))

    return Training(train, evaluate if own else None, arrays.count(samples[1]))


def own_training(
    train: Callable[..., Any], evaluate: Callable[[Vector], Any] | None, samples: int, data: Any
) -> Training:
    """The training of a function ``train(x̂, task, samples) -> delta``, and ``evaluate(x̂)`` beside it.

    The last arguments may be left out. ``evaluate`` returns a Report, or the means by name.
    """
    pair = None if data is None else arrays.pair(data, "the data")
    takes = parameters_of(train, 3)
    samples = samples or (0 if pair is None else arrays.count(pair[1]))

    def delta(x: Vector, task: Task) -> Vector:
        return as_delta(train(*(x.copy(), task, pair)[:takes]), x.size)

    def report(x: Vector) -> Report:
        values = evaluate(x) if evaluate is not None else {}
        if isinstance(values, Report):
            return values
        count = max(1, samples)
        return Report(count, {name: float(value) * count for name, value in values.items()})

    return Training(delta, report if evaluate is not None else None, samples)


def _split(samples: tuple[Any, Any], share: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The samples that are trained on, and the share of them that is held out."""
    x, targets = samples
    count = arrays.count(targets)
    held = min(count - 1, max(1, round(share * count)))
    if held < 1:
        raise ConfigError(f"this client has {count} sample; it needs two to hold one out")
    parts = slice(count - held), slice(count - held, None)
    first, second = ((arrays.rows(x, part), arrays.rows(targets, part)) for part in parts)
    return first, second
