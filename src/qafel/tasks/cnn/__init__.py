"""The paper's CNN with hand-written kernels: PyTorch's gradient, several times as fast on one core.

No compiler is needed. The gradient with respect to the biases of the convolutions is exactly zero, because
the group norm after a convolution removes every constant; PyTorch returns rounding noise there.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from qafel import vectors
from qafel.lazy import Lazy
from qafel.streams import generator
from qafel.vectors import Vector

CHANNELS = 32

_kernels = Lazy("qafel.tasks.cnn.kernels")


def shapes(colours: int, size: int, classes: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the CNN's parameters, in order."""
    result: dict[str, tuple[int, ...]] = {}
    for k, channels in enumerate((colours, *(CHANNELS,) * 3)):
        result[f"conv{k}.weight"] = (CHANNELS, channels, 3, 3)
        result[f"conv{k}.bias"] = (CHANNELS,)
    result |= {"norm.weight": (CHANNELS,), "norm.bias": (CHANNELS,)}
    features = CHANNELS * side(size) ** 2
    return result | {"linear.weight": (classes, features), "linear.bias": (classes,)}


def side(size: int) -> int:
    """The side of the last layer's output: each layer adds two, then halves."""
    for _ in range(4):
        size = (size + 2) // 2
    return size


LAYOUT = vectors.Layout.of(shapes(3, 32, 2))
"""The layout of the paper's CNN for 32 × 32 colour images: 29,282 parameters."""


class Cnn:
    """The engine ``kernel``: the CNN for images of one size, with its work memory.

    An object must not be shared between threads.
    """

    name = "kernel"

    def __init__(self, colours: int = 3, size: int = 32, classes: int = 2, dropout: float = 0.1) -> None:
        self.layout = vectors.Layout.of(shapes(colours, size, classes))
        self.classes, self.side, self.dropout = classes, side(size), dropout
        self.features = CHANNELS * self.side**2
        channels, sizes = (colours, *(CHANNELS,) * 3), [size]
        while len(sizes) < 5:
            sizes.append((sizes[-1] + 2) // 2)
        pooled = [(side, side, CHANNELS) for side in sizes[1:]]
        self._channels = channels
        self._memory: tuple[Any, ...] = (
            tuple(_zeros(h + 4, h + 4, c) for h, c in zip(sizes, channels, strict=False)),
            tuple(_zeros(h + 2, h + 2, CHANNELS) for h in sizes[:4]),
            tuple(_zeros(4, CHANNELS) for _ in range(4)),
            tuple(_zeros(*shape) for shape in pooled),
            tuple(np.zeros(shape, np.int32) for shape in pooled),
            _zeros(*pooled[3]),
            tuple(_zeros(*shape) for shape in pooled),
            *(_zeros((size + 2) * CHANNELS) for _ in range(2)),
            *(_zeros(CHANNELS) for _ in range(3)),
        )

    def gradient(
        self, y: Vector, x: Vector, labels: npt.NDArray[np.int64], seed: int
    ) -> tuple[Vector, float]:
        """The gradient of the mean cross-entropy at ``y``, with dropout from ``seed``, and the loss."""
        keep = np.ones((len(x), self.features), np.float32)
        if self.dropout:
            random = generator(seed, "dropout").random(keep.shape, dtype=np.float32)
            kept = random >= np.float32(self.dropout)
            np.divide(kept, np.float32(1 - self.dropout), out=keep, dtype=np.float32)
        weights = tuple(_zeros(3, 3 * c, CHANNELS) for c in self._channels)
        gamma, beta = _zeros(CHANNELS), _zeros(CHANNELS)
        last, last_bias = _zeros(self.classes, self.features), _zeros(self.classes)
        images, grads = np.ascontiguousarray(x, np.float32), (weights, gamma, beta, last, last_bias)
        loss = _kernels.gradient(images, labels, keep, self._model(y), self._memory, grads)
        parts: list[Vector] = []
        for c, d_weights in zip(self._channels, weights, strict=True):
            parts += [d_weights.reshape(3, 3, c, CHANNELS).transpose(3, 2, 0, 1).ravel(), _zeros(CHANNELS)]
        spread = last.reshape(self.classes, self.side, self.side, CHANNELS).transpose(0, 3, 1, 2)
        return np.concatenate([*parts, gamma, beta, spread.ravel(), last_bias]), float(loss)

    def outputs(self, y: Vector, x: Vector) -> Vector:
        """The scores of each image, one per class."""
        out = _zeros(len(x), self.classes)
        _kernels.scores(np.ascontiguousarray(x, np.float32), self._model(y), self._memory, out)
        return out

    def _model(self, y: Vector) -> tuple[Any, ...]:
        """The parameters in the memory order of the kernels."""
        tensors = self.layout.unflatten(y)
        weights = [tensors[f"conv{k}.weight"] for k in range(4)]
        straight = [w.transpose(2, 3, 1, 0).reshape(3, -1, CHANNELS) for w in weights]
        flipped = [w[:, :, ::-1, ::-1].transpose(2, 3, 0, 1).reshape(3, 3 * CHANNELS, -1) for w in weights]
        last = tensors["linear.weight"].reshape(self.classes, CHANNELS, self.side, self.side)
        return (
            tuple(map(np.ascontiguousarray, straight)),
            tuple(map(np.ascontiguousarray, flipped)),
            tuple(np.ascontiguousarray(tensors[f"conv{k}.bias"]) for k in range(4)),
            np.ascontiguousarray(tensors["norm.weight"]),
            np.ascontiguousarray(tensors["norm.bias"]),
            np.ascontiguousarray(last.transpose(0, 2, 3, 1)).reshape(self.classes, -1),
            np.ascontiguousarray(tensors["linear.bias"]),
        )


def _zeros(*shape: int) -> Vector:
    return np.zeros(shape, np.float32)
