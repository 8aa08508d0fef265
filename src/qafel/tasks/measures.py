"""Losses and metrics: defaults that follow from the targets, and functions of your own.

A loss or a metric is a function (outputs, targets) -> one number per sample, or the mean of the batch.

    targets                outputs                          default loss              default metric
    labels [n]             [n, 1]                           logistic                  accuracy
    labels [n]             [n, classes]                     cross-entropy             accuracy
    labels [n, length]     [n, length, classes]             cross-entropy             accuracy
    labels [n, h, w, …]    [n, classes, h, w, …]            cross-entropy             accuracy
    real numbers           the same shape                   mean squared error

Where the targets are [n] and the outputs [n, 1], your losses and metrics get outputs [n]: PyTorch's functions
would otherwise compare every output with every target.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.tasks.data import arrays
from qafel.tasks.models import Tensor, functional, torch

Function = Callable[[Any, Any], Any]


class Metric(msgspec.Struct, frozen=True):
    """A metric with options; see ``metric``."""

    function: Function
    whole: bool = False

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """The metric of these outputs."""
        return self.function(outputs, targets)


def metric(function: Function, *, whole: bool = False) -> Metric:
    """A metric; with ``whole`` it sees the outputs of all held-out samples at once (AUC, F1)."""
    return Metric(function, whole)


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss that follows from the shapes; see the module."""
    if targets.is_floating_point():
        return functional.mse_loss(fitted(outputs, targets), targets)
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype))
    if outputs.ndim == 3:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    return functional.cross_entropy(outputs, targets)


def label_sums(outputs: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Accuracy and loss, each summed over the samples; a sequence or an image has the mean of its labels."""
    scores = outputs.astype(np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    if scores.ndim > 3:
        scores = np.moveaxis(scores, 1, -1)
    per_sample = max(1, labels[:1].size)
    scores, labels = scores.reshape(-1, scores.shape[-1]), labels.reshape(-1)
    top = scores.max(1)
    likelihood = scores[np.arange(len(labels)), labels] - top
    losses = np.log(np.exp(scores - top[:, None]).sum(1)) - likelihood
    right = float((scores.argmax(1) == labels).sum())
    return {"accuracy": right / per_sample, "loss": float(losses.sum()) / per_sample}


class Measures:
    """The loss that is trained with, and what is measured on the held-out samples."""

    def __init__(self, loss: Function | None, metrics: Mapping[str, Function], *, classes: int) -> None:
        self.custom, self._classes = loss, classes
        self._metrics = dict(metrics)
        self.whole = any(isinstance(one, Metric) and one.whole for one in metrics.values())
        """Whether a metric needs all outputs at once."""
        for name, function in self._metrics.items():
            if not callable(function):
                raise ConfigError(
                    f"the metric {name!r} must be a function (outputs, targets), got {function!r:.60}"
                )

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The mean loss of a batch."""
        if self.custom is None:
            return default_loss(outputs, targets)
        value = self.custom(fitted(outputs, targets), targets)
        return value.mean() if value.ndim else value  # type: ignore[no-any-return]

    def sums(self, outputs: Any, targets: Any) -> dict[str, float]:
        """Every metric, summed over the samples; the loss comes last."""
        count = arrays.count(targets)
        if self._classes and self.custom is None:
            sums = label_sums(np.asarray(outputs), targets)
        elif self._classes and _has_scores(outputs, targets, self._classes):
            sums = label_sums(np.asarray(outputs), targets)
            del sums["loss"]
        else:
            sums = {}
        if self._metrics or "loss" not in sums:
            tensors = torch.as_tensor(outputs) if isinstance(outputs, np.ndarray) else outputs
            wanted = arrays.each(torch.from_numpy, targets)
            for name, function in self._metrics.items():
                sums[name] = _sum(name, function(fitted(tensors, wanted), wanted), count)
            if "loss" not in sums:
                loss = self.custom(fitted(tensors, wanted), wanted) if self.custom else None
                sums["loss"] = _sum("loss", default_loss(tensors, wanted) if loss is None else loss, count)
        return {name: value for name, value in sums.items() if name != "loss"} | {"loss": sums["loss"]}


def fitted(outputs: Any, targets: Any) -> Any:
    """The outputs, without a last dimension of 1 that the targets do not have."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return outputs
    return outputs.squeeze(-1) if outputs.shape == (*targets.shape, 1) else outputs


def _has_scores(outputs: Any, targets: npt.NDArray[Any], classes: int) -> bool:
    """Whether outputs are one score per class for every label; or one for every label of two classes."""
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != targets.ndim + 1:
        return False
    width = shape[-1] if len(shape) <= 3 else shape[1]
    places = tuple(shape[:-1] if len(shape) <= 3 else (shape[0], *shape[2:]))
    return places == targets.shape and (width >= classes or (width, classes, len(shape)) == (1, 2, 2))


def _sum(name: str, value: Any, count: int) -> float:
    """The sum over the samples of one number per sample, or of their mean."""
    numbers = np.asarray(arrays.on_cpu(value), np.float64)
    if numbers.shape not in ((), (count,)):
        raise ConfigError(
            f"the metric {name!r} must return one number per sample ({count}) or their mean, got an array of "
            f"shape {numbers.shape}"
        )
    return float(numbers.sum()) if numbers.shape else float(numbers) * count


def check_outputs(outputs: Any, targets: Any, classes: int) -> None:
    """Raise ConfigError if there is no default loss for such outputs and targets."""
    shape = tuple(getattr(outputs, "shape", ()))
    if not shape or isinstance(targets, dict):
        raise ConfigError("outputs or targets in a dictionary have no default loss; pass loss=")
    if not classes:
        if shape not in (targets.shape, (*targets.shape, 1)):
            raise ConfigError(
                f"targets of shape {targets.shape[1:]} need outputs of the same shape, got {shape[1:]}; "
                "change the model, or pass loss="
            )
        return
    if not _has_scores(outputs, targets, classes):
        raise ConfigError(
            f"the model must have one output per class ({classes}), or one output for two classes, got "
            f"outputs of shape {shape[1:]} for labels of shape {targets.shape[1:]}; change the model, or "
            "pass loss="
        )
