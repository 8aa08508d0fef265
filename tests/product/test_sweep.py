"""``qafel sweep`` and ``qafel.sim.sweep``: every combination, resumed, in every format."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import call, call_json, check_mistake, settings
from qafel.errors import ConfigError, QafelError
from qafel.sim import Settings, sweep
from qafel.sim.grid import combinations, parse_values, run_name

BASE = settings(
    data="digits", model="mlp", partition="dirichlet:1", clients=60, rate=20, uploads=300, evaluate_every=100
)
RATES = ("--vary", "local_rate=0.05,0.1")


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("local_rate=0.01,0.03,0.1", "local_rate", [0.01, 0.03, 0.1]),
        ("buffer_size=5, 10", "buffer_size", [5, 10]),
        ("algorithm=qafel,fedbuff", "algorithm", ["qafel", "fedbuff"]),
        (
            "client_quantizer=rotated:bits=0.5,qsgd:4,bucket=256,norm=max,identity,randk:0.1,scaled",
            "client_quantizer",
            ["rotated:bits=0.5", "qsgd:4,bucket=256,norm=max", "identity", "randk:0.1,scaled"],
        ),
        ("duration=lognormal:1,0.5,exponential:2", "duration", ["lognormal:1,0.5", "exponential:2"]),
        ('partition=["dirichlet:1", "iid"]', "partition", ["dirichlet:1", "iid"]),
        ("target=none,0.9", "target", [None, 0.9]),
    ],
)
def test_values_to_vary_are_split_at_commas_that_are_not_inside_a_spec(
    text: str, name: str, values: list[Any]
) -> None:
    assert parse_values(text) == (name, values)


@pytest.mark.parametrize(
    ("vary", "sentence"),
    [
        ("local_rate", "given as NAME=VALUE,VALUE"),
        ("lr=0.1,0.2", "use 'local_rate'"),
        ("local_rate=0.1,-1", "rate must be positive"),
        ("client_quantizer=qsdg:4,identity", "qsgd:4"),
        ("local_rate=0.1,0.1", "has local_rate=0.1 twice"),
        ("seed=1,2", "give their number as seeds"),
    ],
)
def test_bad_values_get_one_sentence_before_anything_runs(vary: str, sentence: str, tmp_path: Path) -> None:
    check_mistake(sentence, "sweep", *BASE, "--vary", vary, "--out", str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


def test_a_sweep_without_anything_to_vary_gets_one_sentence(tmp_path: Path) -> None:
    check_mistake("a sweep needs --vary", "sweep", *BASE)
    check_mistake("names local_rate twice", "sweep", *BASE, *RATES, *RATES)
    with pytest.raises(ConfigError, match="must be a list"):
        sweep({"local_rate": 0.1})  # type: ignore[dict-item]


def test_every_combination_is_checked_and_named() -> None:
    groups = combinations({}, {"algorithm": ["qafel", "fedbuff"], "buffer_size": [5, 10]}, 2)
    assert list(groups) == [f"{name}, buffer_size={k}" for name in ("qafel", "fedbuff") for k in (5, 10)]
    assert [one.seed for one in groups["qafel, buffer_size=5"]] == [0, 1]  # type: ignore[union-attr]
    assert (
        run_name("qafel, client_quantizer=qsgd:4,bucket=256", 3)
        == "qafel-client_quantizer=qsgd-4-bucket=256-seed3"
    )
    long = [run_name("x" * 500 + tail, 0) for tail in "ab"]
    assert long[0] != long[1]
    assert max(map(len, long)) < 200


@pytest.mark.slow
def test_a_sweep_has_table_figure_csv_latex_and_markdown(tmp_path: Path) -> None:
    command = ["sweep", *BASE, *RATES, "--seeds", "2", "--out", str(tmp_path)]
    text = call(*command).stdout
    assert "local_rate=0.05" in text
    assert str(tmp_path / "sweep.png") in text
    assert {"sweep.json", "sweep.csv", "sweep.png"} <= {path.name for path in tmp_path.iterdir()}
    runs = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(runs) == 4
    before = {path: path.stat().st_mtime_ns for run in runs for path in run.iterdir()}
    assert "| local_rate=0.05 | 2 |" in call(*command, "--format", "markdown").stdout
    latex = call(*command, "--format", "latex").stdout
    assert r"\begin{tabular}{lrrrrrr}" in latex
    assert r"local\_rate=0.05" in latex
    assert r"$\pm$" in latex
    lines = call(*command, "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("run,seeds,diverged,accuracy")
    assert lines == (tmp_path / "sweep.csv").read_text().splitlines()
    assert {
        path: path.stat().st_mtime_ns for run in runs for path in run.iterdir()
    } == before  # nothing ran again


@pytest.mark.slow
def test_a_sweep_over_two_settings_beside_an_algorithm_draws_a_map(tmp_path: Path) -> None:
    two = ["--vary", "momentum=0,0.3", "--vary", "buffer_size=5,10"]
    command = ["sweep", *BASE, "--set", "uploads=100", *two, "--reference", "fedbuff", "--out"]
    text = call(*command, str(tmp_path / "a")).stdout
    assert str(tmp_path / "a" / "sweep-map.png") in text
    assert (tmp_path / "a" / "sweep-map.png").stat().st_size > 10_000
    answer = call_json(*command, str(tmp_path / "a"))
    assert answer["reference"] == "fedbuff"
    assert [row["name"] for row in answer["rows"]][:2] == ["fedbuff", "momentum=0, buffer_size=5"]
    assert not (tmp_path / "b").exists()
    check_mistake("unknown reference 'fedbuf'", *command[:-2], "fedbuf", "--out", str(tmp_path / "b"))


@pytest.mark.slow
def test_the_same_sweep_from_python_has_the_same_numbers(tmp_path: Path) -> None:
    answer = call_json("sweep", *BASE, *RATES, "--seeds", "2", "--out", str(tmp_path / "cli"))
    comparison = sweep(
        {"local_rate": [0.05, 0.1]}, seeds=2, out=tmp_path / "python", data="digits", model="mlp",
        partition="dirichlet:1", clients=60, rate=20, uploads=300, evaluate_every=100,
    )  # fmt: skip
    mine = [run.summary.digest for runs in comparison.results.values() for run in runs]
    assert mine == [run["digest"] for runs in answer["runs"].values() for run in runs]
    assert comparison.rows[1].against is not None
    assert list(comparison.rows[1].against.ratio) == answer["rows"][1]["against"]["ratio"]


@pytest.mark.slow
def test_an_own_model_is_swept_and_continued_with_the_same_model_only(tmp_path: Path) -> None:
    from torch import nn

    def net(hidden: int) -> Any:
        def make() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

        return make

    fixed: dict[str, Any] = {"data": "digits", "uploads": 100, "rate": 20, "out": tmp_path}
    first = sweep({"epochs": [1, 2]}, model=net(16), **fixed)
    again = sweep({"epochs": [1, 2]}, model=net(16), **fixed)
    assert [row.metrics for row in again.rows] == [row.metrics for row in first.rows]
    with pytest.raises(ConfigError, match="another model, other data or other training"):
        sweep({"epochs": [1, 2]}, model=net(17), **fixed)


@pytest.mark.slow
def test_a_sweep_that_was_killed_or_stopped_goes_on_to_the_same_table(tmp_path: Path) -> None:
    chosen = [*BASE, *settings(uploads=700), *RATES, "--seeds", "3", "--jobs", "2"]
    whole = call_json("sweep", *chosen, "--out", str(tmp_path / "whole"))
    for end in (signal.SIGKILL, signal.SIGINT):
        folder = tmp_path / end.name
        command = [sys.executable, "-m", "qafel", "sweep", *chosen, "--out", str(folder)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        while not list(folder.glob("*/summary.json")) and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, end)
        _, errors = process.communicate(timeout=120)
        assert 1 <= len(list(folder.glob("*/summary.json"))) < 6
        if end == signal.SIGINT:
            assert process.returncode == 130
            assert "the same command continues" in errors
            assert "Traceback" not in errors
        end_of_children(folder)
        again = call_json("sweep", *chosen, "--out", str(folder))
        assert [row["against"] for row in again["rows"]] == [row["against"] for row in whole["rows"]]
        digests = [
            [run["digest"] for runs in answer["runs"].values() for run in runs] for answer in (whole, again)
        ]
        assert digests[0] == digests[1]
        assert json.loads((folder / "sweep.json").read_text())["rows"] == again["rows"]


def end_of_children(folder: Path) -> None:
    """Wait until no process works in the folder: its runs are locked until their processes have ended."""
    import fcntl

    for run in (path for path in folder.iterdir() if path.is_dir()):
        handle = os.open(run, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # waits
        finally:
            os.close(handle)


@pytest.mark.slow
def test_other_data_in_the_same_file_is_not_taken_for_the_same(tmp_path: Path) -> None:
    def write(seed: int) -> None:
        chance = np.random.default_rng(seed)
        x = chance.standard_normal((200, 4)).astype(np.float32)
        np.savez(tmp_path / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))

    chosen = settings(data=tmp_path / "mine.npz", model="softmax", clients=10, rate=5, uploads=40)
    command = ["sweep", *chosen, "--vary", "epochs=1,2", "--out", str(tmp_path / "s")]
    write(0)
    call(*command)
    call(*command)
    write(1)
    check_mistake("another model, other data or other training", *command)


@pytest.mark.slow
def test_a_function_that_changed_is_noticed_and_one_that_did_not_is_not(tmp_path: Path) -> None:
    fixed: dict[str, Any] = {"data": "digits", "model": "softmax", "uploads": 40, "rate": 5, "out": tmp_path}
    sweep({"epochs": [1, 2]}, staleness_weight=lambda tau: 1.0, **fixed)
    sweep({"epochs": [1, 2]}, staleness_weight=lambda tau: 1.0, **fixed)
    with pytest.raises(ConfigError, match="another model, other data or other training"):
        sweep({"epochs": [1, 2]}, staleness_weight=lambda tau: 0.01, **fixed)


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others_and_objects_have_names(tmp_path: Path) -> None:
    small: dict[str, Any] = {"data": "digits", "uploads": 40, "rate": 5}
    with pytest.raises(QafelError, match="model=mpl-seed0: unknown model 'mpl'"):
        sweep({"model": ["mpl", "softmax"]}, out=tmp_path / "a", **small)
    assert (tmp_path / "a" / "model=softmax-seed0" / "summary.json").exists()
    weights = {"none": lambda tau: 1.0, "half": lambda tau: 0.5}
    named = sweep({"staleness_weight": weights}, model="softmax", out=tmp_path / "b", **small)
    assert list(named.groups) == ["staleness_weight=none", "staleness_weight=half"]


def test_what_cannot_be_compared_is_said_before_anything_runs(tmp_path: Path) -> None:
    command = ["sweep", *BASE, *RATES, "--out", str(tmp_path / "s")]
    check_mistake("the share of the gain must be between 0 and 1, got 95", *command, "--share", "95")
    check_mistake("unknown reference 'fedbuf'", *command, "--reference", "fedbuf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "sweep.csv").write_text("precious")
    check_mistake(
        "is not empty; choose another folder", "sweep", *BASE, *RATES, "--out", str(tmp_path / "full")
    )
    assert not (tmp_path / "s").exists()


def test_settings_that_need_each_other_can_be_varied() -> None:
    groups = combinations({"arrivals": "refill"}, {"concurrency": [10, 20]}, 1)
    assert list(groups) == ["concurrency=10", "concurrency=20"]
    many = combinations(
        {}, {"local_rate": np.logspace(-3, -1, 3), "loss": [lambda o, t: o, lambda o, t: t]}, 1
    )
    assert list(many)[:2] == [
        "local_rate=0.001, loss=<lambda> #1", "local_rate=0.001, loss=<lambda> #2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_a_reference_is_the_plain_algorithm_whatever_the_others_start_from(name: str) -> None:
    base = {
        "data": "digits", "model": "mlp", "algorithm": "qafel", "client_quantizer": "rotated:bits=0.4",
        "server_quantizer": "deadzone:step=2.2", "lookahead": 0.25, "buffer_size": 20, "momentum": 0.1,
    }  # fmt: skip
    (chosen,) = combinations(base, {"local_rate": [0.1]}, 1, name)[name]
    assert isinstance(chosen, Settings)
    job = chosen.job(20_000)
    assert (job.client_quantizer, job.server_quantizer, job.lookahead) == ("identity", "identity", 0)
    assert (job.momentum, job.buffer_size) == (0.1, 20 if name == "fedbuff" else 1)
