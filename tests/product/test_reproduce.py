"""``qafel reproduce``: the paper's tables, figures and claims."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import check_mistake
from qafel import theory as formulas
from qafel.client import Task
from qafel.errors import ConfigError
from qafel.reproduce import (
    STUDIES,
    cells,
    claims,
    hidden_state,
    logistic,
    mushrooms,
    problem,
    reproduce,
    rows,
)
from qafel.reproduce.cells import paper_bytes
from qafel.reproduce.logistic import Logistic
from qafel.runs.comparison import Diverged
from qafel.runs.intervals import mean_interval, ratio_interval
from qafel.sim import Simulation, make_settings
from qafel.sim.batch import run_all
from qafel.tasks import data as datasets

pytestmark = pytest.mark.slow

TINY = {"clients": 60, "uploads": 60, "evaluate_every": 20, "target": 0.3, "held_out_samples": 40}
DATA = os.environ.get("QAFEL_DATA")


def tiny(name: str, out: Path, **more: Any) -> Any:
    changes = {name: value for name, value in {**TINY, **more}.items() if value is not None}
    return reproduce(name, quick=True, seeds=1, out=out, changes=changes)


def test_the_paper_sizes_stand_beside_every_cell() -> None:
    sizes = {cell.name: cell.sizes for cell in (*cells.table1("affine"), *cells.table2())}
    assert sizes["fedbuff"] == (117_128, 117_128)
    assert sizes["affine-8-2"] == (29_924, 8_108)
    assert sizes["affine-4-4"] == (15_380, 15_380)
    assert sizes["topk-2"] == (8_108, 15_404)


def test_every_cell_is_a_valid_run_and_seeds_are_paired() -> None:
    shared = cells.base("faces")
    for table in (cells.table1("affine"), cells.table1("bucketed"), cells.table2(), cells.concurrency()):
        for cell in table:
            chosen = make_settings({**shared, **cell.settings, "seed": 2})
            assert (chosen.seed, chosen.target, chosen.evaluate_every, chosen.smoothing) == (2, 0.9, 250, 3)
            assert chosen.job(29_282).buffer_size == 10


def test_table2_writes_json_and_csv_and_the_second_call_runs_nothing(tmp_path: Path) -> None:
    study = tiny("table2", tmp_path)
    assert {Path(file).name for file in study.files} == {
        f"table2.{kind}" for kind in ("json", "csv", "md", "png", "svg")
    }
    written = json.loads((tmp_path / "table2.json").read_text())
    row = written["numbers"]["rows"][2]
    assert row["name"] == "topk-4"
    assert row["paper_thousands"] == [42.4, 10.4]
    assert row["paper_kb_up"] == 15.38
    assert row["reached"] == 1
    assert row["uploads"] == [60]
    fedbuff = written["numbers"]["rows"][0]
    assert round(fedbuff["paper_mb_up"]) == 3057  # the paper says 3,052 of its unrounded uploads
    frames = row["kb_up"] * 1000
    assert paper_bytes("affine:4") < frames <= paper_bytes("affine:4") + 64
    assert row["mb_up"][0] == pytest.approx(60 * frames / 1e6)
    assert written["commit"] is None or isinstance(written["commit"], str)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("summary.json")}
    assert len(before) == 4
    again = tiny("table2", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("summary.json")} == before
    assert again.numbers == study.numbers


def test_runs_that_never_reach_the_target_are_reported(tmp_path: Path) -> None:
    study = tiny("table2", tmp_path, target=0.999, uploads=40)
    assert all(row[2].startswith("never (best ") for row in study.tables[0].rows)
    assert len(study.notes) == 4
    assert "did not reach 100 % in 40 uploads" in study.notes[0]


def test_concurrency_draws_png_and_svg(tmp_path: Path) -> None:
    study = tiny("concurrency", tmp_path, uploads=40)
    kinds = {Path(file).suffix for file in study.files}
    assert kinds == {".json", ".csv", ".md", ".png", ".svg"}
    assert (tmp_path / "concurrency.png").read_bytes().startswith(b"\x89PNG")
    assert len(study.claims) == 2


def test_whole_vector_qsgd_at_the_server_diverges_is_kept_as_a_result_and_names_the_fix(
    tmp_path: Path,
) -> None:
    study = tiny("hidden-state", tmp_path, uploads=200, evaluate_every=50, target=None)
    named = {claim.text: claim for claim in study.claims}
    diverged = named["4-bit QSGD with one L2 norm over the whole vector diverges as a server quantizer"]
    assert diverged.held
    assert "x − x̂ diverges" in diverged.numbers
    assert "use qsgd:4,bucket=256,norm=max" in diverged.numbers
    ends = study.numbers["results"]
    naive, hidden = (ends[f"hidden-{name}-bucketed"]["errors"][0] for name in ("naive", "qafel"))
    assert 0 < 10 * hidden < naive
    assert (tmp_path / "runs" / "hidden-qafel-whole-seed0.diverged").exists()


def test_jobs_do_not_show_in_the_result(tmp_path: Path) -> None:
    wanted = {f"seed{k}": make_settings({**TINY, "seed": k}) for k in range(2)}
    alone, together = run_all(wanted, tmp_path / "a", jobs=1), run_all(wanted, tmp_path / "b", jobs=2)
    for name in wanted:
        mine, theirs = alone[name], together[name]
        assert not isinstance(mine, Diverged)
        assert not isinstance(theirs, Diverged)
        assert mine.summary.digest == theirs.summary.digest


def test_killed_in_the_middle_it_goes_on_to_the_same_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qafel", "reproduce", "table2", "--quick", "--seeds", "1", "--jobs", "1"]
    for name, value in {**TINY, "uploads": 100, "target": 0.99}.items():
        command += ["--set", f"{name}={value}"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "killed"), "--json"], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not list((tmp_path / "killed").rglob("summary.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for out in ("killed", "whole"):
        while True:
            done = subprocess.run(
                [*command, "--out", str(tmp_path / out)], capture_output=True, text=True, timeout=240
            )
            # its orphaned workers end by themselves, a little later
            if "another process is running in" not in done.stderr or time.monotonic() > deadline:
                break
        assert done.returncode == 0, done.stderr
    killed, whole = (json.loads((tmp_path / out / "table2.json").read_text()) for out in ("killed", "whole"))
    assert killed["numbers"] == whole["numbers"]
    assert killed["notes"] == whole["notes"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabel1"], "unknown study 'tabel1'; did you mean 'table1'?"),
        (["table1", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["table1", "--set", "seed=7"], "table1 decides about seed itself; leave it out of the settings"),
        (["table2", "--set", "data=digits"], "table2 decides about data itself; leave it out of"),
        (["table2", "--set", "target=loss <= 0.5"], "table2 needs an accuracy as its target, got 'loss <="),
        (["hidden-state", "--set", "target=0.8"], "hidden-state decides about target itself; leave it"),
        (["catch-up", "--set", "clients=30"], "catch-up decides about clients itself; leave it out of"),
        (["frontier", "--set", "client_quantizer=qsgd:2"], "frontier decides about client_quantizer itself"),
        (["frontier", "--seeds", "2"], "frontier has seeds of its own for each task; leave the seeds out"),
        (["table1", "--jobs", "0"], "0 is not in the range x>=1"),
        (
            ["table1", "--set", "uplods=3"],
            "unknown setting 'uplods' (the changes); did you mean 'uploads'?",
        ),
        (["table1", "--data", "nope.npz"], "unknown data 'nope.npz'"),
        (["theory", "--data", "faces"], "theory makes its own data; leave the data out"),
        (["mushrooms", "--set", "uploads=3"], "mushrooms has a protocol of its own"),
        (["mushrooms", "--data", "faces"], "faces are images that are generated, not a table"),
        (["mushrooms", "--data", "digits"], "digits is not a table of numbers with two classes"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    check_mistake(sentence, "reproduce", *arguments, "--out", str(tmp_path))


def test_the_folder_of_other_settings_is_not_mixed_in(tmp_path: Path) -> None:
    tiny("table2", tmp_path, uploads=40)
    with pytest.raises(ConfigError, match="holds results of something else"):
        tiny("table2", tmp_path, uploads=60)


def _row(name: str, uploads: list[int | None], up: float, down: float) -> rows.Row:
    there = [u for u in uploads if u is not None]
    mean = sum(there) / len(there) / 1000 if there else math.nan
    return rows.Row(
        name=name,
        label=name,
        runs=len(uploads),
        reached=len(there),
        diverged=None,
        uploads=uploads,
        best_accuracy=[0.9] * len(uploads),
        thousands=(mean, 0.0),
        kb_up=up,
        kb_down=down,
        mb_up=(mean * up, 0.0),
        mb_down=(mean * down / 10, 0.0),
        mb_up_by_seed=[None if u is None else u * up / 1000 for u in uploads],
        mb_down_by_seed=[None if u is None else u * down / 10_000 for u in uploads],
        paper_thousands=None,
        paper_kb_up=None,
        paper_kb_down=None,
        paper_mb_up=None,
        paper_mb_down=None,
        formula_mb_up=None,
        formula_mb_down=None,
    )


def test_claims_hold_on_the_papers_own_table_but_for_the_caption_of_its_figure() -> None:
    published = {"fedbuff": _row("fedbuff", [26_100] * 2, 117.128, 117.128)}
    for (client, server), (thousands, _) in cells.TABLE1.items():
        sizes = [paper_bytes(f"affine:{bits}") / 1000 for bits in (client, server)]
        name = f"affine-{client}-{server}"
        published[name] = _row(name, [round(1000 * thousands)] * 2, *sizes)
    pairs = {name: rows.Paired.of(row, published["fedbuff"]) for name, row in published.items()}
    held = [claim.held for claim in claims.table1(published, pairs, "affine", "affine")]
    assert held == [True, True, True, True, True, False]  # 8/2 saves 2.9× up, 2/8 saves 1.7× down


def test_claims_about_a_run_that_never_reached_the_target_are_undecided() -> None:
    base = _row("fedbuff", [20_000, 22_000], 117.0, 117.0)
    for mine, theirs in (
        (_row("x", [24_000, None], 15.0, 15.0), base),
        (base, _row("x", [None, 9000], 1, 1)),
    ):
        pair = rows.Paired.of(mine, theirs)
        assert claims.at_most(pair.ratio, 1.5) is claims.at_least(pair.fewer_up, 1) is None
        assert all(claim.held is None for claim in claims.concurrency({"100": pair}))


def test_changes_that_are_refused_leave_no_folder_and_their_order_does_not_matter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="uploadz"):
        tiny("table2", tmp_path / "out", uploadz=40)
    assert not (tmp_path / "out").exists()
    for names in (("uploads", "clients"), ("clients", "uploads")):
        changes = {name: {**TINY, "uploads": 20}[name] for name in names}
        reproduce("table2", quick=True, seeds=1, out=str(tmp_path / "out"), changes=changes)


def test_claims_about_seeds_that_diverged_are_undecided() -> None:
    def end(*accuracies: float | None) -> hidden_state.Ended:
        errors = [None if one is None else 1.0 for one in accuracies]
        return hidden_state.Ended("x", (0.0, 0.0), (0.0, 0.0), [*accuracies], errors, None)

    ends = {cell.name: end(0.9, 0.9, 0.91) for cell in cells.hidden_state()}
    ends["hidden-qafel-bucketed"] = end(0.9, None, 0.91)
    decided = {claim.text: claim.held for claim in hidden_state._claims(ends)}
    assert decided["at 4 bits QAFeL is at most 2 points less accurate than FedBuff"] is None
    assert decided["at 2 bits QAFeL is at most 2 points less accurate than FedBuff"] is True


def test_a_claim_is_held_only_if_its_whole_interval_is() -> None:
    assert claims.at_most((0.5, math.nan, math.nan), 1.2) is None  # one seed has no interval
    assert claims.at_least((0.0, 0.0, 0.0), 0) is None  # "more" is not "as much"
    assert claims.at_most((1.1, 0.9, 1.15), 1.2) is True
    assert claims.at_most((1.1, 0.9, 1.25), 1.2) is None
    assert claims.at_most((1.4, 1.25, 1.6), 1.2) is False
    assert claims.at_least((7.0, 6.1, 8.0), 6) is True
    assert claims.at_least((7.0, 5.9, 8.0), 6) is None
    assert claims.every([True, None]) is None
    assert claims.every([True, None, False]) is False


def test_intervals_cover_what_they_should() -> None:
    rng, means, ratios = np.random.default_rng(0), 0, 0
    for _ in range(400):
        value, low, high = mean_interval(rng.normal(3.0, 2.0, 3))
        assert low < value < high
        means += low <= 3.0 <= high
        base = rng.normal(5.0, 0.5, 3)
        value, low, high = ratio_interval(0.8 * base + rng.normal(0.0, 0.5, 3), base)
        assert low < value < high
        ratios += low <= 0.8 <= high
    assert 370 <= means <= 395  # 95 % are 380
    assert 370 <= ratios <= 395
    assert ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.0)
    assert all(map(math.isnan, ratio_interval([1.0, 2.0], [0.0, 0.0])))
    assert math.isnan(mean_interval([1.0])[1])


def slow_delta(learner: Logistic, x: Any, client: int) -> Any:
    """Local training in plain numpy."""
    rows = learner.rows[client]
    samples, signs, y = learner.x64[rows], learner.signs[rows], x.astype(np.float64)
    for _ in range(logistic.STEPS):
        pull = signs / (1 + np.exp(signs * (samples @ y)))
        y = y - logistic.RATE * (learner.ridge * y - samples.T @ pull / len(rows))
    return (y - x).astype(np.float32)


@pytest.mark.parametrize("clients", [100, 10])  # few samples each: by the scores; many: by the samples
def test_local_training_of_the_study_equals_plain_numpy_and_its_optimum_is_one(clients: int) -> None:
    learner = Logistic(datasets.load("breast-cancer"), clients)
    x = np.random.default_rng(0).standard_normal(learner.x.size).astype(np.float32)
    for client in (0, 7, clients - 1):
        mine = learner.delta(Task(client, 0, 0, 0, x), learner.samples(client))
        slow = slow_delta(learner, x, client)
        assert np.abs(mine - slow).max() <= 1e-5 * np.abs(slow).max()
    optimum = learner.optimum()
    rng = np.random.default_rng(1)
    for scale in (1e-3, 1.0, 10.0):
        assert learner.objective(scale * rng.standard_normal(learner.x.size)) > optimum


@pytest.mark.filterwarnings("ignore::qafel.errors.QafelWarning")
def test_the_study_records_the_simulator_with_the_authors_delays() -> None:
    learner = Logistic(datasets.load("breast-cancer"))
    chosen = mushrooms.runs(learner.x.size)["QAFeL qsgd c4 s8"]
    gaps = mushrooms.run(learner, 0.0, chosen, 100, 3)
    run = Simulation(logistic.settings(chosen, 1000, 3), learner, workers=2, durations=mushrooms.delays(3))
    run.run()
    assert gaps[0][0] == 0
    assert gaps[-1] == (100, learner.objective(run.server.x.astype(np.float64)))


def test_mushrooms_in_miniature_continues(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(mushrooms, "QUICK_STEPS", 120)
    study = reproduce("mushrooms", quick=True, seeds=1, out=tmp_path, jobs=2)
    gaps = study.numbers["gaps"]
    assert gaps["FedBuff"]["100"] > 0
    assert set(gaps) == set(mushrooms.REFERENCE)
    monkeypatch.setattr(mushrooms, "run", pytest.fail)
    again = reproduce("mushrooms", quick=True, seeds=1, out=tmp_path, jobs=2)
    assert again.numbers["gaps"] == gaps


@pytest.mark.skipif(DATA is None, reason="QAFEL_DATA does not name the folder of mushrooms.libsvm.gz")
@pytest.mark.filterwarnings("ignore::qafel.errors.QafelWarning")
def test_on_the_real_mushrooms_f_star_and_the_first_thousand_steps_are_the_authors() -> None:
    learner = Logistic(datasets.load(str(Path(DATA or "") / "mushrooms.libsvm.gz")))
    optimum = learner.optimum()
    assert abs(optimum - mushrooms.OPTIMUM) < 1e-9
    chosen = mushrooms.runs(learner.x.size)
    for name, digits in {"FedBuff": 1e-4, "QAFeL topk c100 s1": 1e-4, "QAFeL qsgd c4 s8": 0.15}.items():
        gaps = dict(mushrooms.run(learner, optimum, chosen[name], 1000, 0))
        for mark, theirs in zip((100, 1000), mushrooms.REFERENCE[name], strict=False):
            assert gaps[mark] == pytest.approx(theirs, rel=digits)


def test_the_problem_of_the_theorem_has_the_constants_it_claims() -> None:
    posed = problem.Problem(0.1)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(problem.SIZE) for _ in range(2))

    def gradient(client: int, w: Any) -> Any:
        rows = posed.signed[client]
        return -(rows.T @ (1 / (1 + np.exp(rows @ w)))) / problem.SAMPLES

    for client in range(problem.CLIENTS):
        assert np.linalg.norm(gradient(client, x)) <= 1
        apart = np.linalg.norm(gradient(client, x) - gradient(client, y))
        assert apart <= posed.smoothness * np.linalg.norm(x - y)
    assert np.allclose(np.linalg.norm(posed.flat, axis=1), 1)


def test_a_run_stays_below_the_theorems_bound_and_the_condition_holds() -> None:
    chosen = problem.quantizers("both", 2)
    measured = problem.measure(chosen, 250, 0)
    seen = problem.setting(chosen, 250, measured.max_staleness)
    assert formulas.condition(seen) <= 1
    assert 0 < measured.mean_gradient <= formulas.bound(seen).total
    assert 0 < measured.mean_error <= formulas.hidden_state_bound(seen)
    assert len(measured.gradients) == 251


def test_all_names_every_study() -> None:
    from qafel.cli.reproduce import NAMES

    assert set(NAMES) == set(STUDIES)


def test_every_committed_result_is_on_one_page_of_the_docs_and_says_what_made_it() -> None:
    root = Path(__file__).parents[2]
    pages = sorted((root / "results").rglob("*.md"))
    text = "".join(path.read_text(encoding="utf-8") for path in (root / "docs").rglob("*.md"))
    assert len(pages) >= 9
    for page in pages:
        assert text.count(f"{page.relative_to(root)})") == 1, page
        made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        told = f"Made by `{made['command']}`, commit {made['commit']}, on {made['machine']['processor']}"
        shown = page.read_text(encoding="utf-8")
        assert told in " ".join(shown.split()), page
        for figure in re.findall(r"!\[[^]]*\]\(([^)]*)\)", shown):
            assert (page.parent / figure).exists(), (page, figure)


def test_every_committed_number_says_which_command_made_it_at_which_clean_commit_and_where() -> None:
    files = sorted((Path(__file__).parents[2] / "results").rglob("*.json"))
    assert len(files) > 20
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        made = content.get("provenance", content)
        assert made["command"], file
        assert re.fullmatch("[0-9a-f]{12}", made["commit"]), file
        assert made["machine"]["processor"], file


def test_all_gives_each_study_the_data_that_it_takes() -> None:
    from qafel.cli.reproduce import PAPER, _data_for

    images = {study: _data_for(study, "smiles32.npz") for study in PAPER}
    assert images.pop("mushrooms") is images.pop("theory") is None
    assert set(images.values()) == {"smiles32.npz"}
    tables = {study: _data_for(study, "mushrooms.libsvm.gz") for study in PAPER}
    assert tables.pop("mushrooms") == "mushrooms.libsvm.gz"
    assert set(tables.values()) == {None}
