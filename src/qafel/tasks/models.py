"""Models by name, as ``nn.Module``s; or pass your own module, a factory, or ``package.module:factory``.

A factory takes none, one or both of (input shape, number of classes). Only trained parameters travel: those
with ``requires_grad``. Buffers do not, so BatchNorm is refused; ``group_norm`` converts it.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qafel.errors import ConfigError, MissingExtraError, unknown
from qafel.streams import derive
from qafel.tasks import cnn
from qafel.tasks.functions import call_factory, import_function
from qafel.vectors import Layout, Vector

try:
    import torch as torch  # every other module takes PyTorch from here
    from torch import Tensor as Tensor
    from torch import nn as nn
    from torch.nn import functional as functional
except ImportError as error:
    raise MissingExtraError("training models", "torch") from error

Shape = tuple[int, ...]


class Samples(NamedTuple):
    """What a model is made for."""

    shape: Any
    """The shape of an input, or the shapes by name."""
    classes: int = 0
    """0: the targets are not labels."""
    vocabulary: int = 0
    """Inputs are integers below this; 0: they are not integers."""
    target_shape: Any = ()


class Cnn(nn.Module):
    """The paper's CNN: four layers of convolution, a shared group norm, ReLU and pooling; dropout; linear."""

    def __init__(self, colours: int = 3, size: int = 32, classes: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.shape, self.classes, self.dropout = (colours, size, size), classes, dropout
        self.conv0 = nn.Conv2d(colours, cnn.CHANNELS, 3, padding=2)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv2d(cnn.CHANNELS, cnn.CHANNELS, 3, padding=2) for _ in range(3)
        )
        self.norm = nn.GroupNorm(cnn.CHANNELS, cnn.CHANNELS)
        self.linear = nn.Linear(cnn.CHANNELS * cnn.side(size) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores; the channel of a gray image is used for every colour."""
        if x.shape[1] != self.shape[0]:
            x = x.expand(-1, self.shape[0], -1, -1)
        for conv in (self.conv0, self.conv1, self.conv2, self.conv3):
            x = functional.max_pool2d(functional.relu(self.norm(conv(x))), 2)
        scores: Tensor = self.linear(functional.dropout(x.flatten(1), self.dropout, self.training))
        return scores


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, after)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.short = nn.Sequential(shortcut, nn.GroupNorm(32, after))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


class Lstm(nn.Module):
    """An embedding, one LSTM layer of 128 and a linear layer: scores after every input, or after the last."""

    def __init__(self, vocabulary: int, classes: int, *, every: bool) -> None:
        super().__init__()
        self.every = every
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 128, batch_first=True)
        self.linear = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.linear(states if self.every else states[:, -1])
        return scores


def _lstm(samples: Samples) -> nn.Module:
    if not samples.vocabulary or not samples.classes or len(samples.shape) != 1:
        raise ConfigError(
            f"the model lstm takes sequences of integers with labels, got samples of shape {samples.shape}"
        )
    return Lstm(samples.vocabulary, samples.classes, every=samples.target_shape == samples.shape)


def _cnn(samples: Samples) -> nn.Module:
    shape, classes = _labelled(samples)
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(f"the model cnn takes square images, got samples of shape {shape}")
    return Cnn(max(3, shape[0]), shape[1], classes)


def _resnet18(samples: Samples) -> nn.Module:
    """ResNet-18 for small images (a 3×3 stem), with group norm."""
    shape, classes = _labelled(samples)
    if len(shape) != 3:
        raise ConfigError(f"the model resnet18 takes images, got samples of shape {shape}")
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [_Block(widths[k], widths[k + 1], 2 if k in (2, 4, 6) else 1) for k in range(8)]
    stem = [nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _logistic(samples: Samples) -> nn.Module:
    shape, classes = _labelled(samples)
    if classes != 2:
        raise ConfigError(f"the model logistic needs 2 classes, got {classes}; use softmax")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1))


def _softmax(samples: Samples) -> nn.Module:
    shape, classes = _labelled(samples)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(samples: Samples) -> nn.Module:
    """Two hidden layers; one output for every class, or for every number of a target."""
    shape, outputs = _flat_input(samples), samples.classes or math.prod(samples.target_shape)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, outputs),
    )


def _flat_input(samples: Samples) -> Shape:
    if isinstance(samples.shape, dict) or isinstance(samples.target_shape, dict):
        raise ConfigError("built-in models take one array of inputs and one of targets; pass your own model")
    return tuple(samples.shape)


def _labelled(samples: Samples) -> tuple[Shape, int]:
    if not samples.classes or samples.target_shape != ():
        raise ConfigError("this model takes samples with one label each; use mlp, lstm or your own model")
    return _flat_input(samples), samples.classes


MODELS: dict[str, Callable[[Samples], nn.Module]] = {
    "cnn": _cnn,
    "logistic": _logistic,
    "softmax": _softmax,
    "mlp": _mlp,
    "resnet18": _resnet18,
    "lstm": _lstm,
}
REAL = ("cnn", "logistic", "softmax", "mlp", "resnet18")
"""The built-in models whose inputs are real numbers; integers are converted for them."""


def model(chosen: Any, samples: Samples, seed: int, *, batch_statistics: bool = False) -> nn.Module:
    """The chosen model for such samples: a copy of a module, or a new one initialised from ``seed``.

    Raises ConfigError if it is unknown, not an ``nn.Module``, or cannot be trained without sending buffers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        if isinstance(chosen, nn.Module):
            module: Any = copy.deepcopy(chosen)
        elif isinstance(chosen, str) and ":" not in chosen:
            if chosen not in MODELS:
                raise unknown("model", chosen, (*MODELS, "package.module:factory"))
            module = MODELS[chosen](samples)
        else:
            factory = import_function(chosen, "model")
            module = call_factory(factory, "model", samples.shape, samples.classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model factory must return an nn.Module, got {type(module).__name__}")
    running = next(filter(has_statistics, module.modules()), None)
    if running is not None and not batch_statistics:
        raise ConfigError(
            f"the model has running statistics ({type(running).__name__}), which are not sent; convert it "
            "with qafel.group_norm(model), or keep them on the clients with batch_statistics = true"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("the model has no parameters to train")
    return module.float()


def has_statistics(part: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its inputs, as BatchNorm does."""
    return bool(getattr(part, "track_running_stats", False))


def group_norm(model: nn.Module) -> nn.Module:
    """A copy of a model with GroupNorm in place of BatchNorm, whose running statistics would not be sent.

    The groups are as many as opacus takes: the greatest common divisor of 32 and the channels; one for
    BatchNorm1d, whose inputs may have a single position.
    """
    holder = nn.Sequential(copy.deepcopy(model))
    _convert(holder, {})
    return holder[0]


def _convert(parent: nn.Module, converted: dict[nn.Module, nn.Module]) -> None:
    for name, child in parent._modules.items():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            groups = 1 if isinstance(child, nn.BatchNorm1d) else math.gcd(32, child.num_features)
            new = nn.GroupNorm(groups, child.num_features, child.eps, child.affine)
            setattr(parent, name, converted.setdefault(child, new))
        elif isinstance(child, nn.modules.instancenorm._InstanceNorm) and has_statistics(child):
            child.track_running_stats = False
            child.running_mean = child.running_var = child.num_batches_tracked = None
        elif child is not None:
            _convert(child, converted)


def layout(module: nn.Module) -> Layout:
    """The layout of the trained parameters in the flat vector."""
    return Layout.of({name: tuple(p.shape) for name, p in trained(module)})


def flat(module: nn.Module) -> Vector:
    """The trained parameters as one vector."""
    return np.concatenate([p.detach().cpu().numpy().ravel() for _, p in trained(module)])


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, by name, in order."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def load_parameters(module: nn.Module, parameters: Mapping[str, Vector]) -> nn.Module:
    """Copy parameters into the trained parameters of a module; ConfigError if names or shapes differ."""
    mine = dict(trained(module))
    for name in sorted({*mine, *parameters}):
        if name not in parameters:
            raise ConfigError(f"the result has no parameter {name!r}, which the module trains")
        if name not in mine:
            raise ConfigError(f"the module has no parameter {name!r} to train, which the result has")
        if tuple(mine[name].shape) != parameters[name].shape:
            raise ConfigError(
                f"the parameter {name!r} has the shape {parameters[name].shape} in the result, and "
                f"{tuple(mine[name].shape)} in the module"
            )
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(torch.from_numpy(np.array(parameters[name])))
    return module
