"""Looking at results: figures, tables, frames, models, notebooks; and that nothing is overwritten."""

import itertools
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from command import call, call_json, check_mistake, settings
from qafel import report, tune
from qafel.errors import ConfigError
from qafel.reproduce import figures
from qafel.reproduce.rows import Row
from qafel.runs.curves import Against
from qafel.sim import compare, load, simulate

EXPERIMENT: dict[str, Any] = {
    "data": "digits", "model": "mlp", "partition": "dirichlet:1", "clients": 60, "rate": 20.0, "uploads": 300,
    "evaluate_every": 100, "workers": 1,
}  # fmt: skip
SMALL = settings(**{name: value for name, value in EXPERIMENT.items() if name != "workers"})
ROOT = Path(__file__).parents[2]


def covered(figure: Any) -> bool:
    """Whether a legend lies over a panel."""
    figure.canvas.draw()
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]
    boxes = [legend.get_window_extent() for legend in legends]
    assert boxes
    return any(axis.get_window_extent().padded(-2).overlaps(box) for axis in figure.axes for box in boxes)


def test_result_figure_needs_no_path_and_shows_in_a_notebook(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    result = simulate(**EXPERIMENT)
    figure: Any = result.figure()
    assert isinstance(figure, Figure)
    assert cast("Any", figure)._repr_png_().startswith(b"\x89PNG")
    assert not covered(figure)
    result.figure(tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")


def test_figures_leave_the_users_matplotlib_alone() -> None:
    import matplotlib
    from matplotlib import pyplot

    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    report.bands([("uploads", [("qafel", [([0, 1], [0, 1])])])], "accuracy")
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend() == backend
    assert not pyplot.get_fignums()


def test_a_result_is_a_table_to_take_away(tmp_path: Path) -> None:
    result = simulate(**EXPERIMENT)
    frame = result.frame()
    assert list(frame["uploads"]) == [0, 100, 200, 300]
    assert frame["smoothed accuracy"].iloc[-1] == result.summary.accuracy
    result.to_csv(tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert lines[0].startswith("uploads,version,time,")
    assert len(lines) == 5
    assert "MB down" in result._repr_html_()


def test_load_into_a_module_gives_the_models_metrics() -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    def net() -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = simulate(**EXPERIMENT | {"model": net})
    module = result.load_into(net())
    assert torch.equal(module[1].weight, torch.from_numpy(result.parameters()["1.weight"]))
    frozen[1].bias.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"has no parameter '1.bias' to train"):
        result.load_into(frozen)
    with pytest.raises(ConfigError, match=r"'1.bias' has the shape \(10,\) in the result, and \(9,\)"):
        result.load_into(nn.Sequential(nn.Flatten(), nn.Linear(64, 9)))
    with pytest.raises(ConfigError, match=r"has no parameter '2.bias', which the module trains"):
        result.load_into(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10)))


@pytest.mark.slow
def test_qafel_compare_groups_the_seeds_of_run_folders_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for algorithm in ("qafel", "fedbuff"):
        for seed in (0, 1):
            folders.append(f"{algorithm}-seed{seed}")
            simulate(**EXPERIMENT, algorithm=algorithm, seed=seed, out=folders[-1])
    answer = call_json("compare", *folders)
    assert [(row["name"], row["runs"]) for row in answer["rows"]] == [("qafel", 2), ("fedbuff", 2)]
    assert answer["rows"][0]["against"]["seeds"] == [0, 1]
    rows = compare([load(folder) for folder in folders]).rows
    assert [(row.name, row.runs) for row in rows] == [("qafel", 2), ("fedbuff", 2)]


@pytest.mark.parametrize("partition", ["celeba", "skewed:0.5"])
def test_seeds_that_deal_another_number_of_clients_are_one_configuration(
    partition: str, tmp_path: Path
) -> None:
    small = {**EXPERIMENT, "partition": partition, "clients": None, "uploads": 20}
    drawn = [simulate(**small, seed=seed, out=tmp_path / str(seed)) for seed in range(2)]
    for seed, run in enumerate(drawn):
        config = (tmp_path / str(seed) / "config.toml").read_text(encoding="utf-8")
        assert f"\n# clients = {run.summary.clients}, drawn with the seed\n" in config
        assert "\nclients" not in config
    chosen = [simulate(**small | {"clients": count}) for count in (40, 50)]
    assert drawn[0].summary.clients != drawn[1].summary.clients
    rows = compare([*drawn, *chosen]).rows
    assert [row.runs for row in rows] == [2, 1, 1]


@pytest.mark.slow
def test_nothing_overwrites_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = call_json("compare", "qafel", *SMALL)["figure"]
    second = call_json("compare", "qafel", *SMALL, "--set", "local_rate=0.2")["figure"]
    assert (first, second) == ("runs/compare-1/compare.png", "runs/compare-2/compare.png")
    before = Path("runs/compare-1/compare.json").read_bytes()
    check_mistake("holds results of something else", "compare", "fedbuff", *SMALL, "--out", "runs/compare-1")
    check_mistake(
        "holds results of something else", "sweep", *SMALL, "--vary", "epochs=1,2", "--out", "runs/compare-1"
    )
    assert Path("runs/compare-1/compare.json").read_bytes() == before
    again = call_json(
        "compare", "qafel", *SMALL, "--seeds", "2"
    )  # more seeds of the same are no other result
    assert again["figure"] == first
    assert again["rows"][0]["runs"] == 2
    check_mistake("choose another folder", "run", *SMALL, "--out", "runs/compare-1")


@pytest.mark.slow
def test_one_word_for_one_column_in_run_and_compare(tmp_path: Path) -> None:
    one = call("run", *SMALL, "--out", str(tmp_path / "run")).stdout.splitlines()[1].split("  ")
    two = (
        call("compare", "qafel", "fedbuff", *SMALL, "--out", str(tmp_path / "two"))
        .stdout.splitlines()[1]
        .split("  ")
    )
    words = [[word.strip() for word in line if word.strip()] for line in (one, two)]
    assert words[0][:6] == words[1] == ["run", "accuracy", "uploads", "MB up", "MB down", "time"]


def test_the_legends_of_many_lines_cover_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(report, "save", lambda figure, *paths: drawn.append(figure))
    lines = [
        (f"QAFeL, 4-bit QSGD in max-norm buckets, number {k}", [1, 2, 3], [1.0, 2.0, k]) for k in range(9)
    ]
    figures.lines(tmp_path / "a", [("uploads", "accuracy", lines)], logarithmic=("",))
    figures.lines(tmp_path / "b", [("bits", "R", lines[:4])] * 3, logarithmic=("y", "xy", "xy"))
    assert len(drawn) == 2
    assert not any(covered(figure) for figure in drawn)


def test_tune_png_names_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(report, "save", lambda figure, *paths: drawn.append(figure))
    numbers: Any = {"uploads": 1.0, "level": 0.9, "share": 0.95, "share_of_bytes": 0.1, "seeds": [0]}
    intervals: Any = dict.fromkeys(("ratio", "fewer_up", "fewer_down"), (1.0, 0.9, 1.1))
    lists: Any = {"by_seed": [1.0], "reference_by_seed": [1.0], "reference": "fedbuff", "metric": "accuracy"}
    candidates = [
        tune.Candidate(
            client=f"rotated:bits=0.{k}", server="deadzone:step=1.8", seeds=1, diverged=0, cost=0.1,
            against=Against(mb_up=1.0 + k, mb_down=2.0 - 0.1 * k, **numbers, **intervals, **lists),
        )
        for k in range(1, 5)
    ]  # fmt: skip
    tune.draw(candidates, tmp_path / "tune.png")
    axis, beside = drawn[0].axes[:2]
    (listed,) = beside.texts
    assert all(candidate.label in listed.get_text() for candidate in candidates)
    assert [text.get_text() for text in axis.texts] == ["1", "2", "3", "4"]
    drawn[0].canvas.draw()
    assert not axis.get_window_extent().overlaps(listed.get_window_extent())
    width = drawn[0].get_window_extent().width
    assert listed.get_window_extent().x1 <= width


def test_the_bars_of_table_2_have_whole_names_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(report, "save", lambda figure, *paths: drawn.append(figure))
    labels = ["FedBuff", "QAFeL, client 8-bit, server top 10 %", "QAFeL, client 4-bit, server top 10 %"]
    shared: Any = dict.fromkeys(Row.__struct_fields__)
    rows = [
        Row(**shared | {"label": label, "uploads": [1000], "thousands": (1.0, 0.1), "mb_up": (1.0, 0.1),
                        "mb_down": (1.0, 0.1), "runs": 1, "reached": 1})
        for label in labels
    ]  # fmt: skip
    figures.table2(tmp_path / "table2", rows)
    drawn[0].canvas.draw()
    ticks = drawn[0].axes[0].get_xticklabels()
    assert [" ".join(tick.get_text().split()) for tick in ticks] == [
        label.replace(",", "") for label in labels
    ]
    boxes = [tick.get_window_extent() for tick in ticks]
    assert not any(left.overlaps(right) for left, right in itertools.pairwise(boxes))


def test_the_readmes_loop_compares_both_of_its_runs() -> None:
    text = (ROOT / "README.md").read_text()
    assert "compare(results)" in text


@pytest.mark.slow
def test_the_notebook_goes_from_import_to_a_figure_with_three_algorithms_and_error_bars(
    tmp_path: Path,
) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(book, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2
    pages = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("<progress" in page for page in pages)
    table = next(page for page in pages if "÷ fedbuff" in page)
    assert all(f"<td>{name}</td>" in table for name in ("qafel", "fedbuff", "fedavg"))
    assert "±" in table
    (folder,) = (tmp_path / "runs").glob("sweep-*")
    rows = json.loads((folder / "sweep.json").read_text())["rows"]
    assert [row["runs"] for row in rows] == [3, 3, 3]
    assert all(np.isfinite(row["metrics"]["accuracy"][1]) for row in rows)
