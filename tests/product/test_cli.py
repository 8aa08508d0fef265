"""The command line as a user types it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

from command import call, call_json, check_mistake, spawn
from qafel import files
from qafel.cli import app, show


def test_version_and_help_in_a_process_of_its_own() -> None:
    from qafel import __version__

    assert spawn("--version").stdout.strip() == __version__
    assert "quantizers" in spawn("--help").stdout
    assert "nearest valid spec: 'qsgd:4'" in spawn("quantizers", "qsdg:4", code=2).stderr


def commands() -> Iterator[list[str]]:
    """Every command of the app and of its sub-apps."""

    def walk(command: Any, path: list[str]) -> Iterator[list[str]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path
        for name, child in (inner or {}).items():
            yield from walk(child, [*path, name])

    return walk(typer.main.get_command(app), [])


def test_all_commands_are_known() -> None:
    names = {" ".join(command) for command in commands()}
    assert {"run", "theory bound", "bench federation", "join", "federation-demo"} <= names


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(command: list[str]) -> None:
    text = " ".join(call(*command, "--help").stdout.split())
    assert f"Example: qafel {' '.join(command)}" in text
    assert "--json" in text


def test_options_of_commands_have_the_defaults_of_the_functions_they_call() -> None:
    """Commands repeat some numbers, because importing what they belong to takes long."""
    from qafel.cli.federation import PORT
    from qafel.dashboard import server
    from qafel.federation import broker, keys
    from qafel.runs.curves import SHARE
    from qafel.sim.simulation import CHECKPOINT_SECONDS
    from qafel.tasks.cnn import LAYOUT

    tree = typer.main.get_command(app)

    def default(option: str, *command: str) -> Any:
        inner: Any = tree
        for name in command:
            inner = inner.commands[name]
        return next(each.default for each in inner.params if each.name == option)

    assert default("share", "compare") == default("share", "sweep") == SHARE
    assert default("checkpoint", "run") == CHECKPOINT_SECONDS
    assert default("port", "broker") == PORT == broker.PORT
    assert default("port", "dashboard") == server.PORT
    assert default("broker", "dashboard") == default("broker", "serve") == f"nats://127.0.0.1:{PORT}"
    assert default("days", "keys", "new") == default("days", "keys", "rotate") == keys.DAYS
    assert default("size", "quantizers") == default("size", "theory", "bound") == LAYOUT.size


def test_quantizers_lists_every_registered_one() -> None:
    from qafel import registered_quantizers

    answer = call_json("quantizers", "--size", "1000")
    assert {row["spec"].split(":")[0] for row in answer["quantizers"]} == set(registered_quantizers())
    text = call("quantizers", "qsgd:4", "--size", "29282").stdout
    assert "4.00" in text
    assert "-23.4" in text


@pytest.mark.slow
def test_quantizers_measures_on_a_vector_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "delta.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20, 50)))
    answer = call_json(
        "quantizers", "qsgd:4,bucket=256,norm=max", "topk:0.1", "--on", str(path), "--seeds", "16"
    )
    assert answer["size"] == 1000
    dense, sparse = answer["quantizers"]
    assert 0.01 < dense["nmse"] < 0.1
    assert abs(dense["bias"]) < 0.1 * dense["nmse"]
    assert dense["delta"] == pytest.approx(1 - dense["nmse"])
    assert 4 < dense["bits"] < 4.3
    assert sparse["bias"] > 0.3
    assert "bias²" in call("quantizers", "affine:4", "--on", str(path), "--seeds", "2").stdout


def test_theory_answers_which_quantizers_and_what_they_cost() -> None:
    rows = {row["spec"]: row for row in call_json("theory", "quantizers", "-T", "3000")["quantizers"]}
    assert rows["qsgd:4"]["client"]
    assert not rows["qsgd:4"]["server"]
    assert rows["qsgd:4"]["server_bound"] is None
    bound = call_json(
        "theory", "bound", "--local-rates", "0.001,0.0005", "--server", "topk:0.1", "--staleness", "25"
    )
    assert bound["rates"]["alpha"] == pytest.approx(0.0015)
    assert bound["rates"]["max_staleness_K"] == 3
    assert bound["totals"]["theorem"] == pytest.approx(sum(bound["terms"]["theorem"].values()))
    assert bound["totals"]["theorem"] > bound["totals"]["FedBuff"]
    assert "condition holds" in call("theory", "bound").stdout


@pytest.mark.slow
def test_bench_codec_measures_against_its_yardstick(tmp_path: Path) -> None:
    specs, out = ("qsgd:4,bucket=256,norm=max", "topk:0.1"), tmp_path / "codec.json"
    answer = call_json("bench", "codec", *specs, "-d", "5000", "--rounds", "2", "--out", str(out))
    assert json.loads(out.read_bytes()) == answer
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert all(f"| {row['spec']} | 5,000 | 1 | {row['bits']:.2f} |" in page for row in answer["rows"])
    assert " ".join(page.split()).count(f"Made by `{answer['command']}`") == 1
    assert answer["yardstick"] == "np.copyto"
    assert answer["machine"]["cores"]
    assert "bench codec" in answer["command"]
    assert [row["spec"] for row in answer["rows"]] == ["qsgd:4,bucket=256,norm=max", "topk:0.1"]
    for row in answer["rows"]:
        assert row["encode_ratio"] > 0
        assert row["decode_add_ratio"] > 0
        assert row["payload_bytes"] > 0


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_a_figure(tmp_path: Path) -> None:
    text = call("demo", "--uploads", "60", "--out", str(tmp_path)).stdout
    assert "fedbuff ÷ qafel" in text
    assert str(tmp_path / "demo.png") in text.replace("\n", "")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    rows = {
        row["name"]: row
        for row in call_json("demo", "--uploads", "200", "--out", str(tmp_path / "json"))["rows"]
    }
    assert rows["fedbuff"]["bytes_up"][0] > 7.5 * rows["qafel"]["bytes_up"][0]
    assert rows["fedbuff"]["bytes_down"][0] > 7.5 * rows["qafel"]["bytes_down"][0]


def test_the_readme_shows_what_the_demo_printed() -> None:
    root = Path(__file__).parents[2]
    rows = {row["name"]: row for row in json.loads((root / "results" / "demo.json").read_text())["rows"]}
    lines = (root / "README.md").read_text().splitlines()
    for name, row in rows.items():
        shown = next(line for line in lines if line.startswith(name) and " % " in line).split()
        megabytes = [f"{row[column][0] / 1e6:,.2f}" for column in ("bytes_up", "bytes_down")]
        accuracy = row["metrics"]["accuracy"][0]
        assert shown[1:] == [f"{100 * accuracy:.1f}", "%", f"{row['uploads'][0]:,.0f}", *megabytes,
                             f"{row['time'][0]:,.1f}"]  # fmt: skip


@pytest.mark.slow
def test_bench_sim_measures_against_its_yardstick() -> None:
    answer = call_json("bench", "sim", "--engine", "kernel", "--rounds", "1", "--uploads", "60")
    assert "bare single-threaded PyTorch loop" in answer["yardstick"]
    assert [row["quantizers"] for row in answer["speeds"]] == ["defaults", "none (FedBuff)", "4-bit QSGD"]
    for row in answer["speeds"]:
        assert row["ratio"] == pytest.approx(row["updates_per_second"] / row["bare_per_second"])
        assert 0 < row["not_training"] < 1
    assert all(clock["events_per_second"] > 0 for clock in answer["timelines"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quantizers", "qsdg:4"], "nearest valid spec: 'qsgd:4'"),
        (["quantizers", "--size", "0"], "--size must be from 1 to 1,073,741,823, got 0"),
        (["quantizers", "--size", "1e6"], "valid integer"),
        (["quantizers", "--sizes", "3"], "No such option"),
        (["theory", "bound", "--staleness", "-1"], "--staleness must be from 0"),
        (["theory", "bound", "--server", "qsgd:4"], "use qsgd:4,bucket=256,norm=max or contract:qsgd:4"),
        (["theory", "bound", "--local-rates", ""], "--local-rates must be numbers"),
        (["quantizers", "induced:induced"], "nearest valid spec: 'induced:topk:0.1+qsgd:4'"),
        (["demo", "--out", __file__], "is a file; choose another folder"),
        (["bench", "codec", "--out", "/"], "--out must be a file"),
        (["bench", "sim", "--out", "sim.md"], "--out must be a .json file"),
        (["theory", "bound", "--client", "topk:0.1"], "needs an unbiased client quantizer"),
        (["theory", "bound", "--local-rates", "a,b"], "--local-rates must be numbers"),
        (["theory", "bound", "-L", "0"], "smoothness must be positive"),
        (["theory", "bound", "-L", "1e200"], "smoothness must be positive and at most 1e+30"),
        (["theory", "bound", "-T", "1" + 100 * "0"], "must be from 1 to a billion"),
        (["theory", "bound", "--local-rates", "1e-200"], "rates must be one learning rate per local step"),
        (["theory", "quantizers", "--gap", "0", "--variance", "0", "-G", "0"], "nothing to bound"),
        (["bench", "codec", "-d", "0"], "--size must be from 1"),
        (["demo", "--uploads", "0"], "0 is not in the range x>=1"),
        (["quantizers", "--on", "/nowhere.npy"], "No such file"),
        (["quantizers", "--on", __file__], "is not a .npy file"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    check_mistake(sentence, *arguments)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_mistake("error: ", "demo", "--uploads", "5", "--out", str(tmp_path / "file" / "demo"))


@pytest.mark.slow
def test_a_file_may_be_a_pipe_a_link_or_the_end_of_another_one(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    files.write(Path(f"/dev/fd/{writes}"), b"through a pipe")
    assert os.read(reads, 100) == b"through a pipe"
    log, link = tmp_path / "log", tmp_path / "link"
    log.write_bytes(b"before, ")
    with log.open("ab") as end:
        files.write(Path(f"/dev/fd/{end.fileno()}"), b"after")
    assert log.read_bytes() == b"before, after"
    link.symlink_to(log)
    files.write(link, b"new")
    assert link.is_symlink()
    assert log.read_bytes() == b"new"


def test_debug_shows_the_traceback() -> None:
    for arguments in (["--debug", "quantizers", "qsdg:4"], ["quantizers", "qsdg:4", "--debug"]):
        assert "Traceback" in spawn(*arguments, code=1).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["quantizers"],
        ["settings"],
        ["theory", "quantizers"],
        ["theory", "bound"],
        ["bench", "codec", "-d", "500"],
        ["timeline", "--set", "uploads=5000"],
        ["demo", "--uploads", "20"],
        ["run", "--set", "uploads=20"],
    ],
)
@pytest.mark.parametrize("width", [80, 60])
def test_no_number_is_cut_on_a_narrow_terminal(
    width: int, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    narrow = Console(file=screen, width=width, force_terminal=True, no_color=True)
    monkeypatch.setattr(show, "console", narrow)
    monkeypatch.chdir(tmp_path)
    call(*command)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    assert len(lines) > 2
    assert "…" not in "".join(lines)
    assert max(len(line.rstrip()) for line in lines if not line.startswith("Held out")) <= width


@pytest.mark.slow
def test_ctrl_c_stops_cleanly() -> None:
    sizes = [word for size in range(1000, 2000) for word in ("-d", str(size))]
    with subprocess.Popen(
        [sys.executable, "-m", "qafel", "bench", "codec", "identity", *sizes, "--rounds", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1"},  # the progress bar appears as on a terminal
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background job ignores it
    ) as process:
        assert process.stderr is not None
        shown = ""
        while "identity at 1,000" not in shown:  # it has measured the first of the sizes
            shown += process.stderr.readline(1)
            assert process.poll() is None, shown
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "stopped" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_commands_that_need_no_kernel_do_not_import_numba() -> None:
    """Cold start: numba alone would cost more than these commands may take."""
    program = (
        "import sys; from qafel.cli import app; app({arguments}, standalone_mode=False); "
        "assert not {{'numba', 'matplotlib', 'sklearn', 'torch', 'scipy'}} & set(sys.modules)"
    )
    for arguments in (
        ["settings"],
        ["settings", "--json"],
        ["theory", "quantizers"],
        ["theory", "bound"],
    ):
        subprocess.run(
            [sys.executable, "-c", program.format(arguments=arguments)], check=True, capture_output=True
        )
