"""Values of settings: from TOML, ``key=value`` and Python, and back to TOML.

An object of Python that cannot be imported has a description, ``<python: …>``, in place of a value.
"""

import json
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import xxhash

from qafel.errors import ConfigError, unknown

PYTHON = "<python: "
"""How a description begins."""
NO_DATA = "none"
"""The data of a federation whose clients bring their own, and of a training function that has its own."""

S = TypeVar("S", bound=msgspec.Struct)


def to_toml(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {to_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def named(value: Any) -> Any:
    """Numbers and texts as they are; a function as ``module:name`` if it can be imported from there, and any
    other object as ``<python: …>``.
    """
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping) and all(callable(one) or isinstance(one, str) for one in value.values()):
        return {str(name): named(one) for name, one in value.items()}
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str) and module != "__main__" and _imported(module, name) is value:
        return f"{module}:{name}"
    if isinstance(value, Mapping | list):
        return f"{PYTHON}{len(value)} clients>"
    return f"{PYTHON}{name or type(value).__name__}>"


def _imported(module: Any, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None) if isinstance(module, str) else None


def described_code(value: Any, depth: int = 3) -> Any:
    """What an object of Python does, as far as it shows: the code of a function, its defaults and what it
    encloses; the bytes of an array; the type of anything else.
    """
    if depth == 0 or isinstance(value, str | int | float | None):
        return repr(value) if depth else type(value).__name__
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), xxhash.xxh3_64_hexdigest(value.tobytes())
    if isinstance(value, Mapping):
        return {str(name): described_code(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [described_code(one, depth - 1) for one in value]
    code = getattr(value, "__code__", None)
    if code is None:
        return type(value).__name__
    constants = [one for one in code.co_consts if isinstance(one, str | int | float | None)]
    known = [*(value.__defaults__ or ()), *(cell.cell_contents for cell in value.__closure__ or ())]
    return code.co_code.hex(), code.co_names, constants, [described_code(one, depth - 1) for one in known]


def not_importable(name: str, value: str) -> ConfigError:
    """The error for an object that is only known by its description."""
    return ConfigError(
        f"{name} is {value}, which cannot be imported; pass it again from Python: "
        f"resume(folder, {name}=…) or join(…, {name}=…)"
    )


def checked(kind: type[S], values: Mapping[str, Any], where: str = "the settings") -> S:
    """Settings from names and values; ConfigError says what is wrong, and where."""
    for name in values:
        if name not in kind.__struct_fields__:
            raise unknown_setting(name, kind.__struct_fields__, where)
    hints = typing.get_type_hints(kind)
    converted: dict[str, Any] = {}
    for name, given in values.items():
        value = given.item() if isinstance(given, np.generic) else given
        value = str(value) if isinstance(value, Path) else value
        if name == "data" and isinstance(value, str) and value == NO_DATA:
            value = None
        hint = _without_functions(hints[name])
        if hint is Any or (hint is not hints[name] and callable(value)):
            converted[name] = value
            continue
        try:
            converted[name] = msgspec.convert(value, hint, strict=True)
        except msgspec.ValidationError:
            raise ConfigError(f"{name} in {where} must be {_kind(hints[name])}, got {value!r}") from None
    return kind(**converted)


def _without_functions(hint: Any) -> Any:
    """A type without the functions in its union, which only Python can pass."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    kept = [part for part in parts if typing.get_origin(part) is not Callable]
    return hint if len(kept) == len(parts) else typing.Union[tuple(kept)]  # noqa: UP007


def read_file(kind: type[S], path: Path | None, changes: Iterable[str] = ()) -> S:
    """Settings from a TOML file and ``key=value`` changes."""
    return checked(kind, read_values(kind, path, changes), _place(path))


def _place(path: Path | None) -> str:
    return "the changes" if path is None else f"{path} or the changes"


def read_values(kind: type[S], path: Path | None, changes: Iterable[str] = ()) -> dict[str, Any]:
    """Names and values from a TOML file and ``key=value`` changes; the names are checked."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # also of a number of 5,000 digits, or deep nesting
            raise ConfigError(f"{path} is not a TOML file: {str(error)[:200]}") from None
        for name in values:
            if name not in kind.__struct_fields__:
                raise unknown_setting(name, kind.__struct_fields__, str(path))
    for name, value in parse_changes(changes).items():
        values[name] = value
        if name not in kind.__struct_fields__:
            raise unknown_setting(name, kind.__struct_fields__, _place(path))
    return values


def parse_changes(changes: Iterable[str]) -> dict[str, Any]:
    """Names and values from ``key=value`` texts."""
    values = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"a change is key=value, got {change!r}")
        values[name.strip()] = parse(text.strip())
    return values


def parse(text: str) -> Any:
    """A value in TOML syntax; anything else is text, and ``none`` is None."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


FOREIGN = {
    "local_rate": "lr learning_rate local_lr client_lr client_learning_rate eta eta_l",
    "server_rate": "server_lr server_learning_rate global_lr eta_g",
    "uploads": "rounds num_rounds n_rounds comm_rounds num_server_rounds max_rounds iterations updates",
    "clients": "num_clients n_clients nclients clients_total num_users population num_supernodes",
    "buffer_size": "k buffer clients_per_round num_clients_per_round",
    "concurrency": "max_concurrency num_concurrent in_flight",
    "momentum": "beta server_momentum",
    "local_momentum": "client_momentum",
    "lookahead": "look_ahead delay_compensation extrapolation nesterov",
    "steps": "p local_steps local_iterations num_local_steps",
    "epochs": "local_epochs num_epochs e",
    "batch_size": "bs batch local_batch_size b",
    "data": "dataset data_path",
    "model": "net network architecture",
    "partition": "split alpha dirichlet iid non_iid",
    "prox": "mu fedprox_mu proximal_mu",
    "target": "target_accuracy goal",
    "evaluate_every": "eval_every eval_interval evaluation_interval",
    "staleness_weight": "staleness weight_function",
    "client_quantizer": "quantizer compressor uplink_quantizer bits",
    "held_out": "test_size val_split validation_split",
    "seed": "random_state random_seed",
}
"""What settings are called elsewhere, by our name; in lower case, with underscores."""
EXPLAINED = {"uploads": "; a round of K clients is K uploads"}


def unknown_setting(name: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a setting that does not exist, with what it is called here."""
    plain = name.lower().replace("-", "_")
    ours = next((own for own, others in FOREIGN.items() if plain in others.split()), None)
    if ours is None or ours not in (known := list(known)):
        return unknown("setting", name, known, where)
    place = f" ({where})" if where else ""
    return ConfigError(f"unknown setting {name!r}{place}; use {ours!r}{EXPLAINED.get(ours, '')}")


def _kind(hint: Any) -> str:
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return " or ".join(_kind(part) for part in typing.get_args(hint) if part is not type(None))
    return names.get(hint, str(hint))
