"""``qafel run``, ``compare`` and ``timeline`` as a user types them: folders, interruptions, mistakes."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import call, call_json, check_mistake, kill, saved_run, settings, spawn
from qafel import wire

pytestmark = pytest.mark.slow

SMALL = settings(
    data="digits",
    model="mlp",
    partition="dirichlet:1",
    clients=60,
    local_rate=0.1,
    epochs=2,
    evaluate_every=200,
)


def same_run(one: Path, two: Path) -> bool:
    """Equal in every byte that does not speak of wall-clock time."""
    for name in ("metrics.jsonl", "model.safetensors"):
        if (one / name).read_bytes() != (two / name).read_bytes():
            return False
    if len({(folder / "config.toml").read_text().partition("\n")[2] for folder in (one, two)}) > 1:
        return False  # the first line says how the settings were asked for
    left, right = (json.loads((folder / "summary.json").read_text()) for folder in (one, two))
    for summary in (left, right):
        for name in ("seconds", "provenance", "workers"):
            del summary[name]
    return bool(left == right)


def test_a_run_leaves_its_folder_with_everything_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = call("run", *SMALL, *settings(uploads=600), "--out", str(folder), "--tensorboard").stdout
    assert str(folder) in text.replace("\n", "")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.toml", "metrics.jsonl", "summary.json", "model.safetensors", "curves.png", "staleness.png",
        "tensorboard",
    }  # fmt: skip
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [point["uploads"] for point in points] == [0, 200, 400, 600]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bytes_up"] == points[-1]["bytes_up"] > 600 * 500
    assert summary["staleness"]["mean"] == pytest.approx(points[-1]["staleness"])
    assert sum(summary["staleness"]["histogram"].values()) == 600
    assert summary["seconds"]["training"] > 0
    assert summary["reason"] == "uploads"
    from safetensors.numpy import load_file

    assert sum(tensor.size for tensor in load_file(folder / "model.safetensors").values()) == summary["size"]
    again = tmp_path / "again"
    answer = call_json("run", str(folder / "config.toml"), "--out", str(again), "--workers", "1")
    assert answer["digest"] == summary["digest"]
    assert same_run(folder, again)


def saved(folder: Path) -> int:
    path = folder / "checkpoint.bin"
    return path.stat().st_mtime_ns if path.exists() else 0


def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(tmp_path: Path) -> None:
    chosen = [*SMALL, *settings(uploads=2000, rate=40)]
    call("run", *chosen, "--out", str(tmp_path / "whole"))
    folder, kills = tmp_path / "killed", 0
    chance = random.Random(7)
    command = ["run", *chosen, "--out", str(folder), "--checkpoint", "0.1"]
    while kills < 3:
        process = subprocess.Popen(
            [sys.executable, "-m", "qafel", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = saved(folder)
        while process.poll() is None and saved(folder) == before:
            time.sleep(0.005)
        time.sleep(0.6 * chance.random())
        kill(process)
        kills += process.returncode == -signal.SIGKILL
        if (folder / "summary.json").exists():
            break
        command = ["run", "--resume", str(folder), "--checkpoint", "0.1"]
    else:
        call("run", "--resume", str(folder))
    assert kills >= 1
    assert same_run(tmp_path / "whole", folder)


def test_ctrl_c_saves_the_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    chosen = [*SMALL, *settings(uploads=1500)]
    call("run", *chosen, "--out", str(tmp_path / "whole"))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "qafel", "run", *chosen, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").stat().st_size < 300:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert f"qafel run --resume {folder}" in errors
    assert "Traceback" not in errors
    check_mistake("has not ended", "compare", str(folder))
    call("run", "--resume", str(folder))
    assert same_run(tmp_path / "whole", folder)
    check_mistake("nothing to resume", "run", "--resume", str(folder))


def test_workers_end_when_their_run_is_killed(tmp_path: Path) -> None:
    chosen = [*SMALL, *settings(uploads=100_000), "--out", str(tmp_path / "run"), "--workers", "2"]
    process = subprocess.Popen([sys.executable, "-m", "qafel", "run", *chosen], stderr=subprocess.DEVNULL)
    children: list[str] = []
    while len(children) < 2:
        time.sleep(0.05)
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = path.read_text().split() if path.exists() else ["", ""]
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 240
    while time.monotonic() < end and any(Path(f"/proc/{pid}/cmdline").exists() for pid in children):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children)


def test_compare_runs_what_is_missing_and_takes_what_is_there(tmp_path: Path) -> None:
    chosen = [*SMALL, *settings(uploads=400), "--seeds", "2", "--out", str(tmp_path / "c")]
    text = call("compare", "qafel", "fedbuff", *chosen).stdout
    assert "÷ fedbuff" in text
    assert "±" in text
    before = (tmp_path / "c" / "qafel-seed1" / "summary.json").read_bytes()
    rows = call_json("compare", "qafel", "fedbuff", *chosen)["rows"]
    assert (tmp_path / "c" / "qafel-seed1" / "summary.json").read_bytes() == before
    assert rows[1]["bytes_up"][0] > 6 * rows[0]["bytes_up"][0]
    assert (tmp_path / "c" / "compare.png").stat().st_size > 10_000
    folders = [str(tmp_path / "c" / name) for name in ("qafel-seed0", "fedbuff-seed0")]
    text = call("compare", *folders, "--out", str(tmp_path / "d")).stdout
    assert "fedbuff-seed0 ÷ qafel-seed0" in text
    check_mistake("holds results of something else", "compare", "qafel", *chosen, "--set", "rate=7")


def test_the_timeline_alone_says_what_concurrency_and_staleness_will_be(tmp_path: Path) -> None:
    picture = tmp_path / "staleness.png"
    answer = call_json("timeline", *settings(rate=125, uploads=50_000), "--out", str(picture))
    assert answer["concurrency"] == pytest.approx(100, rel=0.02)
    assert picture.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--set", "buffersize=3"], "did you mean 'buffer_size'?"),
        (["run", "--set", "uploads"], "a change is key=value"),
        (["run", "--set", "uploads=many"], "uploads in the changes must be an integer, got 'many'"),
        (["run", "--set", "uploads=0"], "uploads must be at least 1"),
        (["run", "--set", "algorithm=qafle"], "did you mean 'qafel'?"),
        (["run", "--set", "sampling=all"], "sampling in the changes must be 'replacement' or 'idle'"),
        (["run", "--set", "data=nowhere.npz"], "unknown data 'nowhere.npz'"),
        (["run", "--set", "model=cnnn"], "unknown model 'cnnn'"),
        (
            ["run", "--set", "clients=5", "--set", "buffer_size=10"],
            "buffer_size (K) is 10, larger than the population of 5 clients",
        ),
        (["run", "--set", "local_rate=-1"], "local_rate must be positive"),
        (["run", "--set", "client_quantizer=qsdg:4"], "nearest valid spec: 'qsgd:4'"),
        (["run", "--set", "arrivals=rounds"], "use the algorithm fedavg"),
        (
            ["run", "--set", "model=mlp", "--set", "data=breast-cancer", "--set", "engine=kernel"],
            "engine kernel",
        ),
        (["run", "--set", "device=cuda:7"], "no cuda device"),
        (["run", "--workers", "0"], "workers must be at least 1"),
        (["run", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", __file__], "is not a TOML file"),
        (["run", "--resume", "/"], "is not the folder of a run"),
        (["run", "--resume", "x", "--set", "a=1"], "--resume continues with the settings of the run"),
        (["compare", "qafle"], "did you mean 'qafel'?"),
        (["compare", "qafel", "--seeds", "0"], "0 is not in the range x>=1"),
        (["compare", "/"], "is not the folder of a run"),
        (["timeline", "--set", "up_bandwidth=5"], "the clock depends on the training"),
        (["bench", "sim", "--engine", "quick"], "unknown engine 'quick'"),
        (["bench", "sim", "--rounds", "0"], "must be at least 1"),
    ],
)
def test_a_mistake_gets_one_sentence_exit_code_2_and_leaves_no_folder(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(sentence, *arguments)
    assert not list(tmp_path.glob("runs/*-1"))


@pytest.mark.parametrize(
    ("when", "sentence"),
    [("True", "the loss on the held-out samples is nan"), ("self.training", "not finite on client")],
)
def test_a_model_that_returns_nan_stops_the_run_with_one_sentence(
    when: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Bad(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        f"        return self.layer(x.flatten(1)) * (float('nan') if {when} else 1)\n"
    )
    arguments = ["run", *settings(data="digits", model="mine:Bad", rate=20), "--out", "run"]
    done = spawn(*arguments, code=2, cwd=tmp_path)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_model_of_the_users_own_runs_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(shape, classes):\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(64, classes))\n"
    )
    arguments = ["run", "--set", "data=digits", "--set", "model=mine:net", "--set", "uploads=50", "--json"]
    answer = json.loads(spawn(*arguments, cwd=tmp_path).stdout)
    assert answer["size"] == 650
    assert answer["settings"]["model"] == "mine:net"


def test_a_full_disk_ends_in_one_sentence_and_no_result(tmp_path: Path) -> None:
    """The limit on a file's size makes the write fail as a full disk does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    arguments = ["run", *SMALL, "--set", "uploads=300", "--out", str(tmp_path / "run"), "--checkpoint", "0"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", "")}
    done = spawn(*arguments, code=2, preexec_fn=limit, env={k: v for k, v in environment.items() if v})
    assert "cannot write to" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_run_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder, path = tmp_path / "run", tmp_path / "data.npz"
    np.savez(path, x=rng.random((400, 5), dtype=np.float32), y=np.arange(400) % 2)
    with saved_run(folder, *settings(data=path, model="mlp", uploads=100_000)):
        pass
    np.savez(path, x=rng.random((400, 5), dtype=np.float32), y=np.arange(400) % 2)
    check_mistake(
        "the data, the model or the training has changed since the run began", "run", "--resume", str(folder)
    )


def test_a_damaged_checkpoint_gets_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with saved_run(folder, *SMALL, *settings(uploads=50_000)):
        pass
    data = bytearray((folder / "checkpoint.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "checkpoint.bin").write_bytes(data)
    check_mistake("is damaged", "run", "--resume", str(folder))


def test_a_run_of_another_format_gets_one_sentence(tmp_path: Path) -> None:
    """The envelope of a checkpoint: magic (2 bytes), format (1), checksum of format and body (8), body."""
    folder = tmp_path / "run"
    with saved_run(folder, *SMALL, *settings(uploads=50_000)):
        pass
    data = (folder / "checkpoint.bin").read_bytes()
    older = wire.seal(data[:2], data[2] - 1, data[wire.HEADER :])
    (folder / "checkpoint.bin").write_bytes(older)
    check_mistake(
        f"has format {data[2] - 1}; this version of qafel reads {data[2]}", "run", "--resume", str(folder)
    )
    call("run", *SMALL, *settings(uploads=20), "--out", str(tmp_path / "ended"))
    summary = tmp_path / "ended" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"format": 1}))
    check_mistake("has format 1; this qafel reads 2; run it again", "compare", str(tmp_path / "ended"))


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with saved_run(folder, *SMALL, *settings(uploads=50_000)):
        check_mistake("another process", "run", "--resume", str(folder))


def data(name: str) -> str:
    folder = os.environ.get("QAFEL_DATA")
    if not folder:
        pytest.skip("QAFEL_DATA does not name a folder with the real data")
    return str(Path(folder) / name)


def test_digits_reach_95_percent(tmp_path: Path) -> None:
    answer = call_json("run", *SMALL, *settings(uploads=9000, target=0.95), "--out", str(tmp_path / "run"))
    assert answer["reason"] == "target"
    assert answer["smoothed"]["accuracy"] >= 0.95


@pytest.mark.parametrize("algorithm", ["fedbuff", "qafel"])
def test_real_faces_reach_90_percent_with_the_papers_cnn(algorithm: str, tmp_path: Path) -> None:
    values = [
        f"data={data('smiles32.npz')}", "partition=iid", "held_out=0.1", "uploads=12000", "target=0.9",
        f"algorithm={algorithm}", "seed=1",
    ]  # fmt: skip
    arguments = [word for value in values for word in ("--set", value)]
    answer = call_json("run", *arguments, "--out", str(tmp_path / "run"))
    assert answer["reason"] == "target"
    assert answer["size"] == 29_282


def test_the_closed_loop_of_the_mushrooms_study_learns(tmp_path: Path) -> None:
    values = [
        f"data={data('mushrooms.libsvm.gz')}", "model=logistic", "partition=consecutive", "clients=100",
        "held_out=0.1", "arrivals=closed", "steps=10", "batch_size=100000", "local_rate=2", "server_rate=0.1",
        "momentum=0", "uploads=3000", "evaluate_every=1000",
        "client_quantizer=qsgd:levels=4", "server_quantizer=qsgd:levels=8",
    ]  # fmt: skip
    arguments = [word for value in values for word in ("--set", value)]
    answer = call_json("run", *arguments, "--out", str(tmp_path / "run"))
    assert answer["smoothed"]["accuracy"] > 0.9
    assert answer["concurrency"]["max"] == 100


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    from qafel.sim import simulate

    one, two, other = (
        simulate(seed=seed, data="digits", model="softmax", clients=30, uploads=60, workers=1)
        for seed in (3, 3, 4)
    )
    assert one.summary.digest == two.summary.digest != other.summary.digest
    assert one.x is not None
    assert two.x is not None
    assert np.array_equal(one.x, two.x)
