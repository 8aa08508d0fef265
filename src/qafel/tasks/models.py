"""Models by name, as ``nn.Module``s; for your own model pass ``package.module:factory`` or the factory.

A factory takes none, one or both of (input shape, number of classes). A model with one output is trained with
the logistic loss, every other model with the cross-entropy of its outputs.
"""

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qafel.errors import ConfigError, MissingExtraError
from qafel.streams import derive
from qafel.tasks import cnn
from qafel.vectors import Layout, Vector

try:
    import torch as torch  # every other module takes PyTorch from here
    from torch import Tensor as Tensor
    from torch import nn as nn
    from torch.nn import functional as functional
except ImportError as error:
    raise MissingExtraError("training models", "torch") from error

Shape = tuple[int, ...]


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


def _cnn(shape: Shape, classes: int) -> nn.Module:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(f"the model cnn takes square images, got samples of shape {shape}")
    return Cnn(max(3, shape[0]), shape[1], classes)


def _resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 for small images (a 3×3 stem), with group norm."""
    if len(shape) != 3:
        raise ConfigError(f"the model resnet18 takes images, got samples of shape {shape}")
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [_Block(widths[k], widths[k + 1], 2 if k in (2, 4, 6) else 1) for k in range(8)]
    stem = [nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _logistic(shape: Shape, classes: int) -> nn.Module:
    if classes != 2:
        raise ConfigError(f"the model logistic needs 2 classes, got {classes}; use softmax")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1))


def _softmax(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn": _cnn,
    "logistic": _logistic,
    "softmax": _softmax,
    "mlp": _mlp,
    "resnet18": _resnet18,
}


def import_factory(name: str, what: str) -> Callable[..., Any]:
    """Import the function ``package.module:name``; the working directory is searched, too."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module can raise anything
        raise ConfigError(
            f"the {what} {name!r} cannot be imported ({error}); write it as package.module:factory"
        ) from error
    finally:
        sys.path.remove(here)
    if not callable(factory):
        raise ConfigError(f"the {what} {name!r} is not a function")
    return factory  # type: ignore[no-any-return]


def call_factory(factory: Callable[..., Any], what: str, *arguments: Any) -> Any:
    """Call a user's factory with the first arguments, as many as it takes."""
    try:
        parameters = inspect.signature(factory).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_all = any(p.kind == p.VAR_POSITIONAL for p in parameters)
        return factory(*(arguments if takes_all else arguments[: len(positional)]))
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise ConfigError(f"the {what} factory failed: {type(error).__name__}: {message}") from error


def model(name: str | Callable[..., Any], shape: Shape, classes: int, seed: int) -> nn.Module:
    """The model called ``name`` for samples of this shape, initialised from ``seed``.

    Raises ConfigError if it is unknown, not an ``nn.Module``, or cannot be trained without sending buffers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        if isinstance(name, str) and ":" not in name:
            if name not in MODELS:
                raise ConfigError(
                    f"unknown model {name!r}; known are {', '.join(MODELS)}, or package.module:factory"
                )
            module: Any = MODELS[name](shape, classes)
        else:
            factory = import_factory(name, "model") if isinstance(name, str) else name
            module = call_factory(factory, "model", shape, classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model factory must return an nn.Module, got {type(module).__name__}")
    for part in module.modules():
        if getattr(part, "track_running_stats", False):
            raise ConfigError(
                f"the model has running statistics ({type(part).__name__}), which are not sent; use GroupNorm"
            )
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("the model has no parameters to train")
    return module.float()


def layout(module: nn.Module) -> Layout:
    """The layout of the trained parameters in the flat vector."""
    return Layout.of({name: tuple(p.shape) for name, p in trained(module)})


def flat(module: nn.Module) -> Vector:
    """The trained parameters as one vector."""
    return np.concatenate([p.detach().cpu().numpy().ravel() for _, p in trained(module)])


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, by name, in order."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]
