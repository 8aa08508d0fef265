"""The command line as a user types it, in processes of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def qafel(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "qafel", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done


def qafel_json(*arguments: str) -> Any:
    return json.loads(qafel(*arguments, "--json").stdout)


def test_version_and_help() -> None:
    from qafel import __version__

    assert qafel("--version").stdout.strip() == __version__
    assert "quantizers" in qafel("--help").stdout


@pytest.mark.parametrize(
    "command", [["quantizers"], ["theory", "quantizers"], ["theory", "bound"], ["bench", "codec"], ["demo"]]
)
def test_every_command_has_help_with_an_example_and_json(command: list[str]) -> None:
    text = " ".join(qafel(*command, "--help").stdout.split())
    assert f"Example: qafel {' '.join(command)}" in text
    assert "--json" in text


def test_quantizers_lists_every_registered_one() -> None:
    from qafel import registered

    answer = qafel_json("quantizers", "--size", "1000")
    assert {row["spec"].split(":")[0] for row in answer["quantizers"]} == set(registered())
    text = qafel("quantizers", "qsgd:4", "--size", "29282").stdout
    assert "14,645" in text
    assert "-23.4" in text


def test_quantizers_measures_on_a_vector_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "delta.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20, 50)))
    answer = qafel_json(
        "quantizers", "qsgd:4,bucket=256,norm=max", "topk:0.1", "--on", str(path), "--seeds", "16"
    )
    assert answer["size"] == 1000
    dense, sparse = answer["quantizers"]
    assert 0.01 < dense["nmse"] < 0.1
    assert abs(dense["bias"]) < 0.1 * dense["nmse"]
    assert sparse["bias"] > 0.3
    assert "bias²" in qafel("quantizers", "affine:4", "--on", str(path), "--seeds", "2").stdout


def test_theory_answers_which_quantizers_and_what_they_cost() -> None:
    rows = {row["spec"]: row for row in qafel_json("theory", "quantizers", "-T", "3000")["quantizers"]}
    assert rows["qsgd:4"]["client"]
    assert not rows["qsgd:4"]["server"]
    assert rows["qsgd:4"]["server_bound"] is None
    bound = qafel_json(
        "theory", "bound", "--local-rates", "0.001,0.0005", "--server", "topk:0.1", "--staleness", "25"
    )
    assert bound["rates"]["alpha"] == pytest.approx(0.0015)
    assert bound["rates"]["max_staleness_K"] == 3
    assert bound["totals"]["theorem"] == pytest.approx(sum(bound["terms"]["theorem"].values()))
    assert bound["totals"]["theorem"] > bound["totals"]["FedBuff"]
    assert "condition holds" in qafel("theory", "bound").stdout


def test_bench_codec_measures_against_its_yardstick() -> None:
    answer = qafel_json(
        "bench", "codec", "qsgd:4,bucket=256,norm=max", "topk:0.1", "-d", "5000", "--rounds", "2"
    )
    assert answer["yardstick"] == "np.copyto"
    assert answer["machine"]["cores"]
    assert "bench codec" in answer["command"]
    assert [row["spec"] for row in answer["rows"]] == ["qsgd:4,bucket=256,norm=max", "topk:0.1"]
    for row in answer["rows"]:
        assert row["encode_ratio"] > 0
        assert row["decode_add_ratio"] > 0
        assert row["payload_bytes"] > 0


def test_the_demo_ends_with_a_table_and_a_figure(tmp_path: Path) -> None:
    text = qafel("demo", "--uploads", "400", "--out", str(tmp_path)).stdout
    assert "FedBuff ÷ QAFeL" in text
    assert str(tmp_path / "demo.png") in text.replace("\n", "")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    runs = {run["algorithm"]: run for run in json.loads((tmp_path / "demo.json").read_text())}
    assert runs["FedBuff"]["bytes_up"] > 6 * runs["QAFeL"]["bytes_up"]
    assert runs["FedBuff"]["bytes_down"] > 6 * runs["QAFeL"]["bytes_down"]
    assert runs["QAFeL"]["loss"] < 1.05 * runs["FedBuff"]["loss"] < 0.4
    again = qafel_json("demo", "--uploads", "400", "--out", str(tmp_path / "again"))
    assert [run["loss"] for run in again["runs"]] == [runs["QAFeL"]["loss"], runs["FedBuff"]["loss"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quantizers", "qsdg:4"], "nearest valid spec: 'qsgd:4'"),
        (["quantizers", "--size", "0"], "size must be at least 1"),
        (["theory", "bound", "--client", "topk:0.1"], "needs an unbiased client quantizer"),
        (["theory", "bound", "--local-rates", "a,b"], "local rates must be numbers"),
        (["theory", "bound", "-L", "0"], "smoothness must be positive"),
        (["bench", "codec", "-d", "0"], "must be at least 1"),
        (["demo", "--uploads", "0"], "uploads must be at least 1"),
        (["quantizers", "--on", "/nowhere.npy"], "No such file"),
        (["quantizers", "--on", __file__], "is not a .npy file"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    done = qafel(*arguments, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_a_folder_that_cannot_be_written_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = qafel("demo", "--uploads", "5", "--out", str(tmp_path / "file" / "demo"), code=2)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in qafel("--debug", "quantizers", "qsdg:4", code=1).stderr


def test_commands_that_need_no_kernel_do_not_import_numba() -> None:
    """Cold start: numba alone would cost more than these commands may take."""
    program = (
        "import sys; from qafel.cli import app; app({arguments}, standalone_mode=False); "
        "assert not {{'numba', 'matplotlib', 'sklearn', 'torch', 'scipy'}} & set(sys.modules)"
    )
    for arguments in (
        ["quantizers"],
        ["theory", "quantizers"],
        ["theory", "bound"],
        ["quantizers", "--json"],
    ):
        subprocess.run(
            [sys.executable, "-c", program.format(arguments=arguments)], check=True, capture_output=True
        )
