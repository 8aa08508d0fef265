"""What is run beside each other: configurations, each once per seed."""

import contextlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel.config import ALGORITHMS
from qafel.errors import ConfigError, MissingExtraError, unknown
from qafel.files import write_json
from qafel.quantizers import registered_quantizers
from qafel.records import provenance
from qafel.runs import notebook
from qafel.runs.comparison import Comparison, Outcome, check_share
from qafel.runs.curves import SHARE
from qafel.runs.groups import group
from qafel.runs.maps import draw_map
from qafel.runs.result import Result, load
from qafel.sim import PACKAGES
from qafel.sim.batch import reserve, run_all, work_folder
from qafel.sim.processes import Progress
from qafel.sim.settings import Settings, make_settings, read_settings
from qafel.tasks.values import PYTHON, named, parse, read_values, unknown_setting
from qafel.wire import fingerprint

Groups = dict[str, list[Settings] | list[Result]]
"""Runs to make, or runs that have ended, by configuration."""
MAX_NAME = 120
ROOT = Path("runs")
"""Where work without a folder of its own goes."""


def sweep(
    vary: Mapping[str, Iterable[Any] | Mapping[str, Any]],
    base: Settings | str | Path | None = None,
    *,
    seeds: int = 1,
    jobs: int | None = None,
    out: str | Path | None = None,
    reference: str | None = None,
    share: float = SHARE,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Run every combination of the values in ``vary``, each with ``seeds`` seeds, and compare them.

    Values are a list, or a mapping from names to values, for objects that have no name. ``reference`` is the
    combination that the others are compared with, or an algorithm, whose runs are then added.

    The other settings are those of ``base`` (settings, or a TOML file) and the keywords. ``out`` is the
    folder of the runs, by default a new one in runs/; a sweep that was interrupted continues when it is
    called again.
    """
    path = Path(base) if isinstance(base, str | Path) else None
    start = msgspec.structs.asdict(base) if isinstance(base, Settings) else read_values(Settings, path)
    groups = combinations({**start, **settings}, vary, seeds, reference)
    return run_groups(groups, "sweep", out, jobs=jobs, reference=reference, share=share, progress=progress)[0]


def combinations(
    base: Mapping[str, Any], vary: Mapping[str, Any], seeds: int, reference: str | None = None
) -> Groups:
    """The settings of every combination of values, named by what differs; all of them are checked.

    A ``reference`` that is an algorithm and none of the combinations is added to them.
    """
    _check_seeds(seeds)
    if not vary:
        raise ConfigError("a sweep needs at least one setting to vary, with its values")
    labelled = {name: _labelled(name, values) for name, values in vary.items()}
    groups: Groups = {}
    for chosen in itertools.product(*(values.items() for values in labelled.values())):
        label = ", ".join(text for text, _ in chosen)
        one = {name: value for name, (_, value) in zip(vary, chosen, strict=True)}
        groups[label] = _with_seeds(make_settings({**base, **one}, "the sweep"), seeds)
    if reference in ALGORITHMS and reference not in groups:
        settings = make_settings({**base, **of_algorithm(reference)}, "the sweep")
        groups = {str(reference): _with_seeds(settings, seeds), **groups}
    return groups


def of_algorithm(name: str) -> dict[str, Any]:
    """The changes that make settings those of an algorithm: what it decides itself is left to it."""
    decided = {"client_quantizer", "server_quantizer", "lookahead", *ALGORITHMS[name]}
    return {**dict.fromkeys(sorted(decided & set(Settings.__struct_fields__))), "algorithm": name}


def _labelled(name: str, values: Any) -> dict[str, Any]:
    """The values of a setting by what the table calls them; a mapping names them itself."""
    if name == "seed":
        raise ConfigError("a sweep cannot vary seed; to run several seeds, give their number as seeds")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"the values of {name} must be a list, or names with values, got {values!r:.60}")
    pairs = list(values.items()) if isinstance(values, Mapping) else [(None, one) for one in values]
    labelled: dict[str, Any] = {}
    for number, (text, value) in enumerate(pairs, 1):
        if text is None:
            text = str(named(value.item() if hasattr(value, "item") else value))
            if text.startswith(PYTHON):
                text = f"{getattr(value, '__name__', type(value).__name__)} #{number}"
        label = str(text) if name == "algorithm" else f"{name}={text}"
        if label in labelled:
            raise ConfigError(f"the sweep has {label} twice")
        labelled[label] = value
    if not labelled:
        raise ConfigError(f"there are no values of {name} to vary")
    return labelled


def _with_seeds(settings: Settings, seeds: int) -> list[Settings]:
    return [msgspec.structs.replace(settings, seed=settings.seed + k) for k in range(seeds)]


def _check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")


def parse_values(text: str) -> tuple[str, list[Any]]:
    """A setting and its values from ``NAME=VALUE,VALUE,…``, or ``NAME=[…]`` in TOML.

    A comma inside of a spec, as in ``qsgd:4,bucket=256``, does not end it.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values:
        raise ConfigError(f"values to vary are given as NAME=VALUE,VALUE,…, got {text!r}")
    if name not in Settings.__struct_fields__:
        raise unknown_setting(name, Settings.__struct_fields__)
    whole = parse(values)
    if isinstance(whole, list):
        return name, whole
    specs = name.endswith("_quantizer")
    begins = re.compile(rf"({'|'.join(registered_quantizers())}|none)(:|$)" if specs else r"[A-Za-z./~]")
    pieces: list[str] = []
    for piece in values.split(","):
        inside = bool(pieces) and ":" in pieces[-1] and not begins.match(piece.strip())
        if inside:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    return name, [parse(piece.strip()) for piece in pieces]


def select(names: Sequence[str], changes: Iterable[str], seeds: int) -> Groups:
    """What to compare: finished runs by folder, grouped by configuration; and configs or algorithms, each
    once per seed.
    """
    _check_seeds(seeds)
    changes, ended = list(changes), [name for name in names if _is_run(name)]
    if len(ended) == len(names) and (changes or seeds > 1):
        raise ConfigError("runs that have ended keep their settings and seeds; leave the changes out")
    groups: Groups = dict(group([load(name) for name in ended]))
    for name in names:
        path = Path(name)
        if name in ended:
            continue
        if name in ALGORITHMS:
            chosen, label = read_settings(None, [f"algorithm={name}", *changes]), name
        elif path.is_file():
            chosen, label = read_settings(path, changes), path.stem
        else:
            raise unknown("run folder, config file or algorithm", name, ALGORITHMS)
        if label in groups:
            raise ConfigError(f"two runs to compare are called {label}; rename one")
        groups[label] = _with_seeds(chosen, seeds)
    return groups


def _is_run(name: str) -> bool:
    path = Path(name)
    return path.is_dir() and (name not in ALGORITHMS or (path / "summary.json").exists())


def run_groups(
    groups: Groups,
    kind: str,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    reference: str | None = None,
    share: float = SHARE,
    progress: Progress | None = None,
) -> tuple[Comparison, Path]:
    """Run what has not ended, compare everything, and write KIND.json, .csv and .png into the folder.

    The folder holds one comparison: it may get more seeds, but not other settings.
    """
    asked = request(kind, groups)
    check_share(share)
    if reference is not None and reference not in groups:
        raise unknown("reference", reference, groups)
    folder = reserve(Path(out) if out is not None else work_folder(ROOT, kind, asked), asked)
    wanted = {
        run_name(name, chosen.seed): chosen
        for name, what in groups.items()
        for chosen in what
        if isinstance(chosen, Settings)
    }
    _check_not_fewer(groups, folder)
    if len(wanted) < sum(isinstance(one, Settings) for what in groups.values() for one in what):
        raise ConfigError("two configurations have the same name for their folders; rename one")
    outcomes = run_all(wanted, folder, jobs=jobs, progress=progress or notebook.Bar())
    results: dict[str, list[Outcome]] = {}
    for name, what in groups.items():
        results[name] = [
            outcomes[run_name(name, one.seed)] if isinstance(one, Settings) else one for one in what
        ]
    comparison = Comparison(results, reference, share)
    body = {"rows": comparison.rows, "reference": comparison.reference, **provenance(*PACKAGES)}
    write_json(folder / f"{kind}.json", body)
    comparison.to_csv(folder / f"{kind}.csv")
    with contextlib.suppress(MissingExtraError):  # the numbers are complete without a figure
        comparison.figure(folder / f"{kind}.png")
        draw_map(comparison, folder / f"{kind}-map.png")
    return comparison, folder


def request(kind: str, groups: Groups) -> dict[str, Any]:
    """What a folder holds the results of; it may get more seeds."""
    return {"kind": kind, "runs": {name: _described(what[0]) for name, what in groups.items()}}


def _check_not_fewer(groups: Groups, folder: Path) -> None:
    """Raise ConfigError if the folder has results of more seeds than are asked for."""
    for name, what in groups.items():
        last = what[-1]
        if isinstance(last, Settings) and (folder / run_name(name, last.seed + 1) / "summary.json").exists():
            raise ConfigError(
                f"{folder} holds this comparison with more than {len(what)} seeds; ask for all of them, or "
                "choose another folder"
            )


def _described(one: Settings | Result) -> str:
    """What a configuration is, for the request of a folder."""
    if isinstance(one, Settings):
        return one.to_toml()
    return f"{one.folder or 'a result'}: {one.summary.digest}"


def run_name(label: str, seed: int) -> str:
    """The name of a run's folder: that of its configuration, without characters that shells and file systems
    treat specially, and its seed.
    """
    name = re.sub(r"[^\w.=-]+", "-", label).strip("-.")
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{fingerprint(label.encode()):016x}"
    return f"{name}-seed{seed}"
