"""The measure of a comparison: ratios of uploads and bytes where mean curves cross a level."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from qafel.errors import ConfigError
from qafel.runs.comparison import Comparison, Diverged, compare
from qafel.runs.curves import against
from qafel.runs.maps import draw_map
from qafel.runs.result import Result
from qafel.runs.summary import Point, Summary


def result(
    curve: Any, *, seed: int = 0, every: int = 100, up: int = 1000, metric: str = "accuracy", **settings: Any
) -> Result:
    """A result whose smoothed metric is ``curve``, evaluated every so many uploads of ``up`` bytes."""
    points = [
        Point(
            uploads=k * every, version=k, time=float(k), metrics={metric: value}, smoothed={metric: value},
            bytes_up=k * every * up, bytes_down=k * up, staleness=1.0, in_flight=3, residual=0.0,
        )
        for k, value in enumerate(curve)
    ]  # fmt: skip
    last = points[-1]
    values = {"algorithm": "qafel", "target": None, "uploads": last.uploads, **settings, "seed": seed}
    summary = Summary(
        algorithm=values["algorithm"], client_quantizer="", server_quantizer="", reason="uploads",
        uploads=last.uploads, version=last.version, time=last.time, metrics=last.metrics,
        smoothed=last.smoothed, bytes_up=last.bytes_up, bytes_down=last.bytes_down, downlink="broadcast",
        clients=50, size=10, staleness={"mean": 1.0, "histogram": {}}, concurrency={"mean": 3.0}, rejected={},
        lost=0, turned_away=0, target=values.get("reached"), seconds={}, workers=1, digest="",
        settings=values, provenance={},
    )  # fmt: skip
    return Result(summary, points, None, None, None)


def rising(slope: float, top: float = 0.9, start: float = 0.5, count: int = 41) -> list[float]:
    return [min(top, start + slope * k) for k in range(count)]


def test_a_run_that_learns_half_as_fast_needs_twice_the_uploads() -> None:
    comparison = against([result(rising(0.02), up=10)], [result(rising(0.04), up=1000)], "base", "accuracy")
    assert comparison is not None
    assert comparison.level == pytest.approx(0.88)
    assert comparison.uploads == pytest.approx(1900)
    assert comparison.ratio[0] == pytest.approx(2.0)
    assert math.isnan(comparison.ratio[1])  # one seed says nothing about others
    assert comparison.fewer_up[0] == pytest.approx(50)
    assert comparison.fewer_down[0] == pytest.approx(50)


def test_a_metric_that_falls_is_compared_like_one_that_rises() -> None:
    fast, slow = ([1 - value for value in rising(slope)] for slope in (0.04, 0.02))
    comparison = against([result(slow, metric="loss")], [result(fast, metric="loss")], "base", "loss")
    assert comparison is not None
    assert comparison.ratio[0] == pytest.approx(2.0)


def noisy(slope: float, seed: int, **options: Any) -> Result:
    noise = np.random.default_rng(seed).normal(0, 0.01, 41)
    return result(
        [value + float(e) for value, e in zip(rising(slope), noise, strict=True)], seed=seed, **options
    )


def test_the_interval_holds_the_ratio_and_grows_narrow_with_the_seeds() -> None:
    widths = []
    for seeds in (4, 32):
        mine = [noisy(0.02, 100 + seed) for seed in range(seeds)]
        base = [noisy(0.025, 500 + seed) for seed in range(seeds)]
        for k, run in enumerate(base):
            run.summary.settings["seed"] = 100 + k
        comparison = against(mine, base, "base", "accuracy")
        assert comparison is not None
        assert comparison.seeds == list(range(100, 100 + seeds))
        _, low, high = comparison.ratio
        assert low <= 1.25 <= high
        assert low <= comparison.ratio[0] <= high
        widths.append(high - low)
    assert widths[1] < widths[0]
    assert against(mine, base, "base", "accuracy") == comparison  # the same seeds, the same interval


def test_first_crossings_of_single_seeds_stay_beside_the_mean() -> None:
    flat = result([0.5] * 41, seed=1)
    comparison = against(
        [result(rising(0.02), seed=0), flat],
        [result(rising(0.04), seed=s) for s in (0, 1)],
        "base",
        "accuracy",
    )
    assert comparison is not None
    assert comparison.by_seed == [pytest.approx(1900), None]
    assert comparison.reference_by_seed == [pytest.approx(950)] * 2
    assert comparison.uploads == math.inf
    assert comparison.ratio[0] == math.inf


def test_only_seeds_that_both_have_are_compared() -> None:
    mine = [result(rising(0.02), seed=seed) for seed in (0, 1, 2)]
    base = [result(rising(0.04), seed=seed) for seed in (2, 3)]
    comparison = against(mine, base, "base", "accuracy")
    assert comparison is not None
    assert comparison.seeds == [2]
    assert against(mine, [result(rising(0.04), seed=9)], "base", "accuracy") is None


def test_a_mean_curve_goes_as_far_as_all_of_its_runs_do() -> None:
    early, late = rising(0.04)[:11], rising(0.02)[:21]  # both end when they reach 0.9
    base = [result(early, seed=0), result(late, seed=1)]
    comparison = against(base, base, "base", "accuracy")
    assert comparison is not None
    assert list(comparison.ratio) == pytest.approx([1.0, 1.0, 1.0])
    assert comparison.level == pytest.approx(0.5 + 0.95 * 0.285)  # the mean of both, at 900 and 1,000 uploads
    assert comparison.uploads < 1000
    assert comparison.mb_up == pytest.approx(comparison.uploads * 1000 / 1e6)
    assert comparison.by_seed[1] == pytest.approx(1353.75)  # beyond 1,000, where the other one has ended


def test_a_reference_that_learned_nothing_is_no_measure() -> None:
    assert against([result(rising(0.02))], [result([0.5] * 41)], "base", "accuracy") is None


def test_three_seeds_of_one_configuration_become_one_row() -> None:
    runs = [
        result(rising(0.02 + 0.001 * seed), seed=seed, local_rate=rate)
        for rate in (0.1, 0.2)
        for seed in range(3)
    ]
    runs += [result(rising(0.04), seed=seed, algorithm="fedbuff", local_rate=0.1) for seed in range(3)]
    comparison = compare(runs)
    assert {row.name: row.runs for row in comparison.rows} == {
        "qafel, local_rate=0.1": 3, "qafel, local_rate=0.2": 3, "fedbuff": 3,
    }  # fmt: skip
    assert comparison.reference == "fedbuff"
    assert comparison.rows[0].metrics["accuracy"][1] == pytest.approx(
        np.std([0.9, 0.9, 0.9], ddof=1), abs=1e-9
    )
    text = "\n".join(table.markdown() for table in comparison.tables())
    assert "÷ fedbuff" in text
    assert "[95 % interval]" in text
    assert compare(runs, reference="qafel, local_rate=0.1").reference == "qafel, local_rate=0.1"
    with pytest.raises(ConfigError, match="unknown reference 'fedavg'"):
        compare(runs, reference="fedavg")
    with pytest.raises(ConfigError, match="have the seed 0"):
        compare([runs[0], runs[0]])
    with pytest.raises(ConfigError, match="no run to compare"):
        compare([])


def test_runs_that_diverged_are_counted_and_named() -> None:
    groups: Any = {
        "good": [result(rising(0.02), seed=0), Diverged("it did", "")], "bad": [Diverged("it did", "")]
    }  # fmt: skip
    comparison = Comparison(groups)
    assert [row.diverged for row in comparison.rows] == [1, 1]
    assert comparison.reference == "good"
    assert "1/2" in comparison.tables()[0].markdown()
    assert "bad (diverged)" in legend_of(comparison.figure())


def legend_of(figure: Any) -> str:
    (legend,) = figure.legends
    return " ".join([legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())])


def test_mean_and_standard_deviation_are_drawn_and_labelled() -> None:
    figure = compare({"qafel": [noisy(0.02, seed) for seed in range(3)]}).figure()
    assert "mean ± standard deviation over 3 seeds" in legend_of(figure)
    runs = np.array([[p.smoothed["accuracy"] for p in noisy(0.02, seed).points] for seed in range(3)])
    (line,), (band,) = figure.axes[0].lines, figure.axes[0].collections
    assert line.get_ydata()[-1] == pytest.approx(runs.mean(0)[-1])
    top = max(y for _, y in band.get_paths()[0].vertices)
    assert top == pytest.approx((runs.mean(0) + runs.std(0, ddof=1)).max(), rel=1e-3)


def test_megabytes_are_on_a_logarithmic_axis_where_runs_differ_by_more_than_five_times() -> None:
    near = compare({"a": result(rising(0.02)), "b": result(rising(0.02), up=4000)}).figure()
    far = compare({"a": result(rising(0.02)), "b": result(rising(0.02), up=60_000)}).figure()
    assert [axis.get_xscale() for axis in near.axes] == ["linear"] * 4
    assert [axis.get_xscale() for axis in far.axes] == ["linear", "log", "log", "linear"]


def test_records_are_flat_numbers_for_a_frame_and_a_csv_file() -> None:
    comparison = compare({
        "slow": [result(rising(0.02), seed=s) for s in (0, 1)],
        "fast": [result(rising(0.04), seed=s) for s in (0, 1)],
    }, reference="fast")  # fmt: skip
    first = comparison.records()[0]
    assert first["uploads ratio"] == pytest.approx(2.0)
    assert first["uploads ratio low"] == pytest.approx(2.0)
    assert comparison.frame().loc[0, "MB up to level"] == pytest.approx(1.9)
    assert comparison.to_csv().splitlines()[0].startswith("run,seeds,diverged,accuracy,accuracy std")
    assert "<td" in comparison._repr_html_()
    assert msgspec.json.encode(comparison.rows)


def test_from_five_seeds_on_the_interval_holds_the_ratio_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)

    def group(tempo: float) -> list[Result]:
        runs = []
        for seed in range(5):
            own = tempo * math.exp(0.2 * chance.standard_normal())  # seeds differ by a fifth
            curve = 0.9 - 0.4 * np.exp(-np.arange(61) / own) + chance.normal(0, 0.005, 61)
            runs.append(result(curve.tolist(), seed=seed))
        return runs

    compared = [against(group(10), group(8), "base", "accuracy") for _ in range(100)]
    held = sum(one is not None and one.ratio[1] <= 1.25 <= one.ratio[2] for one in compared)
    assert held >= 90


def test_a_reference_that_got_worse_is_no_measure() -> None:
    falling = [result([0.5 - 0.002 * k for k in range(41)], seed=s, algorithm="fedbuff") for s in (0, 1)]
    rising_ = [result(rising(0.02), seed=s) for s in (0, 1)]
    assert against(rising_, falling, "fedbuff", "accuracy") is None
    comparison = compare({"qafel": rising_, "fedbuff": falling})
    assert len(comparison.tables()) == 1


def test_a_metric_that_is_not_a_number_stops_no_comparison() -> None:
    comparison = compare([result([math.nan] * 5, seed=seed, metric="auc") for seed in (0, 1)])
    assert math.isnan(comparison.rows[0].metrics["auc"][0])
    assert "–" in comparison.tables()[0].markdown()


def test_runs_without_a_metric_in_common_get_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no metric in common; they measured accuracy and mse"):
        compare({"a": result(rising(0.02)), "b": result(rising(0.02), metric="mse")})
    with pytest.raises(ConfigError, match="is a Result or its folder, got float"):
        compare({"a": [1.0]})
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        compare("nowhere")


def test_different_functions_are_different_configurations() -> None:
    runs = [result(rising(0.02), seed=seed) for seed in (0, 1)]
    object.__setattr__(runs[1], "summary", msgspec.structs.replace(runs[1].summary, functions="other"))
    assert list(compare(runs).groups) == ["qafel", "qafel (2)"]
    numbers = [result(rising(0.02), seed=0, rate=100), result(rising(0.02), seed=1, rate=100.0)]
    assert list(compare(numbers).groups) == ["qafel"]


def test_a_row_that_cannot_be_compared_is_named() -> None:
    groups: Any = {
        "fedbuff": [result(rising(0.04), seed=s, algorithm="fedbuff") for s in (0, 1)],
        "qafel": [result(rising(0.02), seed=s) for s in (0, 1)],
        "other": [result(rising(0.02), seed=7)],
    }
    assert any("other is not compared" in note for note in compare(groups).notes)


def test_why_nothing_can_be_compared_is_said() -> None:
    groups: Any = {
        "fedbuff": [result([0.5] * 40, seed=s, algorithm="fedbuff") for s in (0, 1)],
        "qafel": [result(rising(0.02), seed=s) for s in (0, 1)],
    }
    (note,) = compare(groups).notes
    assert note.startswith("qafel cannot be compared: the curve of fedbuff has no gain in accuracy")


def test_an_evaluation_without_the_metric_is_left_out_of_the_curve() -> None:
    whole = [result(rising(0.02), seed=s) for s in (0, 1)]
    holes = [result(rising(0.02), seed=s) for s in (0, 1)]
    holes[1].points[3] = msgspec.structs.replace(
        holes[1].points[3], metrics={"other": 1.0}, smoothed={"other": 1.0}
    )
    base = [result(rising(0.04), seed=s, algorithm="fedbuff") for s in (0, 1)]
    compared, plain = (against(runs, base, "fedbuff", "accuracy") for runs in (holes, whole))
    assert compared is not None
    assert plain is not None
    assert compared.ratio[0] == pytest.approx(plain.ratio[0])


def test_a_run_that_ended_at_once_does_not_stop_a_figure_with_a_logarithmic_axis(tmp_path: Path) -> None:
    runs: Any = {"long": result(rising(0.02)), "short": result(rising(0.02, count=3)), "none": result([0.5])}
    compare(runs).figure(tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000


def test_the_map_says_where_some_seeds_diverged() -> None:
    lost = Diverged("the loss is NaN", "")
    groups: Any = {"fedbuff": [result(rising(0.04), seed=s, algorithm="fedbuff") for s in (0, 1)]}
    for a in (1, 2):
        for b in (1, 2):
            ended: list[Any] = [result(rising(0.02), seed=s) for s in (0, 1)]
            groups[f"a={a}, b={b}"] = [*ended, lost] if a == b == 2 else ended
    figure = draw_map(Comparison(groups))
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert sum("1 of 3 diverged" in text for text in shown) == 1
