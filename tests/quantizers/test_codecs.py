"""Properties of every quantizer: exact, scale invariant, independent of threads and chunks, correct at the
edges of float32; and of the codings of positions and bit planes.
"""

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qafel import FrameError, Layout, VectorError, quantizer, set_threads, vectors
from qafel.coding import threads
from qafel.coding.bitplanes import GROUP, packed_bytes, parts
from qafel.coding.bitplanes_kernels import pack, stray_bits, unpack
from qafel.coding.integers import encode_integers
from qafel.coding.rice import decode_indices, encode_indices, max_index_bytes
from qafel.coding.threads import thread_count
from qafel.quantizers._coded import Stepped
from specs import SPECS, heavy_tailed

SIZES = (0, 1, 2, 7, 8, 9, 255, 256, 257, 511, 512, 513, 1025, 4096, 5000)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", SIZES)
def test_decode_add_is_decoding_then_adding_bit_for_bit(spec: str, size: int) -> None:
    q, x = quantizer(spec), heavy_tailed(size)
    payload = q.encode(x, 5)
    assert len(payload) <= q.max_bytes(size)
    decoded = q.decode(payload, size)
    assert decoded.dtype == np.float32
    assert decoded.shape == (size,)
    start = heavy_tailed(size, seed=1, scale=1.0)
    for weight in (1.0, 0.37):
        total = vectors.copy(start)
        q.decode_add(payload, total, weight)
        assert np.array_equal(total, start + np.float32(weight) * decoded)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SPECS),
    hnp.arrays(np.float32, st.integers(0, 600), elements=st.floats(-(2.0**90), 2.0**90, width=32)),
    st.integers(0, 2**64 - 1),
)
def test_any_finite_vector_decodes_to_finite_numbers_and_within_omega_if_deterministic(
    spec: str, x: vectors.Vector, seed: int
) -> None:
    q = quantizer(spec)
    payload = q.encode(x, seed)
    assert payload == q.encode(x.copy(), seed)
    decoded = q.decode(payload, x.size)
    assert np.isfinite(decoded).all()
    if spec.startswith(("affine", "topk", "identity")) and x.any() and np.abs(x).max() > 1e-30:
        error, power = (decoded - x).astype(np.float64), x.astype(np.float64)
        assert error @ error <= (q.omega(x.size) + 1e-5) * (power @ power)


@pytest.mark.parametrize("spec", SPECS)
def test_scaling_by_a_power_of_two_commutes_with_quantizing(spec: str) -> None:
    q, x = quantizer(spec), heavy_tailed(700, scale=1.0)
    x[np.abs(x) < 2.0**-8] = 0
    reference = q.decode(q.encode(x, 3), x.size)
    smallest = float(np.abs(x[x != 0]).min())
    lowest = -126 - int(np.floor(np.log2(smallest)))
    for k in (1, -1, 20, -20, 60, -60, 99, -99, -101, 118, lowest):
        scaled = np.ldexp(x, k)
        if not np.isfinite(scaled).all():
            continue
        got = q.decode(q.encode(scaled, 3), x.size)
        wanted = np.ldexp(reference.astype(np.float64), k).astype(np.float32)
        assert np.array_equal(got, wanted), k


EXACT_BELOW = [s for s in SPECS if "qsgd" not in s or ("norm=max" in s and "+" not in s)]


@pytest.mark.parametrize("spec", EXACT_BELOW)
def test_denormal_numbers_go_to_the_nearest_representable_one(spec: str) -> None:
    q, tiny = quantizer(spec), np.ldexp(heavy_tailed(300, scale=1.0), -140)
    assert 0 < np.abs(tiny).max() < 2.0**-126
    reference = q.decode(q.encode(np.ldexp(tiny, 100), 3), tiny.size)
    wanted = np.ldexp(reference.astype(np.float64), -100).astype(np.float32)
    assert np.array_equal(q.decode(q.encode(tiny, 3), tiny.size), wanted)


@pytest.mark.parametrize("spec", [s for s in SPECS if s not in EXACT_BELOW])
def test_a_denormal_l2_norm_is_the_nearest_representable_one(spec: str) -> None:
    """The norm itself is a float32 here: half a grid step off at most, and all that hangs on it."""
    q, tiny = quantizer(spec), np.ldexp(heavy_tailed(300, scale=1.0), -140)
    reference = q.decode(q.encode(np.ldexp(tiny, 100), 3), tiny.size).astype(np.float64)
    got = q.decode(q.encode(tiny, 3), tiny.size).astype(np.float64)
    coarse = np.abs(got - np.ldexp(reference, -100)) > 2 * 2.0**-149
    assert coarse.mean() < 0.05  # a level may tip over where the norm moved


@pytest.mark.parametrize("spec", SPECS)
def test_the_zero_vector_stays_zero_and_the_largest_numbers_stay_finite(spec: str) -> None:
    q = quantizer(spec)
    assert not q.decode(q.encode(np.zeros(300, np.float32), 1), 300).any()
    largest = np.full(300, np.finfo(np.float32).max)
    largest[::2] *= -1
    try:
        payload = q.encode(largest, 1)
    except VectorError as error:
        assert "beyond float32" in str(error)
    else:
        assert np.isfinite(q.decode(payload, 300)).all()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_coordinate(spec: str, bad: float) -> None:
    x = heavy_tailed(1000)
    x[637] = bad
    with pytest.raises(VectorError, match="coordinate 637 is"):
        quantizer(spec).encode(x, 1)


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2), np.float32), [1, 2], np.zeros(3, np.int32)])
def test_only_flat_float32_vectors_are_taken(bad: object) -> None:
    with pytest.raises(VectorError, match="flat float32"):
        quantizer("qsgd:4").encode(bad, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS)
def test_only_a_flat_writable_float32_vector_can_be_added_into(spec: str) -> None:
    q = quantizer(spec)
    payload = q.encode(heavy_tailed(60), 1)
    frozen = np.zeros(60, np.float32)
    frozen.flags.writeable = False
    strided = np.zeros(120, np.float32)[::2]
    for bad in (frozen, strided, np.zeros(60), np.zeros((6, 10), np.float32), [0.0] * 60):
        with pytest.raises(VectorError, match="flat, contiguous and writable"):
            q.decode_add(payload, bad)  # type: ignore[arg-type]


def test_a_strided_or_read_only_vector_is_coded_like_any_other() -> None:
    x = heavy_tailed(2000)
    strided = x[::2]
    frozen = strided.copy()
    frozen.flags.writeable = False
    for spec in SPECS:
        assert quantizer(spec).encode(strided, 1) == quantizer(spec).encode(frozen, 1)
    assert x.flags.writeable


@pytest.mark.parametrize("spec", SPECS)
def test_bytes_do_not_depend_on_threads_or_chunks(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, x = quantizer(spec), heavy_tailed(20_011)
    before = thread_count()
    set_threads(1)
    payload, decoded = q.encode(x, 9), q.decode(q.encode(x, 9), x.size)
    try:
        for count, chunk in ((2, 512), (2, 1000), (3, 4096), (8, 513)):
            monkeypatch.setattr(threads, "CHUNK", chunk)
            set_threads(count)
            assert q.encode(x, 9) == payload
            assert np.array_equal(q.decode(payload, x.size), decoded)
    finally:
        set_threads(before)


@pytest.mark.slow
def test_a_vector_of_a_hundred_million_coordinates() -> None:
    size = 10**8
    x = np.zeros(size, np.float32)
    x[:: 10**6] = np.linspace(-1, 1, 100, dtype=np.float32)
    x[-1] = 0.5
    places = np.flatnonzero(x)
    for spec in ("qsgd:4,bucket=256,norm=max", "qsgd:4", "affine:4", "topk:200", "randk:200", "identity"):
        q = quantizer(spec)
        payload = q.encode(x, 1)
        assert len(payload) <= q.max_bytes(size)
        decoded = q.decode(payload, size)
        assert np.count_nonzero(decoded) == np.count_nonzero(decoded[places]) <= 101
        if spec not in ("qsgd:4", "randk:200"):
            assert np.abs(decoded[places] - x[places]).max() <= 1 / 7
    assert quantizer("topk:200").max_bytes(size) < 1500


def test_a_seed_may_be_a_numpy_integer() -> None:
    for spec in SPECS:
        q, x = quantizer(spec), heavy_tailed(50)
        assert q.encode(x, np.int64(5)) == q.encode(x, np.uint64(5)) == q.encode(x, 5)  # type: ignore[arg-type]


def test_affine_refuses_an_impossible_step_or_zero_point() -> None:
    q = quantizer("affine:4")
    payload = q.encode(heavy_tailed(20), 0)
    for step, zero in ((np.nan, 0), (-1.0, 0), (np.inf, 0), (1e39, 0), (1.0, 16)):
        forged = np.float64(step).tobytes() + np.uint16(zero).tobytes() + payload[10:]
        with pytest.raises(FrameError, match="impossible step or zero point"):
            q.decode(forged, 20)


def test_affine_gives_each_tensor_its_own_range_and_leaves_biases_alone() -> None:
    layout = Layout.of({"weight": (10, 20), "bias": (10,), "head": (3, 10)})
    x = heavy_tailed(240)
    x[:200] *= 1000
    plain, bound = quantizer("affine:4"), quantizer("affine:4", layout)
    assert bound != plain
    assert bound.spec == plain.spec
    decoded = bound.decode(bound.encode(x, 0), 240)
    assert np.array_equal(decoded[200:210], x[200:210])
    head = x[210:]
    assert np.array_equal(decoded[210:], plain.decode(plain.encode(head, 0), 30))
    assert bound.max_bytes(240) == 10 + 100 + 40 + 10 + 15
    assert bound.omega(240) == pytest.approx(200 / (2 * 15**2 + 198))
    with pytest.raises(VectorError, match="layout has 240"):
        bound.encode(x[:-1].copy(), 0)
    composed = quantizer("induced:affine:4+qsgd:4", layout)
    assert composed.decode(composed.encode(x, 1), 240).shape == (240,)


@given(st.integers(0, 400), st.data())
def test_positions_survive_their_coding_and_never_cost_more_than_a_bitmap(
    size: int, data: st.DataObject
) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(0, size - 1)))) if size else []
    indices = np.array(chosen, np.int64)
    coded = encode_indices(indices, size)
    assert len(coded) <= max_index_bytes(size, len(chosen)) <= 1 + -(-size // 8)
    assert np.array_equal(decode_indices(coded, size, len(chosen)), indices)


def test_positions_of_one_percent_cost_about_their_entropy() -> None:
    size, count = 100_000, 1000
    indices = np.sort(np.random.default_rng(0).choice(size, count, replace=False))
    entropy = count * (np.log2(size / count) + 1 / np.log(2))
    assert 8 * len(encode_indices(indices, size)) < 1.06 * entropy
    assert 8 * len(encode_indices(indices, size)) < 32 * count / 3


def plane_packed(codes: list[int], width: int) -> bytes:
    """Plane packing as its docstring says it, one part at a time."""
    out = b""
    for start in range(0, len(codes), GROUP):
        group, shift = codes[start : start + GROUP], 0
        for part in parts(width):
            plane = bytearray(-(-len(group) * part // 8))
            for k, code in enumerate(group):
                plane[k % len(plane)] |= (code >> shift & (1 << part) - 1) << part * (k // len(plane))
            out, shift = out + bytes(plane), shift + part
    return out


@given(st.integers(0, 1300), st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_plane_packing_is_what_its_docstring_says_and_inverts(
    count: int, width: int, rng: random.Random
) -> None:
    codes = [rng.randrange(1 << width) for _ in range(count)]
    out = np.zeros(packed_bytes(count, width), np.uint8)
    pack(np.array(codes, np.uint8), 0, count, width, out, 0)
    assert out.tobytes() == plane_packed(codes, width)
    again = np.full(count, 255, np.uint8)
    unpack(out, 0, count, width, again, 0)
    assert again.tolist() == codes
    assert not count or not stray_bits(
        out[-packed_bytes((count - 1) % GROUP + 1, width) :], 0, (count - 1) % GROUP + 1, width
    )


@given(st.integers(0, 3000), st.integers(1, 16))
def test_packed_bytes_is_tight(count: int, width: int) -> None:
    bits = count * width
    assert -(-bits // 8) <= packed_bytes(count, width) <= -(-bits // 8) + 3
    assert packed_bytes(512 * 3, width) == 512 * 3 * width // 8


@pytest.mark.parametrize("spec", [s for s in SPECS if s != "identity"])
def test_a_bad_payload_leaves_the_accumulator_untouched(spec: str) -> None:
    q, x = quantizer(spec), heavy_tailed(600)
    payload = bytearray(q.encode(x, 1))
    rng, untouched = np.random.default_rng(0), 0
    for _ in range(200):
        damaged = bytearray(payload)
        for _ in range(3):
            damaged[rng.integers(len(damaged))] ^= int(rng.integers(1, 256))
        total = np.ones(600, np.float32)
        try:
            q.decode_add(bytes(damaged), total)
        except FrameError:
            untouched += 1
            assert (total == 1).all()
        else:
            assert np.isfinite(total).all()
    for wrong in (payload[:-1], payload + b"\0", b""):
        total = np.ones(600, np.float32)
        with pytest.raises(FrameError):
            q.decode_add(bytes(wrong), total)
        assert (total == 1).all()


def kernels_and_others(size: int = 700) -> tuple[Layout, vectors.Vector]:
    layout = Layout.of({"conv": (7, 5, 3, 3), "bias": (7,), "dense": (size - 322, 1)})
    x = heavy_tailed(size)
    x[:315] += np.repeat(heavy_tailed(35, seed=2), 9) * 3  # what the weights of a kernel have in common
    return layout, x


@pytest.mark.parametrize("spec", ["dither:step=1", "deadzone:step=1"])
def test_kernels_as_frequencies_lose_no_more_and_cost_less(spec: str) -> None:
    layout, x = kernels_and_others()
    plain, bound = quantizer(spec), quantizer(spec, layout)
    assert bound != plain
    assert bound.spec == plain.spec
    errors, sizes = [], []
    for q in (plain, bound):
        payloads = [q.encode(x, seed) for seed in range(64)]
        errors.append(np.mean([np.square(q.decode(p, x.size) - x).sum() for p in payloads]))
        sizes.append(np.mean([len(p) for p in payloads]))
    assert errors[1] < 1.02 * errors[0]
    assert sizes[1] < sizes[0]
    total = x.copy()
    payload = bound.encode(x, 1)
    bound.decode_add(payload, total, 0.5)
    assert np.array_equal(total, x + np.float32(0.5) * bound.decode(payload, x.size))
    with pytest.raises(VectorError, match="coordinates"):
        bound.encode(x[:-1].copy(), 0)


@pytest.mark.parametrize(
    "layout", [None, Layout.of({"kernels": (10, 9, 3, 3), "dense": (30, 10), "bias": (10,)})]
)
@pytest.mark.parametrize("spec", SPECS)
def test_encode_add_adds_what_its_payload_decodes_to(spec: str, layout: Layout | None) -> None:
    q, start = quantizer(spec, layout), heavy_tailed(1120, seed=5)
    for k, x in enumerate((heavy_tailed(1120), np.zeros(1120, np.float32), heavy_tailed(1120, scale=1e-30))):
        added, decoded = start.copy(), start.copy()
        payload = q.encode_add(x, k, added)
        assert payload == q.encode(x, k)
        q.decode_add(payload, decoded)
        assert np.array_equal(added, decoded)


def test_a_layout_without_kernels_changes_bytes_but_no_value() -> None:
    x, layout = heavy_tailed(310), Layout.of({"dense": (30, 10), "bias": (10,)})
    for spec in ("dither:step=2", "deadzone:step=2"):
        bound, plain = quantizer(spec, layout), quantizer(spec)
        assert bound.encode(x, 1) != plain.encode(x, 1)
        assert np.array_equal(bound.decode(bound.encode(x, 1), 310), plain.decode(plain.encode(x, 1), 310))


@pytest.mark.parametrize("name", ["dither", "deadzone"])
def test_a_target_in_bits_is_kept(name: str) -> None:
    x = heavy_tailed(20_000)
    for bits in (0.5, 1, 2, 4):
        used = 8 * len(quantizer(f"{name}:bits={bits}").encode(x, 1)) / x.size
        assert 0.8 * bits < used < 1.03 * bits + 0.02


@pytest.mark.parametrize("spec", ["dither", "deadzone"])
def test_a_target_of_error_is_met(spec: str) -> None:
    x = heavy_tailed(20_000)
    for wanted in (0.01, 0.1, 0.5):
        q = quantizer(f"{spec}:nmse={wanted}")
        errors = [np.square(q.decode(q.encode(x, seed), x.size) - x).sum() for seed in range(20)]
        assert np.mean(errors) / np.square(x).sum() == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("many", [1, 2, 30, 100, 250, 400, 600, 800, 1023, 1024])
def test_no_vector_takes_more_than_the_bound_of_rotated(many: int) -> None:
    """Vectors that are ``many`` equal numbers in every block once they are rotated: far from normal."""
    from qafel.quantizers import _rotation, _rotation_kernels
    from qafel.streams import keys

    for bits in ("0.1", "0.5", "4"):
        q, y = quantizer(f"rotated:bits={bits}"), np.zeros((3, 1024), np.float32)
        y[:, :many] = np.random.default_rng(many).choice([-1, 1], (3, many))
        x = y.ravel()
        _rotation_kernels.rotate_blocks(x, keys(_rotation.draw_seed(1)), True)
        payload = q.encode(x, 1)
        assert len(payload) <= q.max_bytes(x.size)
        assert np.isfinite(q.decode(payload, x.size)).all()


KERNELS = Layout.of({"kernels": (1, 1, 3, 3)})


@pytest.mark.parametrize("spec", ["deadzone:step=2", "dither:step=6"])
def test_kernels_of_any_finite_size_are_coded_and_none_decodes_to_anything_else(spec: str) -> None:
    q = quantizer(spec, KERNELS)
    for x in (np.full(9, 3e38), np.array([1e-45] + [0] * 8), np.full(9, 1e-44), np.arange(9) * 1e-41):
        vector = x.astype(np.float32)
        decoded = q.decode(q.encode(vector, 0), 9).astype(np.float64)
        assert np.isfinite(decoded).all()
        if spec.startswith("deadzone"):
            assert np.square(decoded - vector).sum() <= np.square(vector.astype(np.float64)).sum() * (
                1 + 1e-6
            )


@pytest.mark.parametrize(
    ("spec", "head"),
    [
        ("deadzone:step=2", struct.pack("<fh4B", 1.0, -160, *[128] * 4)),
        ("dither:step=6", struct.pack("<fhII", 1.0, -160, 256, 7)),
    ],
)
def test_frequencies_beyond_float32_decode_to_finite_kernels(spec: str, head: bytes) -> None:
    q = quantizer(spec, KERNELS)
    assert isinstance(q, Stepped)
    numbers = np.array([1, 1, -1] * 3, np.int16)
    assert np.isfinite(q.decode(head + encode_integers(numbers, q.rows), 9)).all()


def test_a_step_of_a_thousand_rms_is_decoded() -> None:
    x, q = np.full(10, 2.0**39, np.float32), quantizer("dither:step=1000")
    assert np.isfinite(q.decode(q.encode(x, 1), 10)).all()
