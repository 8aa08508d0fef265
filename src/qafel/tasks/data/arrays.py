"""Samples as arrays: inputs and targets are an array, or a dictionary of arrays, with one row per sample.

Floating-point numbers become float32, integers int64 and truth values float32. Tensors and lists become
arrays, and a ``torch.utils.data.Dataset`` becomes the arrays of all its samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError

Array = npt.NDArray[Any]
Arrays = Array | dict[str, Array]


def each(function: Callable[[Array], Any], data: Arrays) -> Any:
    """Apply a function to an array, or to every array of a dictionary."""
    return (
        {name: function(array) for name, array in data.items()} if isinstance(data, dict) else function(data)
    )


def leaves(data: Arrays) -> Iterator[Array]:
    """The arrays."""
    yield from data.values() if isinstance(data, dict) else (data,)


def rows(data: Arrays, index: Any) -> Any:
    """Some rows."""
    return each(lambda array: array[index], data)


def count(data: Arrays) -> int:
    """The number of rows."""
    return len(next(leaves(data)))


def shapes(data: Arrays) -> Any:
    """The shape of a row, or the shapes by name."""
    return each(lambda array: array.shape[1:], data)


def numbers(array: Array) -> Array:
    """float32 or int64."""
    return np.ascontiguousarray(array, np.int64 if array.dtype.kind in "iu" else np.float32)


def check(data: Arrays, what: str) -> None:
    """Raise ConfigError unless the arrays hold finite numbers and have equally many rows."""
    for array in leaves(data):
        if array.ndim < 1 or array.dtype.kind not in "buif":
            raise ConfigError(
                f"{what} must be numbers, one row per sample, got {array.dtype} of {array.shape}"
            )
        if len(array) != count(data):
            raise ConfigError(f"the arrays of {what} must have equally many rows, got {_lengths(data)}")
        if array.dtype.kind == "f":
            for k in range(0, len(array), 4096):
                finite = np.isfinite(array[k : k + 4096]).reshape(len(array[k : k + 4096]), -1).all(1)
                if not finite.all():
                    raise ConfigError(
                        f"sample {k + int(finite.argmin())} of {what} has a number that is not finite"
                    )


def _lengths(data: Arrays) -> str:
    return ", ".join(str(len(array)) for array in leaves(data))


def as_arrays(value: Any, what: str) -> Arrays:
    """An array, tensor or list as an array; a mapping of them as a dictionary."""
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"{what} is a dictionary without arrays")
        return {str(name): _array(part, f"{what}[{name!r}]") for name, part in value.items()}
    return _array(value, what)


def on_cpu(value: Any) -> Any:
    """A tensor without its gradient, where numpy can read it; anything else as it is."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def _array(value: Any, what: str) -> Array:
    try:
        array = np.asarray(on_cpu(value))
    except ValueError as error:  # rows of different lengths
        raise ConfigError(f"{what} has samples of different shapes; pad them to one shape") from error
    if array.dtype.kind not in "buif" or array.ndim < 1:
        raise ConfigError(
            f"{what} must be an array of numbers, one row per sample, got {type(value).__name__}"
        )
    return array


def is_dataset(value: Any) -> bool:
    """Whether a value is a torch Dataset, or anything else with a length and samples by number."""
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, str | bytes | Mapping | Sequence | np.ndarray)
        and not hasattr(value, "detach")
    )


def pair(value: Any, what: str) -> tuple[Arrays, Arrays]:
    """(inputs, targets) of a pair of arrays, or of a Dataset."""
    if is_dataset(value):
        return _from_dataset(value, what)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigError(f"{what} must be a pair (inputs, targets) or a Dataset, got {type(value).__name__}")
    x, y = as_arrays(value[0], f"the inputs of {what}"), as_arrays(value[1], f"the targets of {what}")
    if count(x) != count(y):
        raise ConfigError(
            f"{what} must have one target per sample, got {count(x)} inputs and {count(y)} targets"
        )
    return x, y


def _from_dataset(dataset: Any, what: str) -> tuple[Arrays, Arrays]:
    samples = [dataset[k] for k in range(len(dataset))]
    if not samples or not all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in samples):
        raise ConfigError(
            f"{what} must have samples (input, target), got {len(samples)} samples of another kind"
        )
    return _stack([x for x, _ in samples], f"the inputs of {what}"), _stack(
        [y for _, y in samples], f"the targets of {what}"
    )


def _stack(samples: list[Any], what: str) -> Arrays:
    if isinstance(samples[0], Mapping):
        return {str(name): _stack_arrays([one[name] for one in samples], what) for name in samples[0]}
    return _stack_arrays(samples, what)


def _stack_arrays(samples: list[Any], what: str) -> Array:
    parts = [np.asarray(on_cpu(part)) for part in samples]
    if len({part.shape for part in parts}) > 1:
        raise ConfigError(f"{what} have different shapes ({parts[0].shape} first); pad them to one shape")
    return _array(np.stack(parts), what)


def concatenate(parts: Iterable[Arrays]) -> Arrays:
    """The rows of all parts."""
    listed: list[Any] = list(parts)
    if isinstance(listed[0], dict):
        return {name: np.concatenate([part[name] for part in listed]) for name in listed[0]}
    return np.concatenate(listed)
