"""What a client trains: the server's plan, as far as the client's owner allows it.

The plan comes over the network. A client runs built-in models on built-in data by itself; a function
(``package.module:factory``) only if its owner allowed that name, and files only if its owner named them.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qafel.client import Task, Trainer
from qafel.config import Job
from qafel.errors import ConfigError
from qafel.federation.client import Evaluator
from qafel.federation.entries import Report
from qafel.federation.plan import Plan
from qafel.runs.tracker import sum_metrics
from qafel.tasks.settings import checked
from qafel.vectors import Vector

BUILT_IN = {
    "data": ("faces", "digits", "breast-cancer"),
    "model": ("cnn", "logistic", "softmax", "mlp", "resnet18"),
}
MAX_PLAN = 1 << 16
"""A plan of more bytes is refused."""


class Training(NamedTuple):
    """How a client trains and evaluates, and on how many samples."""

    train: Trainer
    evaluate: Evaluator | None
    samples: int


def parse_plan(text: str) -> Plan:
    """The server's plan; ConfigError in one sentence whatever it contains."""
    if len(text) > MAX_PLAN:
        raise ConfigError(f"the server's plan has {len(text)} characters; the limit is {MAX_PLAN}")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the server's plan cannot be read: {str(error)[:200] or 'it is nested too deeply'}"
        ) from None
    return checked(Plan, values, "the server's plan")


def check_allowed(plan: Plan, data: str | Path | None, allow: Sequence[str]) -> None:
    """Refuse a plan that would run code or read files that the client's owner did not allow."""
    for what, names in BUILT_IN.items():
        value = str(getattr(plan, what))
        if value in names or value in allow or (what == "data" and data is not None):
            continue
        if ":" in value:
            raise ConfigError(
                f"the server's plan wants to call {value!r} for its {what}, which this client does not "
                f"allow; if you trust it, add --allow {value}"
            )
        if what == "data":
            raise ConfigError(
                f"the server's plan trains on the file {value!r}; a client reads only what its owner names: "
                "use --data"
            )
        raise ConfigError(
            f"the server's plan has the unknown {what} {value!r}; this qafel has {', '.join(names)}"
        )


def plan_training(
    text: str, job: Job, client: int, data: str | Path | None = None, allow: Sequence[str] = ()
) -> Training:
    """The training of the server's plan, on ``data`` or on this client's share of the plan's data."""
    plan = parse_plan(text)
    check_allowed(plan, data, allow)
    if data is not None:
        changes = {"data": str(data), "partition": "iid", "clients": 1, "buffer_size": 1, "seed": client}
        plan = msgspec.structs.replace(plan, **changes)
    learner = plan.learner()
    if learner.x.size != job.size:
        raise ConfigError(
            f"the model has {learner.x.size} parameters on this data; the federation's has {job.size}"
        )
    share = 0 if data is not None else client
    if share >= learner.clients:
        raise ConfigError(
            f"client {client} has no share of the plan's data, which has {learner.clients}; use --data"
        )
    learner.prepare()
    samples = learner.samples(share)
    own = plan.evaluate_on == "clients"
    if own and data is None:
        samples, held = _split(samples, plan.held_out)
        learner.hold_out(*held)

    def train(x: Vector, task: Task) -> Vector:
        del x  # it is task.x
        return learner.delta(task, samples)

    def evaluate(x: Vector) -> Report:
        return Report(learner.held_out, sum_metrics(learner.evaluate(x, k) for k in range(learner.chunks)))

    return Training(train, evaluate if own else None, len(samples[1]))


def _split(samples: tuple[Vector, Any], share: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The samples that are trained on, and the share of them that is held out."""
    x, labels = samples
    held = min(len(labels) - 1, max(1, round(share * len(labels))))
    if held < 1:
        raise ConfigError(f"this client has {len(labels)} sample; it needs two to hold one out")
    return (x[:-held], labels[:-held]), (x[-held:], labels[-held:])
