"""The timeline: equal to its slow twin, restored exactly, and with the concurrency that Little's law
gives.
"""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timeline_twin
from qafel import ConfigError
from qafel.sim import Clock, Timeline
from qafel.sim.timeline import study

KINDS = ("start", "never", "trained", "report", "lost", "deliver", "away")


def rows(timeline: Timeline, count: int) -> list[timeline_twin.Row]:
    return [(KINDS[e.kind], *e[1:6]) for e in islice(timeline, count)]


def first_difference(one: list[timeline_twin.Row], two: list[timeline_twin.Row]) -> object:
    """None when equal; comparing long lists in an assertion would take minutes to explain."""
    assert len(one) == len(two)
    return next(((k, a, b) for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), None)


clocks = st.fixed_dictionaries(
    {
        "arrivals": st.sampled_from(["constant", "poisson", "refill", "closed", "rounds"]),
        "rate": st.sampled_from([1.0, 7.0, 50.0]),
        "duration": st.sampled_from(["halfnormal:1", "exponential:0.5", "fixed:1"]),
        "dropouts": st.sampled_from([0.0, 0.3]),
        "slow_fraction": st.sampled_from([0.0, 0.4]),
        "sampling": st.sampled_from(["replacement", "idle"]),
    }
)


def clock_of(fields: dict[str, object], concurrency: int | None, **more: object) -> Clock:
    if fields["arrivals"] in ("closed", "rounds"):
        concurrency = None
    elif fields["arrivals"] == "refill" and concurrency is None:
        concurrency = 3
    return Clock(**fields, concurrency=concurrency, **more)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    fields=clocks,
    concurrency=st.sampled_from([None, 1, 5]),
    buffer_size=st.integers(1, 4),
    most=st.sampled_from([None, 0, 2]),
    seed=st.integers(0, 99),
)
def test_equals_its_slow_twin_event_by_event(
    fields: dict[str, object], concurrency: int | None, buffer_size: int, most: int | None, seed: int
) -> None:
    clock = clock_of(fields, concurrency)
    timeline = Timeline(clock, clients=9, buffer_size=buffer_size, max_staleness=most, seed=seed)
    twin = timeline_twin.walk(clock, 9, buffer_size, most, seed)
    assert first_difference(rows(timeline, 300), list(islice(twin, 300))) is None


def test_equals_its_slow_twin_beyond_a_block_of_random_numbers() -> None:
    clock = Clock(arrivals="poisson", rate=300, dropouts=0.1, sampling="idle")
    timeline = Timeline(clock, clients=500, buffer_size=10, seed=3)
    twin = timeline_twin.walk(clock, 500, 10, None, 3)
    assert first_difference(rows(timeline, 40_000), list(islice(twin, 40_000))) is None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(fields=clocks, buffer_size=st.integers(1, 4), seed=st.integers(0, 99), catch_up=st.booleans())
def test_event_by_event_with_transfers_equals_its_slow_twin(
    fields: dict[str, object], buffer_size: int, seed: int, catch_up: bool
) -> None:
    """Delays that depend on who, which task and which version: what only the learning would know."""
    downlink = "catch-up" if catch_up else "broadcast"
    clock = clock_of(fields, 4, up_bandwidth=1.0, down_bandwidth=1.0, downlink=downlink)
    timeline = Timeline(clock, clients=9, buffer_size=buffer_size, seed=seed)
    found, version = [], 0
    for event in islice(timeline, 300):
        kind = KINDS[event.kind]
        found.append((kind, *event[1:6]))
        if kind == "report":
            version += sum(row[0] == "report" for row in found) % buffer_size == 0
        if timeline.asks:
            timeline.answer(
                {
                    "start": 0.1 * event.client if catch_up else 0.0,
                    "never": 0.1 * event.client if catch_up else 0.0,
                    "trained": 0.01 * (event.task % 7),
                    "report": 0.3 / max(1, version),
                }[kind]
            )
    twin = timeline_twin.walk(
        clock,
        9,
        buffer_size,
        None,
        seed,
        download=lambda client, version: 0.1 * client if catch_up else 0.0,
        upload=lambda task: 0.01 * (task % 7),
        broadcast=None if catch_up else (lambda version: 0.3 / max(1, version)),
    )
    assert first_difference(found, list(islice(twin, 300))) is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(fields=clocks, cut=st.integers(0, 9000), seed=st.integers(0, 99))
def test_a_restored_timeline_continues_as_if_nothing_had_been(
    fields: dict[str, object], cut: int, seed: int
) -> None:
    clock = clock_of(fields, None)
    one = Timeline(clock, clients=9, buffer_size=3, seed=seed)
    rows(one, cut)
    two = Timeline(clock, clients=9, buffer_size=3, seed=seed)
    two.restore(one.state())
    assert first_difference(rows(one, 500), rows(two, 500)) is None


@pytest.mark.parametrize(("rate", "in_flight"), [(125, 100), (627, 500), (1253, 1000)])
def test_littles_law_gives_the_papers_concurrencies(rate: float, in_flight: int) -> None:
    found = study(Clock(rate=rate), clients=7474, buffer_size=10, uploads=400_000)
    assert found.concurrency == pytest.approx(in_flight, rel=0.02)
    mean = sum(tau * n for tau, n in enumerate(found.staleness)) / sum(found.staleness)
    assert mean == pytest.approx(in_flight / 10, rel=0.05)


def test_rounds_have_no_staleness_and_last_as_long_as_their_slowest() -> None:
    found = rows(Timeline(Clock(arrivals="rounds"), clients=50, buffer_size=5, seed=1), 200)
    reports = [row for row in found if row[0] == "report"]
    assert {row[5] for row in reports} == {0}
    starts = [row[1] for row in found if row[0] == "start"]
    for k in range(5, 80, 5):
        assert len(set(starts[k : k + 5])) == 1
        assert starts[k] == max(row[1] for row in reports[k - 5 : k])


def test_max_staleness_and_drop_outs_are_counted() -> None:
    clock = Clock(rate=50, dropouts=0.25, slow_fraction=0.5)
    found = study(clock, clients=100, buffer_size=2, max_staleness=20, uploads=50_000)
    assert len(found.staleness) <= 21
    assert found.rejected > 0
    assert found.lost / (found.lost + found.uploads) == pytest.approx(0.25, abs=0.02)
    assert found.steps == sum(found.staleness) // 2


def test_the_concurrency_cap_turns_arrivals_away() -> None:
    found = study(Clock(rate=100, concurrency=10), clients=100, buffer_size=5, uploads=20_000)
    assert 9 < found.concurrency <= 10
    assert found.turned_away > 0


def test_a_trace_says_who_starts_when_and_for_how_long(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("start,client,duration\n0,3,2\n0.5,1,0.5\n1,3,1\n")
    timeline = Timeline(Clock(arrivals=f"trace:{path}"), clients=4, buffer_size=2)
    assert rows(timeline, 99) == [
        ("start", 0.0, 0, 3, 0, 0),
        ("start", 0.5, 1, 1, 0, 0),
        ("report", 1.0, 1, 1, 0, 0),  # reports before arrivals at the same time
        ("start", 1.0, 2, 3, 1, 0),
        ("report", 2.0, 0, 3, 0, 0),  # scheduled before the next
        ("report", 2.0, 2, 3, 1, 1),
    ]


def test_durations_from_a_trace_are_drawn_from_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("duration\n1\n5\n")
    timeline = Timeline(Clock(duration=f"trace:{path}", rate=10), clients=4, buffer_size=2)
    found = rows(timeline, 2000)
    began = {row[2]: row[1] for row in found if row[0] == "start"}
    assert {round(row[1] - began[row[2]], 6) for row in found if row[0] == "report"} == {1.0, 5.0}


@pytest.mark.slow
def test_lognormal_durations_have_their_median() -> None:
    timeline = Timeline(Clock(duration="lognormal:3,0.5", rate=10), clients=4, buffer_size=2)
    found = rows(timeline, 20_000)
    began = {row[2]: row[1] for row in found if row[0] == "start"}
    lengths = [row[1] - began[row[2]] for row in found if row[0] == "report"]
    assert np.median(lengths) == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start\n2\n1\n", "must not go back in time"),
        ("start,client\n0,9\n", "below 4"),
        ("start\nsoon\n", "line 2"),
        ("begin\n1\n", "no column start"),
        ("", "is empty"),
    ],
)
def test_a_bad_trace_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Timeline(Clock(arrivals=f"trace:{path}"), clients=4, buffer_size=2)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"arrivals": "sometimes"}, "unknown arrivals"),
        ({"duration": "halfnormal:-1"}, "unknown duration"),
        ({"duration": "weibull"}, "unknown duration"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"dropouts": 1.0}, "dropouts must be"),
        ({"arrivals": "refill"}, "needs a concurrency"),
        ({"arrivals": "closed", "concurrency": 3}, "sets the concurrency itself"),
        ({"arrivals": "trace:/nowhere.csv"}, "cannot read the trace"),
        ({"arrivals": "rounds"}, "a round of 9 clients"),
    ],
)
def test_a_bad_clock_gets_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Timeline(Clock(**fields), clients=4, buffer_size=9)  # type: ignore[arg-type]
