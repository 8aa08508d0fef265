"""A command line that explains itself: settings, names, completion, extras, pipes, narrow terminals."""

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from command import call, call_json, check_mistake, settings, spawn
from qafel.errors import ConfigError, QafelWarning
from qafel.extras import MODULES
from qafel.federation.plan import Plan
from qafel.sim import Settings, simulate
from qafel.sim.timeline import Timeline, kernels
from qafel.tasks.described import describe
from qafel.tasks.settings import LOCAL_RATES

SOURCE = Path(__file__).parents[2] / "src" / "qafel"
SMALL = settings(data="digits", model="mlp", partition="dirichlet:1", clients=60, rate=20, uploads=60)


def test_qafel_settings_lists_every_setting_with_default_and_meaning() -> None:
    text = call("settings").stdout
    for kind in (Settings, Plan):
        described = {one.name: one for one in describe(kind)}
        assert list(described) == list(kind.__struct_fields__)
        for one in described.values():
            assert len(one.meaning) > 10, one.name
            assert re.search(rf"^  {one.name}( = |$)", text, re.M), one.name
    assert "local_rate" in call("settings", "local_rate").stdout
    assert call_json("settings", "buffer_size")["meaning"].startswith("K: the number of updates")
    assert "qafel settings" in " ".join(call("run", "--help").stdout.split())


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("lr", "local_rate"), ("rounds", "uploads"), ("num_clients", "clients"), ("K", "buffer_size"),
        ("learning-rate", "local_rate"), ("local_epochs", "epochs"), ("dataset", "data"), ("mu", "prox"),
    ],
)  # fmt: skip
def test_a_foreign_name_gets_our_name(foreign: str, ours: str) -> None:
    check_mistake(f"unknown setting '{foreign}' (the changes); use '{ours}'", "run", "--set", f"{foreign}=3")
    check_mistake(f"use '{ours}'", "settings", foreign)
    with pytest.raises(ConfigError, match=f"use '{ours}'"):
        simulate(**cast("Any", {foreign: 3}))


def complete(*words: str) -> list[str]:
    """What a shell would offer for the last word."""
    environment = {
        **os.environ, "_QAFEL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["qafel", *words]),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'qafel'; from qafel.cli import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["swe"], "sweep"),
        (["run", "--set", "local_r"], "local_rate="),
        (["run", "--set", "algorithm=fedb"], "algorithm=fedbuff"),
        (["run", "--set", "client_quantizer=rot"], "client_quantizer=rotated:bits=0.4"),
        (["sweep", "--vary", "buffer"], "buffer_size="),
        (["quantizers", "topk"], "topk:0.1"),
        (["settings", "stale"], "staleness_weight"),
        (["compare", "fedb"], "fedbuff"),
    ],
)
def test_shells_complete_commands_settings_and_quantizers(words: list[str], expected: str) -> None:
    assert expected in complete(*words)


def test_more_tasks_in_flight_than_clients_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    small: dict[str, Any] = {"data": "digits", "model": "softmax", "clients": 20, "uploads": 20, "workers": 1}
    with pytest.warns(
        QafelWarning, match=r"about \d+ tasks are in flight at a time, more than the 20 clients"
    ):
        result = simulate(**small)
    assert not simulate(**small, sampling="idle").summary.notes
    assert not simulate(**small, rate=10.0).summary.notes
    assert result.summary.concurrency["mean"] > 0


def test_held_out_says_what_it_took(tmp_path: Path) -> None:
    text = call("run", *SMALL, "--out", str(tmp_path / "run")).stdout
    assert re.search(r"Held out: .*\d", text), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "reached", "uploads"),
    [
        ("logistic", "breast-cancer", 0.9, 1000),
        ("softmax", "digits", 0.8, 2000),
        ("mlp", "digits", 0.5, 2500),
    ],
)
def test_the_default_rate_of_a_built_in_model_learns_its_built_in_data(
    model: str, data: str, reached: float, uploads: int
) -> None:
    result = simulate(model=model, data=data, uploads=uploads, rate=40.0)
    assert result.summary.accuracy > reached
    assert result.summary.settings["local_rate"] == LOCAL_RATES[model]


def test_fedavg_samples_clients_without_replacement() -> None:
    settings = Settings(algorithm="fedavg", buffer_size=10, dropouts=0.2, uploads=500)
    timeline = Timeline(settings, clients=12)
    reports = [event.client for event in itertools.islice(timeline, 3000) if event.kind == kernels.REPORT]
    rounds = [reports[k : k + 10] for k in range(0, len(reports), 10)]
    assert len(rounds) > 50
    assert all(len(set(chosen)) == len(chosen) for chosen in rounds)


@pytest.mark.slow
def test_an_own_quantizer_is_used_from_the_command_line(tmp_path: Path) -> None:
    example = (SOURCE.parents[1] / "examples" / "own_quantizer.py").read_text()
    source = example.partition('if __name__ == "__main__":')[0].replace(
        "from shared import QUICK, compare\n", ""
    )
    (tmp_path / "mine.py").write_text(source.replace("QUICK", "False"))
    (name,) = re.findall(r'name(?:: [^=]+)? = "(\w+)"', source)[:1]
    listed = spawn("quantizers", "--import", "mine", cwd=tmp_path).stdout
    assert name in listed
    spec = next(line.split()[0] for line in listed.splitlines() if line.startswith(name))
    chosen = [*SMALL, "--set", f"client_quantizer={spec}", "--out", "run", "--import=mine"]
    assert "qafel" in spawn("run", *chosen, cwd=tmp_path).stdout
    check_mistake("the module nowhere cannot be imported", "quantizers", "--import", "nowhere")
    check_mistake("--import needs the name of a module", "quantizers", "--import")


BLOCKED = """
import sys
for name in sys.argv[1].split(","):
    if name:
        sys.modules[name] = None
sys.argv = ["qafel", *sys.argv[2:]]
from qafel.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["", "torch", "data", "figures", "data,torch,figures"])
def test_missing_extras_are_named_all_at_once_without_a_traceback(missing: str, tmp_path: Path) -> None:
    extras = [extra for extra in missing.split(",") if extra]
    modules = ",".join(module for extra in extras for module in MODULES[extra])
    commands = {
        ("run", *SMALL): {"torch", "data"},
        ("compare", "qafel", "fedbuff", *SMALL): {"torch", "data", "figures"},
        ("sweep", *SMALL, "--vary", "epochs=1,2"): {"torch", "data", "figures"},
        ("tune", *SMALL, "--budget", "17", "--seeds", "1"): {"torch", "data", "figures"},
        ("demo", "--uploads", "5"): {"torch", "figures"},
        ("reproduce", "table2"): {"torch", "data", "figures"},
        ("quantizers", "qsgd:4"): set(),
        ("settings",): set(),
    }
    for command, needed in commands.items():
        lacking = needed & set(extras)
        if not lacking and command[0] not in ("quantizers", "settings", "run"):
            continue  # it would work
        done = subprocess.run(
            [sys.executable, "-c", BLOCKED, modules, *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr, command
        assert done.returncode == (2 if lacking else 0), (command, done.stderr)
        named = re.search(r"qafel\[([\w,]+)\]", done.stderr)
        assert (set(named[1].split(",")) if named else set()) == lacking, (command, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["settings"], ["quantizers"], ["quantizers", "--json"], ["run", "--help"]]
)
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(command: list[str]) -> None:
    arguments = [sys.executable, "-m", "qafel", *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stdout is not None
        assert producer.stderr is not None
        producer.stdout.read(1)
        producer.stdout.close()
        assert producer.stderr.read() == b""


@pytest.mark.slow
def test_no_color_means_no_colour() -> None:
    import pty

    for variables, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        master, slave = pty.openpty()
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "TERM", "FORCE_COLOR")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "qafel", "quantizers", "qsdg:4"], stdin=slave, stdout=slave, stderr=slave,
            env=kept | variables,
        )  # fmt: skip
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:
                break
            if not part:
                break
            text += part
        process.wait(60)
        assert b"error: " in text
        assert bool(re.search(rb"\x1b\[[0-9;]*3[0-9]", text)) == coloured


def test_errors_raised_in_python_do_not_speak_of_flags() -> None:
    spoken = []
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.relative_to(SOURCE).parts or path.name == "records.py":  # git's options are not ours
            continue
        tree = ast.parse(path.read_text())
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
            and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                spoken += (
                    [f"{path.name}: {node.value}"] if re.search(r"(?<![\w-])--[a-z]", node.value) else []
                )
    assert not spoken


def test_the_table_of_quantizers_shows_what_a_typical_vector_costs() -> None:
    rows = {row["spec"]: row for row in call_json("quantizers")["quantizers"]}
    default = rows["rotated:bits=0.4"]
    assert default["typical_bits"] < 0.6
    assert default["typical_bits"] < default["bits"] / 20  # the worst case alone reads like the worst choice
    assert "bits/coord" in call("quantizers", "identity").stdout
