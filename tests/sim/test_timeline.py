"""The timeline: equal to its slow twin, restored exactly, and with the concurrency that Little's law
gives.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timeline_twin
from qafel import ConfigError
from qafel.sim import Settings, Timeline
from qafel.sim.dry_run import run_timeline

KINDS = ("start", "never", "trained", "report", "lost", "deliver", "away")


def clock(**fields: Any) -> Settings:
    """Settings with this clock; rounds are those of fedavg."""
    algorithm = "fedavg" if fields.get("arrivals") == "rounds" else "qafel"
    return Settings(**{"algorithm": algorithm, **fields})


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


def clock_of(fields: dict[str, Any], concurrency: int | None, **more: Any) -> Settings:
    if fields["arrivals"] in ("closed", "rounds"):
        concurrency = None
    elif fields["arrivals"] == "refill" and concurrency is None:
        concurrency = 3
    return clock(**fields, concurrency=concurrency, **more)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    fields=clocks,
    concurrency=st.sampled_from([None, 1, 5]),
    buffer_size=st.integers(1, 4),
    max_staleness=st.sampled_from([None, 0, 2]),
    seed=st.integers(0, 99),
)
def test_equals_its_slow_twin_event_by_event(
    fields: dict[str, object], concurrency: int | None, buffer_size: int, max_staleness: int | None, seed: int
) -> None:
    chosen = clock_of(fields, concurrency, buffer_size=buffer_size, max_staleness=max_staleness, seed=seed)
    timeline, twin = Timeline(chosen, clients=9), timeline_twin.walk(chosen, 9)
    assert first_difference(rows(timeline, 300), list(islice(twin, 300))) is None


def test_equals_its_slow_twin_beyond_a_block_of_random_numbers() -> None:
    chosen = clock(arrivals="poisson", rate=300, dropouts=0.1, sampling="idle", buffer_size=10, seed=3)
    timeline, twin = Timeline(chosen, clients=500), timeline_twin.walk(chosen, 500)
    assert first_difference(rows(timeline, 40_000), list(islice(twin, 40_000))) is None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(fields=clocks, buffer_size=st.integers(1, 4), seed=st.integers(0, 99), catch_up=st.booleans())
def test_event_by_event_with_transfers_equals_its_slow_twin(
    fields: dict[str, object], buffer_size: int, seed: int, catch_up: bool
) -> None:
    """Delays that depend on who, which task and which version: what only the learning would know."""
    downlink = "catch-up" if catch_up else "broadcast"
    links = {"up_bandwidth": 1.0, "down_bandwidth": 1.0, "downlink": downlink}
    chosen = clock_of(fields, 4, buffer_size=buffer_size, seed=seed, **links)
    timeline = Timeline(chosen, clients=9)
    events, version = [], 0
    for event in islice(timeline, 300):
        kind = KINDS[event.kind]
        events.append((kind, *event[1:6]))
        if kind == "report":
            version += sum(row[0] == "report" for row in events) % buffer_size == 0
        if timeline.asks:
            timeline.answer(
                {
                    "start": 0.1 * event.client if catch_up else 0.0,
                    "never": 0.1 * event.client if catch_up else 0.0,
                    "trained": 0.01 * (event.serial % 7),
                    "report": 0.3 / max(1, version),
                }[kind]
            )
    twin = timeline_twin.walk(
        chosen,
        9,
        download=lambda client, version: 0.1 * client if catch_up else 0.0,
        upload=lambda serial: 0.01 * (serial % 7),
        broadcast=None if catch_up else (lambda version: 0.3 / max(1, version)),
    )
    assert first_difference(events, list(islice(twin, 300))) is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(fields=clocks, cut=st.integers(0, 9000), seed=st.integers(0, 99))
def test_a_restored_timeline_continues_as_if_nothing_had_been(
    fields: dict[str, object], cut: int, seed: int
) -> None:
    chosen = clock_of(fields, None, buffer_size=3, seed=seed)
    one, two = Timeline(chosen, clients=9), Timeline(chosen, clients=9)
    rows(one, cut)
    two.restore(one.state())
    assert first_difference(rows(one, 500), rows(two, 500)) is None


@pytest.mark.parametrize(("rate", "in_flight"), [(125, 100), (627, 500), (1253, 1000)])
def test_littles_law_gives_the_papers_concurrencies(rate: float, in_flight: int) -> None:
    result = run_timeline(clock(rate=rate, uploads=400_000), clients=7474)
    assert result.concurrency == pytest.approx(in_flight, rel=0.02)
    mean = sum(tau * n for tau, n in enumerate(result.staleness)) / sum(result.staleness)
    assert mean == pytest.approx(in_flight / 10, rel=0.05)


def test_rounds_have_no_staleness_and_last_as_long_as_their_slowest() -> None:
    events = rows(Timeline(clock(arrivals="rounds", buffer_size=5, seed=1), clients=50), 200)
    reports = [row for row in events if row[0] == "report"]
    assert {row[5] for row in reports} == {0}
    starts = [row[1] for row in events if row[0] == "start"]
    for k in range(5, 80, 5):
        assert len(set(starts[k : k + 5])) == 1
        assert starts[k] == max(row[1] for row in reports[k - 5 : k])


def test_max_staleness_and_drop_outs_are_counted() -> None:
    chosen = clock(rate=50, dropouts=0.25, slow_fraction=0.5, buffer_size=2, max_staleness=20, uploads=50_000)
    result = run_timeline(chosen, clients=100)
    assert len(result.staleness) <= 21
    assert result.rejected > 0
    assert result.lost / (result.lost + result.uploads) == pytest.approx(0.25, abs=0.02)
    assert result.steps == sum(result.staleness) // 2


def test_the_concurrency_cap_turns_arrivals_away() -> None:
    result = run_timeline(clock(rate=100, concurrency=10, buffer_size=5, uploads=20_000), clients=100)
    assert 9 < result.concurrency <= 10
    assert result.turned_away > 0


def test_a_trace_says_who_starts_when_and_for_how_long(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("start,client,duration\n0,3,2\n0.5,1,0.5\n1,3,1\n")
    timeline = Timeline(clock(arrivals=f"trace:{path}", buffer_size=2), clients=4)
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
    timeline = Timeline(clock(duration=f"trace:{path}", rate=10, buffer_size=2), clients=4)
    events = rows(timeline, 2000)
    began = {row[2]: row[1] for row in events if row[0] == "start"}
    assert {round(row[1] - began[row[2]], 6) for row in events if row[0] == "report"} == {1.0, 5.0}


@pytest.mark.slow
def test_lognormal_durations_have_their_median() -> None:
    timeline = Timeline(clock(duration="lognormal:3,0.5", rate=10, buffer_size=2), clients=4)
    events = rows(timeline, 20_000)
    began = {row[2]: row[1] for row in events if row[0] == "start"}
    lengths = [row[1] - began[row[2]] for row in events if row[0] == "report"]
    assert np.median(lengths) == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start\n2\n1\n", "must not decrease"),
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
        Timeline(clock(arrivals=f"trace:{path}", buffer_size=2), clients=4)


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
        ({"arrivals": "rounds"}, "a round has buffer_size = 9 clients"),
    ],
)
def test_a_bad_clock_gets_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Timeline(clock(**fields, buffer_size=9), clients=4)
