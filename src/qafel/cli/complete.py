"""Completion of settings, quantizers and algorithms in shells: ``qafel --install-completion``."""

from collections.abc import Iterator


def change_completions(incomplete: str) -> Iterator[str]:
    """``NAME=`` of every setting, then the values that are known by name."""
    from qafel.sim.settings import Settings

    name, equals, value = incomplete.partition("=")
    if not equals:
        yield from (f"{one}=" for one in Settings.__struct_fields__ if one.startswith(name))
        return
    yield from (f"{name}={one}" for one in known_values(name) if one.startswith(value))


def known_values(name: str) -> list[str]:
    """The values of a setting that are known by name."""
    from typing import Literal, get_args, get_origin, get_type_hints

    from qafel.config import ALGORITHMS
    from qafel.quantizers import registered_quantizers
    from qafel.sim.clock import ARRIVALS, DURATIONS
    from qafel.sim.settings import Settings
    from qafel.tasks.data import BUILT_IN
    from qafel.tasks.settings import LOCAL_RATES

    if name.endswith("_quantizer"):
        return [kind.example for kind in registered_quantizers().values()]
    known = {
        "algorithm": list(ALGORITHMS),
        "arrivals": list(ARRIVALS),
        "data": list(BUILT_IN),
        "duration": list(DURATIONS),
        "model": list(LOCAL_RATES),
        "partition": ["natural", "iid", "consecutive", "dirichlet:0.5", "shards:2", "celeba", "skewed:0.5"],
        "staleness_weight": ["constant", "sqrt", "polynomial:0.5"],
    }
    hint = get_type_hints(Settings).get(name)
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return known.get(name, [])


def quantizer_completions(incomplete: str) -> Iterator[str]:
    """Specs of quantizers."""
    return (spec for spec in known_values("client_quantizer") if spec.startswith(incomplete))


def setting_completions(incomplete: str) -> Iterator[str]:
    """Names of settings."""
    from qafel.sim.settings import Settings

    return (name for name in Settings.__struct_fields__ if name.startswith(incomplete))


def run_completions(incomplete: str) -> Iterator[str]:
    """Algorithms, config files and run folders."""
    import glob
    from pathlib import Path

    from qafel.config import ALGORITHMS

    paths = glob.glob(f"{glob.escape(incomplete)}*")  # noqa: PTH207
    folders = [path for path in paths if Path(path).is_dir() or path.endswith(".toml")]
    yield from (name for name in [*ALGORITHMS, *folders] if name.startswith(incomplete))
