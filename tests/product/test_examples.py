"""Every example runs in its quick form as a user would run it, and leaves a table and a figure."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from qafel.sim import simulate

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "shared")


def test_the_examples_are_the_ones_that_the_docs_name_and_each_fits_on_a_screen() -> None:
    text = (FOLDER.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert all(f"examples/{name}.py" in text for name in EXAMPLES)
    assert len(EXAMPLES) == 7
    for name in EXAMPLES:
        assert (FOLDER / f"{name}.py").read_text(encoding="utf-8").count("\n") < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_and_leaves_a_table_and_a_figure(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--quick"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "runs" / "examples" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    assert all(row["uploads"] > 0 and row["MB up"] > 0 for row in rows)
    assert (tmp_path / "runs" / "examples" / f"{name}.png").stat().st_size > 10_000
    if {row["run"] for row in rows} == {"qafel", "fedbuff"}:
        assert rows[0]["MB up"] < rows[1]["MB up"] / 3


def example(name: str) -> Any:
    """A callback of docs/experiments.md."""
    text = (FOLDER.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if name in block)
    names: dict[str, Any] = {}
    exec(block, names)
    return names[name]


def logged(callback: Any) -> None:
    x = np.arange(60, dtype=np.float32).reshape(20, 3) / 60
    data = [(x[k::4], x[k::4].sum(1)) for k in range(4)]
    simulate(model=nn.Linear(3, 1), data=data, uploads=8, evaluate_every=4, workers=1, callbacks=[callback])


@pytest.mark.install
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_the_docs_callback_logs_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as run:
        logged(example("log_to_mlflow"))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [entry.step for entry in history] == [0, 4, 8]


@pytest.mark.install
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_the_docs_callback_logs_to_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.chdir(tmp_path)
    run = wandb.init(mode="offline", project="qafel", dir=str(tmp_path))
    logged(example("log_to_wandb"))
    assert run.summary["MB up"] > 0
    run.finish()


def test_the_docs_have_the_numbers_of_the_committed_examples() -> None:
    text = (FOLDER.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    for name in EXAMPLES:
        result = json.loads((FOLDER.parent / "results" / "examples" / f"{name}.json").read_bytes())
        assert "dirty" not in result["commit"]
        for row in result["rows"]:
            numbers = f"| {row['start']:.3f} | {row['value']:.3f} | {row['uploads']:,} | {row['MB up']:.2f} |"
            assert f"| {row['run']} | {row['metric']} {numbers}" in text
