"""Runs by configuration: those that differ only in their seed belong together."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qafel.errors import ConfigError
from qafel.runs.result import Result


def group(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by configuration: those that differ only in their seed are together."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_key(result), []).append(result)
    for runs in groups.values():
        check_seeds(runs)
    names = _names(list(groups.values()))
    for k, name in enumerate(names):
        if name in names[:k]:
            names[k] = next(one for n in itertools.count(2) if (one := f"{name} ({n})") not in names)
    return dict(zip(names, groups.values(), strict=True))


def check_seeds(runs: Sequence[Result]) -> None:
    """Raise ConfigError if two runs of a configuration have the same seed."""
    seeds = [run.summary.settings.get("seed") for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"two runs of one configuration have the seed {max(seeds, key=seeds.count)}; if they differ, "
            "name them: compare({name: [results]})"
        )


def _key(result: Result) -> str:
    """What runs of one configuration have in common."""
    settings = {name: value for name, value in result.summary.settings.items() if value is not None}
    whole = {name: float(v) if isinstance(v, int) else v for name, v in settings.items() if name != "seed"}
    return json.dumps([whole, result.summary.functions, result.summary.size], sort_keys=True)


def _names(groups: list[list[Result]]) -> list[str]:
    """A name for each group: what its folders have in common, or the algorithm and what else differs."""
    folders = [[run.folder.name for run in runs if run.folder is not None] for runs in groups]
    if all(len(names) == len(runs) for names, runs in zip(folders, groups, strict=True)):
        common = [names[0] if len(names) == 1 else _prefix(names) for names in folders]
        if all(common) and len(set(common)) == len(common):
            return common
    return _differences([runs[0].summary.settings for runs in groups])


def _prefix(names: Sequence[str]) -> str:
    """What names begin with, without a seed."""
    letters = itertools.takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_ ]*(seed)?[-_ ]*\d*$", "", "".join(one[0] for one in letters))


def _differences(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each of some settings: the algorithm, and what differs from others of that algorithm."""
    names = []
    for settings in chosen:
        rivals = [one for one in chosen if one.get("algorithm") == settings.get("algorithm")]
        keys = [key for key in settings if key != "seed"]
        varied = [key for key in keys if any(one.get(key) != settings[key] for one in rivals)]
        words = [f"{key}={settings[key]}" for key in varied]
        names.append(", ".join([str(settings.get("algorithm", "run")), *words]))
    return names
