"""The formulas against sums written out, the limits of the theory, and the quantizers to choose from."""

import math
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel import Client, ConfigError, DivergenceError, Job, Server, Stepped, quantizer, theory

BASE = theory.Setting(
    smoothness=2.0,
    variance=0.5,
    gradient_bound=3.0,
    gap=1.5,
    steps=400,
    buffer_size=10,
    rates=(0.001, 0.0005, 0.00025),
    server_rate=5.0,
    max_staleness=4,
    client_delta=0.6,
    server_delta=0.3,
)


def phi_as_printed(s: theory.Setting) -> float:
    factor = (1 - s.server_delta) * (2 - s.server_delta) / s.server_delta
    return factor * sum((1 - s.server_delta / 2) ** n for n in range(s.steps))


def theorem_as_printed(s: theory.Setting) -> float:
    """The general theorem, literally, with the sum φ(T) written out."""
    a, b, p, k, t = sum(s.rates), sum(r * r for r in s.rates), len(s.rates), s.buffer_size, s.max_staleness
    phi = phi_as_printed(s)
    stale = s.server_rate**2 * t**2 * ((1 - s.client_delta) / (k * t) + 1) if t else 0.0
    return (
        2 * s.gap / (s.server_rate * s.steps * a)
        + 3 * s.smoothness**2 * b * (stale + 1) * (s.variance + p * s.gradient_bound)
        + (3 * s.smoothness**2 * s.server_rate**2 * phi + s.smoothness * s.server_rate / a)
        * ((2 - s.client_delta) / k)
        * b
        * (s.variance + 4 * s.gradient_bound)
    )


settings = st.builds(
    theory.Setting,
    smoothness=st.floats(0.1, 10),
    variance=st.floats(0, 10),
    gradient_bound=st.floats(0, 10),
    gap=st.floats(0, 10),
    steps=st.integers(1, 300),
    buffer_size=st.integers(1, 50),
    rates=st.lists(st.floats(1e-5, 1e-1), min_size=1, max_size=5).map(tuple),
    server_rate=st.floats(1e-2, 1e2),
    max_staleness=st.integers(0, 20),
    client_delta=st.floats(-20, 1),
    server_delta=st.floats(0.01, 1),
)


@given(settings)
def test_the_terms_add_up_to_the_theorem(s: theory.Setting) -> None:
    assert theory.bound(s).total == pytest.approx(theorem_as_printed(s), rel=1e-9)


@given(settings)
def test_the_bound_of_the_hidden_states_error_is_phi_times_the_whole_bound_of_a_step(
    s: theory.Setting,
) -> None:
    omega, b, p, k = 1 - s.client_delta, sum(r * r for r in s.rates), len(s.rates), s.buffer_size
    noise = (1 + omega) / k * (s.variance + 4 * s.gradient_bound)
    step = s.server_rate**2 * b * (noise + (1 + omega / k) * p * s.gradient_bound)
    assert theory.hidden_state_bound(s) == pytest.approx(phi_as_printed(s) * step, rel=1e-9)


@given(settings)
def test_phi_never_exceeds_its_limit_and_the_corollary_never_beats_the_theorem(s: theory.Setting) -> None:
    limit = theory.phi_limit(s.server_delta)
    assert theory.phi(s.steps, s.server_delta) <= limit * (1 + 1e-12)
    assert theory.bound(s, limit=True).total >= theory.bound(s).total * (1 - 1e-12)


@given(settings)
def test_the_largest_rates_meet_their_condition_exactly(s: theory.Setting) -> None:
    scale = theory.largest_local_rate(s) / max(s.rates)
    assert theory.condition(replace(s, rates=tuple(scale * r for r in s.rates))) == pytest.approx(1, rel=1e-9)
    assert theory.condition(replace(s, server_rate=theory.largest_server_rate(s))) == pytest.approx(
        1, rel=1e-9
    )


@given(settings)
def test_the_simple_rates_meet_the_condition(s: theory.Setting) -> None:
    local, server = theory.simple_rates(s)
    assert theory.condition(replace(s, rates=(local,) * s.local_steps, server_rate=server)) <= 1 + 1e-9


def test_the_conditions_are_the_papers() -> None:
    s, a, k = BASE, sum(BASE.rates), 10
    crowd = (1 + 0.4 / k) * 3 * 0.001
    limit = 2 * 0.7 * 1.7 / 0.3**2
    assert limit < 4 / 0.3**2  # the paper's, rounded up
    assert theory.condition(s) == pytest.approx((3 * a * 4 * 25 * limit + 2 * 5) * crowd)


def test_perfect_quantizers_recover_fedbuff() -> None:
    exact = quantizer("identity")
    b = theory.bound(BASE.with_quantizers(exact, exact, 100))
    assert b.client_quantization == b.server_quantization == b.cross == 0
    previous = math.inf
    for bits in range(4, 17):
        q = quantizer(f"qsgd:{bits},bucket=256,norm=max")
        total = theory.bound(BASE.with_quantizers(q, q, 29_282)).total
        assert b.total < total < previous
        previous = total
    assert previous == pytest.approx(b.total, rel=1e-6)


def test_no_staleness_leaves_no_cross_term() -> None:
    b = theory.bound(replace(BASE, max_staleness=0))
    assert b.staleness == b.cross == 0
    assert math.isfinite(b.total)


def test_orders_of_the_corollary() -> None:
    """With the corollary's rates: the client's quantizer at 1/√T, the server's and the cross term at 1/T."""

    def at(steps: int) -> theory.Bound:
        local, server = theory.complexity_rates(steps, 3, 10)
        return theory.bound(replace(BASE, steps=steps, rates=(local,) * 3, server_rate=server))

    one, hundred = at(10**5), at(10**7)
    for name in ("optimisation", "noise", "client_quantization"):
        assert getattr(one, name) / getattr(hundred, name) == pytest.approx(10, rel=1e-6)
    for name in ("drift", "staleness", "cross", "server_quantization"):
        assert getattr(one, name) / getattr(hundred, name) == pytest.approx(100, rel=1e-3)
    orders = theory.complexity(replace(BASE, rates=(1.0,) * 3), 40)
    assert list(orders) == [field.name for field in fields(theory.Bound)]
    more = theory.complexity(replace(BASE, rates=(1.0,) * 3, steps=1600), 40)
    assert orders["client_quantization"] / more["client_quantization"] == pytest.approx(2)
    assert orders["cross"] / more["cross"] == pytest.approx(4)


def test_small_formulas() -> None:
    assert theory.alpha((0.1, 0.2)) == pytest.approx(0.3)
    assert theory.beta((0.1, 0.2)) == pytest.approx(0.05)
    assert [theory.buffered_staleness(t, 10) for t in (0, 1, 10, 11)] == [0, 1, 1, 2]
    assert theory.c_max(117_128, 15_101) == 7
    assert theory.phi(10, 0.0) == theory.phi_limit(-1) == math.inf
    assert theory.phi(1000, 1.0) == theory.phi_limit(1.0) == 0
    assert theory.phi(1000, 1e-17) == pytest.approx(2e20)
    for bad in ((-1, 10), (1, 0)):
        with pytest.raises(ConfigError):
            theory.buffered_staleness(*bad)
    with pytest.raises(ConfigError, match="unbiased client"):
        BASE.with_quantizers("topk:0.1", "identity", 100)


def test_costs_say_which_quantizers_may_be_used_where() -> None:
    specs = ["identity", "qsgd:4", "qsgd:4,bucket=256,norm=max", "topk:0.1", "contract:qsgd:4", "affine:4"]
    cool = replace(BASE, rates=(1e-6,))
    rows = {row.spec: row for row in theory.costs(cool, 29_282, specs)}
    assert {spec: (row.client, row.server) for spec, row in rows.items()} == {
        "identity": (True, True),
        "qsgd:4": (True, False),
        "qsgd:4,bucket=256,norm=max": (True, True),
        "topk:0.1": (False, True),
        "contract:qsgd:4": (False, True),
        "affine:4": (False, True),
    }
    assert rows["identity"].client_bound == rows["identity"].server_bound == 1
    assert 1 < rows["qsgd:4,bucket=256,norm=max"].client_bound < rows["qsgd:4"].client_bound < math.inf
    assert rows["qsgd:4"].server_bound == math.inf
    assert rows["qsgd:4"].server_max_rate == 0
    hot = {row.spec: row for row in theory.costs(replace(BASE, rates=(0.02,)), 29_282, specs)}
    assert hot["identity"].server
    assert not hot["affine:4"].server
    assert 0 < hot["affine:4"].server_max_rate < 0.02


@pytest.mark.parametrize(
    "change",
    [
        {"smoothness": 0.0},
        {"variance": -1.0},
        {"steps": 0},
        {"rates": ()},
        {"rates": (0.0,)},
        {"gap": math.nan},
    ],
)
def test_impossible_settings_get_a_sentence(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(BASE, **change)  # type: ignore[arg-type]


def test_the_papers_lemma_for_unbiased_server_quantizers_does_not_hold() -> None:
    """E⟨x − x̂, Δ̄⟩ is not zero, because Δ̄ is computed from x̂: a quadratic with L = 1, K = 1, no staleness.

    The paper's condition, with φ ≤ 1/δ, allows these rates; the run diverges.
    """
    size, rate, steps = 20, 0.2, 60
    job = Job(size=size, buffer_size=1, client_quantizer="identity", server_quantizer="randk:11,scaled")
    delta = quantizer(job.server_quantizer).delta(size)
    assert (3 * rate / delta + 1) * rate == pytest.approx(0.86)  # ≤ 1: the paper's condition
    setting = replace(BASE, smoothness=1.0, rates=(rate,), server_rate=1.0, max_staleness=0, buffer_size=1)
    assert theory.condition(replace(setting, client_delta=1.0, server_delta=delta)) > 1

    errors, moves, ends = 0.0, 0.0, []
    for seed in range(200):
        x = np.ones(size, np.float32)
        server = Server(msgspec.structs.replace(job, seed=seed), x)
        client = Client(server.job, x, client=0)
        for _ in range(steps):
            errors += float(np.sum((server.x - server.hidden.x).astype(np.float64) ** 2))
            moves += float(np.sum((rate * client.hidden.x.astype(np.float64)) ** 2))
            try:
                events = server.receive(client.train(lambda y, task: np.float32(-rate) * y))
            except DivergenceError:
                break
            for event in events:
                if isinstance(event, Stepped):
                    client.apply(event.frame)
        ends.append(float(np.linalg.norm(server.x)))
    unbiased = sum((1 - delta) ** t for t in range(1, steps))
    assert errors / (unbiased * moves) == pytest.approx(5.2, abs=0.05)  # docs/theory.md: the lemma's bound
    assert errors / (theory.phi(steps, delta) * moves) == pytest.approx(0.26, abs=0.005)  # the general one
    assert np.mean(ends) > 3 * math.sqrt(size)  # it diverges
