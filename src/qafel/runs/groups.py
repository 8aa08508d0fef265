"""Runs by configuration: those that differ only in their seed belong together."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qafel.errors import ConfigError
from qafel.runs.result import Result


def group(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by configuration: those that differ only in their seed are together."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        settings = {**result.summary.settings, "seed": None}
        groups.setdefault(repr(sorted(settings.items(), key=str)), []).append(result)
    for runs in groups.values():
        seeds = [run.summary.settings.get("seed") for run in runs]
        if len(set(seeds)) < len(seeds):
            raise ConfigError(f"two runs of one configuration have the seed {max(seeds, key=seeds.count)}")
    names = _names(list(groups.values()))
    return dict(zip(names, groups.values(), strict=True))


def _names(groups: list[list[Result]]) -> list[str]:
    """A name for each group: what its folders have in common, or the algorithm and what else differs."""
    folders = [[run.folder.name for run in runs if run.folder is not None] for runs in groups]
    if all(len(names) == len(runs) for names, runs in zip(folders, groups, strict=True)):
        common = [names[0] if len(names) == 1 else _prefix(names) for names in folders]
        if all(common) and len(set(common)) == len(common):
            return common
    chosen = [runs[0].summary.settings for runs in groups]
    return differences(chosen)


def _prefix(names: Sequence[str]) -> str:
    """What names begin with, without a seed."""
    letters = itertools.takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_ ]*(seed)?[-_ ]*\d*$", "", "".join(one[0] for one in letters))


def differences(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each of some settings: the algorithm, and what differs from others of that algorithm."""
    names = []
    for settings in chosen:
        rivals = [one for one in chosen if one.get("algorithm") == settings.get("algorithm")]
        varied = [
            key for key in settings if key != "seed" and any(one.get(key) != settings[key] for one in rivals)
        ]
        words = [f"{key}={settings[key]}" for key in varied]
        names.append(", ".join([str(settings.get("algorithm", "run")), *words]))
    return names
