"""Samples in arrays, and what a population of clients offers."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.lazy import Lazy
from qafel.tasks.data import arrays
from qafel.tasks.data.arrays import Arrays

Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
MAX_CLASSES = 1_000_000

kernels = Lazy("qafel.tasks.data.kernels")


class Population(Protocol):
    """Clients and their samples: inputs and targets, one row per sample (see ``arrays``).

    ``classes`` is 0 if the targets are not labels; labels are integers from 0 to classes − 1.
    """

    clients: int
    shape: Any
    classes: int

    def count(self, client: int) -> int:
        """The number of samples of a client."""

    def samples(self, client: int) -> tuple[Any, Any]:
        """(inputs, targets) of a client."""

    def held_out(self, max_samples: int) -> tuple[Any, Any]:
        """(inputs, targets) of at most ``max_samples`` samples that no client trains on."""


class Table:
    """Samples with targets; ConfigError if the arrays do not fit together or have impossible values.

    uint8 arrays of shape [n, height, width(, colours)] are images, whose pixels are normalised. Integers stay
    integers, and other numbers are float32. Targets that are integers are labels; with ``whole_numbers``,
    so is one whole number per sample of any type.
    """

    def __init__(
        self,
        x: Arrays,
        y: Arrays,
        users: npt.NDArray[Any] | None = None,
        held: npt.NDArray[np.bool_] | None = None,
        source: str = "the data",
        *,
        classes: int | None = None,
        vocabulary: int | None = None,
        whole_numbers: bool = True,
    ) -> None:
        arrays.check(x, f"the samples of {source}")
        arrays.check(y, f"the targets of {source}")
        if arrays.count(x) != arrays.count(y) or not arrays.count(x):
            raise ConfigError(
                f"{source} must have one target per sample, got {arrays.count(x)} samples and "
                f"{arrays.count(y)} targets"
            )
        if whole_numbers and not isinstance(x, dict) and x.ndim < 2:
            raise ConfigError(f"{source} must have a row of x per sample, got an array of shape {x.shape}")
        for name, column in (("users", users), ("held", held)):
            if column is not None and column.shape != (arrays.count(y),):
                raise ConfigError(
                    f"{name} of {source} must have one entry per sample ({arrays.count(y)}), got "
                    f"{column.shape}"
                )
        if any(part.dtype == np.uint8 and part.ndim > 4 for part in arrays.leaves(x)):
            raise ConfigError(f"the images of {source} must have 2 dimensions, or 3 with colours")
        self.x: Any = arrays.each(lambda part: np.require(_colours_last(part), requirements="C"), x)
        self.users, self.held, self.source = users, held, source
        self.y: Any = arrays.each(arrays.numbers, y)
        self.classes = 0
        if not isinstance(y, dict) and _are_labels(y, whole_numbers):
            self.y = check_labels(y, source, classes or MAX_CLASSES)
            self.classes = classes or max(2, int(self.y.max()) + 1)
        self.vocabulary = vocabulary or _vocabulary(x)
        """One more than the largest integer in the inputs; 0 if they are not integers."""
        self.shape: Any = arrays.shapes(self.rows(np.arange(1)))

    def __len__(self) -> int:
        return arrays.count(self.y)

    def rows(self, chosen: Rows) -> Any:
        """Inputs; pixels are mapped to numbers from −1 to 1, with the colours in front."""
        return arrays.each(lambda part: _rows(part, chosen), self.x)

    def targets(self, chosen: Rows) -> Any:
        """Targets."""
        return arrays.rows(self.y, chosen)


def _colours_last(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Images with the colours in front, as PyTorch has them, in the order of image files."""
    front = _is_images(x) and x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    return np.moveaxis(x, 1, -1) if front else x


def _is_images(x: npt.NDArray[Any]) -> bool:
    return x.dtype == np.uint8 and x.ndim >= 3


def _vocabulary(x: Arrays) -> int:
    integers = not isinstance(x, dict) and x.dtype.kind in "iu" and not _is_images(x)
    return int(x.max()) + 1 if integers else 0  # type: ignore[union-attr]


def _rows(x: npt.NDArray[Any], chosen: Rows) -> npt.NDArray[Any]:
    if not _is_images(x):
        return arrays.numbers(x[chosen])
    total, height, width, *colours = x.shape
    channels = colours[0] if colours else 1
    out = np.empty((len(chosen), channels * height * width), np.float32)
    kernels.normalise(x.reshape(total, height * width, channels), chosen, out)
    return out.reshape(-1, channels, height, width)


def _are_labels(y: npt.NDArray[Any], whole_numbers: bool) -> bool:
    if y.dtype.kind in "iu":
        return True
    return whole_numbers and y.ndim == 1 and bool((y == np.floor(y)).all())


def check_labels(y: npt.NDArray[Any], source: str, classes: int = MAX_CLASSES) -> Labels:
    """The labels as int64; ConfigError if one is not an integer from 0 to classes − 1."""
    bad = np.argwhere(~((y >= 0) & (y < classes) & (y == np.floor(y))))
    if bad.size:
        raise ConfigError(
            f"label {y[tuple(bad[0])]} of sample {bad[0][0]} in {source} is out of range; labels must be "
            f"integers from 0 to {classes - 1}"
        )
    return y.astype(np.int64)
