"""Definition 1, proved statistically with fixed seeds: unbiasedness, ω in the mean and at its worst,
independence of seeds.
"""

import numpy as np
import pytest

from qafel import measure, quantizer
from qafel.streams import derive, generator, keys
from qafel.streams.kernels import fill, subset
from specs import SPECS, heavy_tailed

pytestmark = pytest.mark.slow

UNBIASED = [s for s in SPECS if quantizer(s).unbiased]
DETERMINISTIC = {"identity", "affine", "topk", "deadzone", "sign"}
SIZE = 600


def enough_seeds(spec: str, seeds: int) -> int:
    """``seeds``, or the two that ``measure`` needs if the quantizer ignores its seed."""
    return 2 if quantizer(spec).name in DETERMINISTIC else seeds


@pytest.mark.parametrize("spec", SPECS)
def test_deterministic_quantizers_ignore_the_seed_and_no_others_do(spec: str) -> None:
    q, x = quantizer(spec), heavy_tailed(SIZE)
    assert (q.encode(x, 1) == q.encode(x, 2)) == (q.name in DETERMINISTIC)


@pytest.mark.parametrize("spec", UNBIASED)
def test_unbiased_quantizers_have_no_bias_beyond_monte_carlo(spec: str) -> None:
    """The squared bias vanishes in the noise of its estimate; Q(x) neither shrinks nor stretches x."""
    x, seeds = heavy_tailed(SIZE), 400
    result = measure(spec, x, seeds=seeds)
    assert abs(result.bias) <= result.nmse / seeds + 1e-12
    q, exact = quantizer(spec), x.astype(np.float64)
    along = np.array(
        [q.decode(q.encode(x, seed), SIZE) @ exact / (exact @ exact) - 1 for seed in range(seeds)]
    )
    assert abs(along.mean()) <= 4 * along.std() / np.sqrt(seeds) + 1e-7


@pytest.mark.parametrize("spec", ["qsgd:4,bucket=256,norm=max", "qsgd:2", "randk:0.1,scaled"])
def test_the_test_of_unbiasedness_notices_five_percent(spec: str) -> None:
    x, q, seeds = heavy_tailed(SIZE), quantizer(spec), 8000
    exact = x.astype(np.float64)
    ratios = np.array([q.decode(q.encode(x, s), SIZE) @ exact / (exact @ exact) for s in range(seeds)])
    for factor in (0.95, 1.05):
        along = factor * ratios - 1
        assert abs(along.mean()) > 4 * along.std() / np.sqrt(seeds)


@pytest.mark.parametrize("spec", [s for s in SPECS if not quantizer(s).unbiased])
def test_biased_quantizers_have_a_measurable_bias(spec: str) -> None:
    result = measure(spec, heavy_tailed(SIZE), seeds=enough_seeds(spec, 400))
    assert result.bias > 0.2 * result.nmse


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", ["heavy", "flat", "sparse", "ramp"])
def test_omega_is_never_exceeded_on_average(spec: str, kind: str) -> None:
    x = {
        "heavy": heavy_tailed(SIZE),
        "flat": np.ones(SIZE, np.float32),
        "sparse": np.where(np.arange(SIZE) % 97 == 0, 1, 1e-3).astype(np.float32),
        "ramp": np.linspace(-1, 1, SIZE, dtype=np.float32),
    }[kind]
    result = measure(spec, x, seeds=enough_seeds(spec, 100))
    assert result.nmse <= quantizer(spec).omega(SIZE) + 4 * result.nmse_error + 1e-6
    assert result.delta == 1 - result.nmse
    assert result.bits == 8 * result.payload_bytes / SIZE


def test_the_max_norm_omega_is_attained_by_its_worst_vector() -> None:
    q, bucket, levels = quantizer("qsgd:4,bucket=256,norm=max"), 256, 7
    a = (bucket - 1) / levels**2
    p = (np.sqrt(1 + a) - 1) / a
    x = np.full(bucket, p / levels, np.float32)
    x[0] = 1
    result = measure(q, x, seeds=2000)
    assert result.nmse == pytest.approx(q.omega(bucket), abs=4 * result.nmse_error)
    assert q.omega(bucket) == pytest.approx(0.7454, abs=1e-4)
    assert quantizer("qsgd:4,bucket=512,norm=max").omega(10**6) == pytest.approx(1.19, abs=0.005)


def test_the_affine_omega_is_attained_by_its_worst_vector() -> None:
    q, size = quantizer("affine:4"), 500
    x = np.full(size, 0.4999 / 7.5, np.float32)
    x[0], x[1] = 1, -1
    assert measure(q, x, seeds=2).nmse > 0.999 * q.omega(size)


def test_rand_k_has_exactly_its_omega_for_every_vector() -> None:
    for spec in ("randk:0.1", "randk:0.1,scaled"):
        result = measure(spec, heavy_tailed(SIZE), seeds=3000)
        assert result.nmse == pytest.approx(quantizer(spec).omega(SIZE), abs=4 * result.nmse_error)


def test_contracting_scaled_rand_k_gives_rand_k() -> None:
    x = heavy_tailed(64)
    plain, contracted = quantizer("randk:0.5"), quantizer("contract:randk:0.5,scaled")
    assert np.allclose(
        plain.decode(plain.encode(x, 4), 64), contracted.decode(contracted.encode(x, 4), 64), rtol=1e-6
    )
    assert contracted.delta(64) == pytest.approx(plain.delta(64))


def test_contract_has_delta_of_one_over_one_plus_omega() -> None:
    inner, outer = quantizer("qsgd:4"), quantizer("contract:qsgd:4")
    assert outer.delta(29_282) == pytest.approx(1 / (1 + inner.omega(29_282)))
    assert outer.delta(29_282) > 0 > inner.delta(29_282)


def test_closed_forms_are_the_papers_with_its_slips_mended() -> None:
    d = 29_282
    assert quantizer("qsgd:4").omega(d) == pytest.approx(min(d / 49, np.sqrt(d) / 7))
    assert quantizer("qsgd:8").omega(100) == pytest.approx(100 / 127**2)
    assert quantizer("topk:0.1").delta(1000) == pytest.approx(0.1)
    assert quantizer("randk:0.1").delta(1000) == pytest.approx(0.1)
    assert quantizer("randk:0.1,scaled").omega(1000) == pytest.approx(9)
    assert quantizer("induced:topk:0.1+qsgd:4,bucket=64").omega(1000) == pytest.approx(0.9 * 8 / 7)
    assert quantizer("identity").delta(d) == 1
    assert [quantizer(f"qsgd:{n}").levels for n in (2, 4, 8)] == [1, 7, 127]  # type: ignore[attr-defined]


def test_rounding_counts_over_consecutive_seeds_have_the_binomial_variance() -> None:
    """With one key, counts over consecutive seeds would hardly vary: their streams would be permutations of
    each other.
    """
    size, seeds, q = 4096, 64, quantizer("qsgd:2,norm=max")
    x = np.full(size, 0.3, np.float32)
    x[0] = 1
    counts = np.array([np.count_nonzero(q.decode(q.encode(x, seed), size)[1:]) for seed in range(seeds)])
    n, p = size - 1, 0.3
    assert abs(counts.mean() - n * p) < 4 * np.sqrt(n * p * (1 - p) / seeds)
    ratio = counts.var(ddof=1) / (n * p * (1 - p))
    assert abs(ratio - 1) < 4 * np.sqrt(2 / (seeds - 1))
    variance_by_coordinate = np.array(
        [np.count_nonzero(q.decode(q.encode(x, seed), size).reshape(64, 64), axis=0) for seed in range(seeds)]
    )
    assert abs(variance_by_coordinate.var() / (64 * p * (1 - p)) - 1) < 0.1


@pytest.mark.parametrize("stride", [1, 2, 3, 64, 256, 512])
def test_random_halves_are_uniform_and_uncorrelated_across_coordinates_and_seeds(stride: int) -> None:
    count, seeds = 1 << 14, 24
    words = np.empty(count // 2, np.uint32)
    rows = []
    for seed in range(seeds):
        fill(words, np.uint32(0), *keys(seed))
        rows.append(words.view(np.uint16).astype(np.float64) / 65536 - 0.5)
    table = np.array(rows) * np.sqrt(12)
    n = table.size
    assert abs(table.mean()) < 5 / np.sqrt(n)
    assert abs((table**2).mean() - 1) < 5 / np.sqrt(n)
    assert abs((table[:, stride:] * table[:, :-stride]).mean()) < 5 / np.sqrt(n)
    assert abs((table[1:] * table[:-1]).mean()) < 5 / np.sqrt(n)
    assert abs((table[1:, stride:] * table[:-1, :-stride]).mean()) < 5 / np.sqrt(n)
    histogram = np.bincount(((table / np.sqrt(12) + 0.5) * 256).astype(int).ravel(), minlength=256)
    chi2 = ((histogram - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)


def test_every_bit_of_a_random_word_is_fair() -> None:
    words = np.empty(1 << 16, np.uint32)
    fill(words, np.uint32(12345), *keys(99))
    shares = np.unpackbits(words.view(np.uint8)).reshape(-1, 32).mean(0)
    assert np.abs(shares - 0.5).max() < 5 * 0.5 / np.sqrt(1 << 16)


def test_subsets_are_uniform() -> None:
    counts = np.zeros(20)
    pairs = np.zeros((20, 20))
    indices = np.empty(5, np.int64)
    trials = 20_000
    for seed in range(trials):
        subset(indices, 20, *keys(seed))
        assert (np.diff(indices) > 0).all()
        counts[indices] += 1
        pairs[np.ix_(indices, indices)] += 1
    assert np.abs(counts / trials - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / trials)
    together = pairs[np.triu_indices(20, 1)] / trials
    assert np.abs(together - 5 * 4 / (20 * 19)).max() < 5 * np.sqrt(0.053 * 0.947 / trials)


def test_streams_with_different_names_are_different_and_stable() -> None:
    seeds = {
        derive(0, "a", 1),
        derive(0, "a", "1"),
        derive(0, "a1"),
        derive(1, "a", 1),
        derive(0, 1, "a"),
        derive(0, "a/#1"),
    }
    assert len(seeds) == 6
    assert derive(7, "task", 3) == derive(7, "task", 3) == 10045821105139876533
    assert generator(1, "x").random() == generator(1, "x").random() != generator(1, "y").random()
