"""Tuning and the communication frontier, in miniature, as a user would run them."""

import json
import math
import re
from pathlib import Path

import msgspec
import pytest

from command import call, call_json, check_mistake
from command import settings as command_settings
from qafel.config import CLIENT_QUANTIZER, LOOKAHEAD, SERVER_QUANTIZER
from qafel.errors import SpecError
from qafel.quantizers import quantizer
from qafel.reproduce import reproduce
from qafel.reproduce.frontier_tasks import TASKS, tasks_of
from qafel.sim import make_settings
from qafel.tune import tune

pytestmark = pytest.mark.slow

TASK = {
    "data": "digits",
    "model": "mlp",
    "partition": "dirichlet:1",
    "clients": 60,
    "local_rate": 0.1,
    "evaluate_every": 100,
    "uploads": 600,
}


def test_tuning_races_pairs_within_its_budget_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    pairs = {"clients": ["rotated:bits=0.5", "dither:step=2"], "servers": ["deadzone:step=1.8", "sign"]}
    tuned = tune(make_settings(TASK), tmp_path, seeds=2, budget=8, jobs=2, **pairs)  # type: ignore[arg-type]
    assert tuned.runs == 8  # two of FedBuff, four pairs with the first seed, two with the second
    assert [c.seeds for c in tuned.candidates] == [2, 2, 1, 1]
    assert tuned.best == tuned.candidates[0]
    assert tuned.best.cost <= tuned.candidates[1].cost
    assert tuned.best.against is not None
    assert tuned.best.against.seeds == [0, 1]
    assert tuned.best.against.fewer_up[0] > 10
    assert tuned.best.against.fewer_down[0] > 5
    assert json.loads((tmp_path / "tune.json").read_text())["tuned"]["best"]["client"] == tuned.best.client
    assert Path(tuned.figure).stat().st_size > 10_000
    again = tune(make_settings(TASK), tmp_path, seeds=2, budget=8, jobs=2, **pairs)  # type: ignore[arg-type]
    assert msgspec.json.encode(again) == msgspec.json.encode(tuned)


def test_a_pair_that_never_arrives_is_the_dearest(tmp_path: Path) -> None:
    tuned = tune(make_settings(TASK), tmp_path, seeds=1, budget=2, jobs=1, clients=["sign"], servers=["sign"])
    assert not tuned.best.reached
    assert math.isinf(tuned.best.cost)
    assert not tuned.within


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "target=0.5"], "tuning compares whole curves; leave the target out"),
        (["--budget", "3"], "the budget must be at least 19 runs"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--client", "diter:step=6"], "dither:step=6"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    check_mistake(sentence, "tune", *arguments, "--out", str(tmp_path / "tune"))


def test_tune_as_a_command_names_the_best_pair(tmp_path: Path) -> None:
    small = ["--client", "rotated:bits=0.5", "--server", "deadzone:step=1.8", "--seeds", "1", "--budget", "2"]
    command = ["tune", *command_settings(**TASK), *small, "--out", str(tmp_path)]
    best = "--set client_quantizer=rotated:bits=0.5 --set server_quantizer=deadzone:step=1.8"
    assert best in call(*command).stdout
    assert call_json(*command)["best"]["server"] == "deadzone:step=1.8"


def test_the_frontier_in_miniature_is_beside_fedbuff(tmp_path: Path) -> None:
    study = reproduce("frontier", quick=True, out=tmp_path, jobs=2)
    base, default, ahead = study.numbers["tasks"]["digits"]
    assert (base["name"], base["runs"], default["name"], default["runs"]) == ("FedBuff", 2, "default", 2)
    assert default["against"]["fewer_up"][0] > 20
    assert default["against"]["fewer_down"][0] > 10
    assert study.numbers["mean of the tasks"]["fewer up"] == default["against"]["fewer_up"][0]
    beside, price, levels = study.tables
    assert [row[:2] for row in beside.rows] == [["digits", "default"], ["digits", "FedBuff, look-ahead"]]
    alike = study.numbers["beside FedBuff, look-ahead"]["digits"]["against"]
    assert alike["reference"] == ahead["name"]
    assert [row[0] for row in price.rows] == [row[0] for row in levels.rows] == ["digits"]
    assert re.fullmatch(r"[0-2] of 2", levels.rows[0][-1])
    usual = study.numbers["other levels"][0]["ratios"]["95 %"]
    assert usual == default["against"]["ratio"]
    assert (tmp_path / "frontier-digits.png").stat().st_size > 10_000


def test_a_frontier_whose_runs_all_diverge_is_written_too(tmp_path: Path) -> None:
    changes = {"uploads": 100, "local_rate": 1e6}
    study = reproduce("frontier", quick=True, out=tmp_path, jobs=2, changes=changes)
    assert "diverged" in study.tables[0].rows[0][2]
    assert "nan" not in (tmp_path / "frontier.md").read_text()


def test_without_broadcast_few_clients_download_increments_and_fedbuffs_a_model(tmp_path: Path) -> None:
    study = reproduce("catch-up", quick=True, seeds=1, out=tmp_path, jobs=2)
    for row, clients in zip(study.numbers["rows"], (60, 120), strict=True):
        assert row["clients"] == clients
        assert 100 < row["fedbuff"][0] < 118
        assert row["default"][0] < row["fedbuff"][0] / 2
    assert study.numbers["rows"][0]["default"][0] < study.numbers["rows"][1]["default"][0]
    assert (tmp_path / "catch-up.png").stat().st_size > 10_000


def test_the_frontier_names_the_data_it_misses(tmp_path: Path) -> None:
    check_mistake(
        "has no smiles32.npz; docs/reproduction.md says", "reproduce", "frontier", "--data", str(tmp_path)
    )
    check_mistake(
        "the frontier runs on smiles32.npz, cifar10.npz", "reproduce", "frontier", "--data", "faces"
    )


def test_the_name_of_built_in_data_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(tasks_of("digits")) == ["digits"]


def test_the_reported_seeds_of_tasks_that_were_looked_at_before_are_others() -> None:
    starts = {name: task.seeds.start for name, task in TASKS.items()}
    assert starts == {"SMILEs": 10, "SMILEs, label skew": 10, "CIFAR-10": 10, "Shakespeare": 0, "digits": 20}


def test_runs_of_qafel_use_the_measured_defaults_unless_the_model_is_small_or_somebody_says() -> None:
    large, small = (make_settings({}).job(size) for size in (29_282, 1000))
    assert (large.client_quantizer, large.server_quantizer) == (CLIENT_QUANTIZER, SERVER_QUANTIZER)
    assert small.client_quantizer == small.server_quantizer == "qsgd:4,bucket=256,norm=max"
    assert (large.lookahead, small.lookahead) == (LOOKAHEAD, 0)
    assert make_settings({"server_optimizer": "adam:rate=0.01"}).job(29_282).lookahead == 0
    assert make_settings({"algorithm": "fedbuff"}).job(29_282).lookahead == 0
    own = make_settings({"client_quantizer": "eden:2"}).job(29_282)
    assert (own.client_quantizer, own.server_quantizer) == ("eden:2", SERVER_QUANTIZER)
    assert quantizer(CLIENT_QUANTIZER).unbiased
    assert make_settings({"algorithm": "fedbuff"}).job(29_282).client_quantizer == "identity"
    with pytest.raises(SpecError):
        make_settings({"client_quantizer": "edenn:2"})


def test_the_readmes_table_has_the_committed_numbers() -> None:
    root = Path(__file__).parents[2]
    study = json.loads((root / "results" / "frontier" / "smiles32" / "frontier.json").read_text())
    rows = {row["name"]: row for row in study["numbers"]["tasks"]["SMILEs"]}
    speeds = json.loads((root / "results" / "bench-sim.json").read_text())["speeds"]
    fast = {row["quantizers"]: f"{row['ratio']:.1f}" for row in speeds if row["engine"] == "kernel"}
    text = (root / "README.md").read_text(encoding="utf-8")
    fast["none"] = "–"
    assert f"| FedBuff, full precision | 1.00 | 1.0 | 1.0 | {fast['none (FedBuff)']} |" in text
    for name, row, quantizers in (
        ("FedBuff that looks ahead", rows["FedBuff, look-ahead"], "none"),
        ("4 bits each way, as in the paper", rows["affine:4"], "4-bit QSGD"),
        ("**qafel, default**", rows["default"], "defaults"),
    ):
        against = row["against"]
        ratios = f"{against['ratio'][0]:.2f} | {against['fewer_up'][0]:.1f} | {against['fewer_down'][0]:.1f}"
        assert f"| {name} | {ratios} | {fast[quantizers]} |" in text


def test_the_docs_table_of_five_tasks_has_the_committed_numbers() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "frontier.md").read_text(encoding="utf-8")
    ratios = []
    for folder in ("smiles32", "cifar10", "shakespeare", "digits"):
        study = json.loads((root / "results" / "frontier" / folder / "frontier.json").read_text())
        for rows in study["numbers"]["tasks"].values():
            row = next(row for row in rows if row["name"] == "default")
            uploads, up, down = (row["against"][name] for name in ("ratio", "fewer_up", "fewer_down"))
            spread = f"{uploads[0]:.2f}× [{uploads[1]:.2f}, {uploads[2]:.2f}]"
            assert f"| {row['runs']} | {spread} | {up[0]:.0f}× | {down[0]:.0f}× |" in text
            assert uploads[2] < 1, "the page says so"
            ratios.append((uploads[0], up[0], down[0]))
    others = [uploads for uploads, _, _ in ratios[1:]]
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert f"needs {min(others):.2f} to {max(others):.2f} times FedBuff's uploads" in " ".join(readme.split())
    assert len(ratios) == len(TASKS) == 5
    mean = [sum(column) / len(ratios) for column in zip(*ratios, strict=True)]
    assert f"| mean |  | {mean[0]:.2f}× | {mean[1]:.0f}× | {mean[2]:.0f}× |" in text
