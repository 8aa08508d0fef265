"""Provenance of results: the command, the commit and the machine that produced them."""

import platform
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qafel import machine


def provenance(*packages: str) -> dict[str, Any]:
    """The running command, its commit, the machine, and the versions of ``packages``."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "python -m qafel")
    return {
        "command": " ".join([program, *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine.describe(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
    }


def made_by(made: Mapping[str, Any]) -> str:
    """A ``provenance`` as a sentence for a page of results."""
    where = f"{made['machine']['processor']}, {made['machine']['cores']} cores"
    sentence = f"Made by `{made['command']}`, commit {made['commit']}, on {where}."
    return textwrap.fill(sentence, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def commit() -> str | None:
    """The commit of this package's git checkout, marked if it has local changes; None outside of one."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    completed = subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return completed.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
