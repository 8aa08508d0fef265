"""The files in deploy/ and the page for operators name only what exists."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from qafel import cli
from qafel.cli import federation, show
from qafel.federation.plan import CHANGEABLE
from qafel.federation.server.monitoring import HELP

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
UNITS = sorted(DEPLOY.glob("*.service"))
ELSEWHERE = {
    *("cp", "curl", "docker", "echo", "export", "install", "journalctl", "make", "nats-server", "pip"),
    *("python3", "scp", "sed", "systemctl", "useradd", "/opt/qafel/bin/pip"),
}
"""Commands in the page that are not of qafel."""


def commands() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command of qafel, with its options."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        options = {"--help", "-h"}.union(*(set(one.opts) for one in command.params))
        yield path, options
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    yield from walk(typer.main.get_command(cli.app), ())


OPTIONS = dict(commands())


def check(words: list[str]) -> None:
    """Whether a command line of qafel, without the word qafel, names a command and its options."""
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in OPTIONS:
        path, words = (*path, words[0]), words[1:]
    assert path, words
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in OPTIONS[path], (path, word)


def blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


def sources() -> str:
    """All of qafel with strings joined as Python joins them, and without what is filled in."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", text))


@pytest.mark.parametrize("text", [PAGE, GUIDE], ids=["operating", "federation"])
def test_the_pages_name_commands_and_options_that_exist(text: str) -> None:
    seen = 0
    for line in "\n".join(blocks(text)).splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "qafel":
            check(words[1:])
            seen += 1
        elif words:
            assert words[0] in ELSEWHERE, line
    assert seen >= 4
    for inline in re.findall(r"`(qafel [^`]*)`", text):
        check(shlex.split(inline)[1:])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_units_start_commands_that_exist(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = shlex.split(start)
    assert words[0] == "/opt/qafel/bin/qafel"
    check(words[1:])
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == f"{cli.USAGE} {federation.FENCED} {show.INTERRUPTED}"
    assert {"StateDirectory", "TimeoutStopSec", "ProtectSystem", "NoNewPrivileges"} <= set(settings)


def test_there_is_a_unit_for_each_party() -> None:
    assert [path.name for path in UNITS] == [
        "qafel-broker.service",
        "qafel-client@.service",
        "qafel-server.service",
    ]


def test_the_compose_file_starts_commands_that_exist() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    flow = re.findall(r"^    command: \[(.*)\]$", text, re.MULTILINE)
    lists = [[word.strip().strip('"') for word in one.split(",")] for one in flow]
    for one in re.findall(r"^    command:\n((?:      - .*\n)+)", text, re.MULTILINE):
        lists.append([line.removeprefix("      - ") for line in one.splitlines()])
    assert sorted(words[0] for words in lists) == ["broker", "join", "join", "serve"]
    for words in lists:
        check(words)
    for line in re.findall(r"^#     (qafel .*)$", text, re.MULTILINE):
        check(shlex.split(line, comments=True)[1:])
    assert "/readyz" in text


def test_the_image_installs_extras_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (extras,) = re.findall(r"'\.\[(.*?)\]'", text)
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    for copied in re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split())
        allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        assert all(f"!{name}" in allowed for name in copied.split())
    assert re.search(r"^USER qafel$", text, re.MULTILINE)


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_bytes())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = set(re.findall(r"qafel_\w+", " ".join(expressions)))
    series = {name for name, (kind, _) in HELP.items() if kind != "histogram"}
    parts = {f"{name}_{part}" for name in set(HELP) - series for part in ("bucket", "sum", "count")}
    assert named == series | parts
    for expression in expressions:
        for name in re.findall(r"rate\((qafel_\w+)", expression):
            assert HELP.get(name, ("histogram",))[0] in ("counter", "histogram"), expression
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in board["panels"]
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_alerts_and_the_page_name_metrics_that_exist() -> None:
    for text in ((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"), PAGE, GUIDE):
        names = set(re.findall(r"\bqafel_[a-z_]+", text))
        assert names
        assert names <= set(HELP)
    assert {f"`{name}" for name in HELP} <= set(re.findall(r"`qafel_[a-z_]+", GUIDE))


def test_the_exit_codes_in_the_page_are_those_of_the_code() -> None:
    table = PAGE[PAGE.index("| exit code |") :].split("\n\n")[0]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert codes == [0, cli.USAGE, federation.FENCED, cli.TEMPORARY, show.INTERRUPTED]


def test_the_limits_in_the_page_are_those_that_can_be_changed() -> None:
    text = PAGE[PAGE.index("**Limits**") :].split("```")[0]
    assert re.findall(r"`(\w+)`", text) == list(CHANGEABLE)


def test_the_sentences_in_the_page_are_those_of_the_code() -> None:
    table = PAGE[PAGE.index("| sentence |") :].split("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    code = sources()
    assert len(rows) > 30
    for row in rows:
        for sentence in re.findall(r"`([^`]+)`", row):
            for part in sentence.split("…"):
                assert part.strip() in code, sentence


def test_the_table_of_the_plan_has_its_defaults() -> None:
    from qafel.federation.plan import Plan
    from qafel.tasks.settings import Learning

    table = GUIDE[GUIDE.index("| setting | default |") :].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    own = [name for name in Plan.__struct_fields__ if name not in Learning.__struct_fields__]
    assert set(rows) == {*own, "downlink"}
    for name, shown in rows.items():
        default = getattr(Plan(), name)
        assert shown == (f"`{default}`" if isinstance(default, str) else f"{default:,g}"), name


@pytest.mark.parametrize("code", [0, 2, 3, 75])
def test_the_entrypoint_hides_the_codes_that_must_not_be_started_again(code: int) -> None:
    script = [DEPLOY / "entrypoint.sh", "sh", "-c", f"exit {code}"]
    done = subprocess.run(["sh", *map(str, script)], capture_output=True, check=False)
    assert done.returncode == (0 if code in (cli.USAGE, federation.FENCED) else code)


def test_the_entrypoint_passes_sigterm_on_and_waits(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(7)))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    script = ["sh", str(DEPLOY / "entrypoint.sh"), sys.executable, "-c", program]
    process = subprocess.Popen(script)
    while not ready.exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(240) == 7
