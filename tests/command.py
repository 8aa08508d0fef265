"""Calling the command line: in this process, or as a user does, in a process of its own."""

import contextlib
import io
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock


class Done(NamedTuple):
    stdout: str
    stderr: str


def call(*arguments: str, code: int = 0) -> Done:
    """Call ``qafel.cli.main`` in this process; ``code`` is the exit code that it must have."""
    from qafel.cli import main

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["qafel", *arguments]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("default")
        try:
            main()
        except SystemExit as ended:
            assert (ended.code or 0) == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def call_json(*arguments: str) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


def check_mistake(sentence: str, *arguments: str) -> None:
    """The command prints one line, with ``sentence`` in it, on standard error, and exits with code 2."""
    done = call(*arguments, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not done.stdout


def spawn(*arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``qafel`` in a process of its own."""
    command = [sys.executable, "-m", "qafel", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == code, done.stderr
    return done


@contextlib.contextmanager
def saved_run(folder: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own that has saved a checkpoint; it is killed at the end."""
    command = [sys.executable, "-m", "qafel", "run", *settings, "--out", str(folder), "--checkpoint", "0.1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not (folder / "checkpoint.bin").exists():
            time.sleep(0.05)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a run, and wait until its workers, which hold its folder too, have ended."""
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = file.read_text().split() if file.exists() else []
    process.kill()
    process.wait()
    end = time.monotonic() + 240
    while time.monotonic() < end and any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        time.sleep(0.02)


def settings(**values: Any) -> list[str]:
    """``--set key=value`` of each."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
