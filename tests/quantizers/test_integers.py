"""Codings of small integers are exact, never longer than fixed width, and reject invalid bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qafel.coding.bitplanes import packed_bytes
from qafel.coding.gaps import BITS, BLOCK, CLASSES, STEPS, tables
from qafel.coding.integers import (
    RANGE,
    Integers,
    Rows,
    decode_integers,
    encode_integers,
    max_integer_bytes,
)
from qafel.coding.threads import set_threads, thread_count
from qafel.errors import FrameError

INTEGERS = hnp.arrays(np.int16, st.integers(0, 700), elements=st.integers(-32767, 32767))
SMALL = hnp.arrays(np.int16, st.integers(0, 1500), elements=st.integers(-3, 3))


def fixed_bytes(numbers: Integers) -> int:
    width = (2 * int(np.abs(numbers).max())).bit_length() if numbers.size else 0
    return 3 + packed_bytes(numbers.size, width) if numbers.size else 1


@settings(max_examples=400, deadline=None)
@given(INTEGERS | SMALL, st.integers(0, 40))
def test_integers_survive_and_never_take_more_than_fixed_width(numbers: Integers, width: int) -> None:
    limit = int(np.abs(numbers).max()) if numbers.size else 0
    half = numbers.size // 2
    rows = np.array([[half, 0], [numbers.size, width]][half == 0 :]) if numbers.size else None
    data = encode_integers(numbers, rows)
    assert len(data) <= min(max_integer_bytes(numbers.size, limit), fixed_bytes(numbers))
    assert np.array_equal(decode_integers(data, numbers.size, limit, rows), numbers)
    if limit:
        with pytest.raises(FrameError):
            decode_integers(data, numbers.size, limit - 1, rows)


def test_every_magnitude_survives() -> None:
    numbers = np.concatenate([np.arange(-32767, 32768), np.zeros(400_000)]).astype(np.int16)
    data = encode_integers(numbers)
    assert data[0] == RANGE
    assert np.array_equal(decode_integers(data, numbers.size, 32767), numbers)


def test_a_single_number_takes_no_more_than_fixed_width() -> None:
    for number in range(-300, 301):
        alone = np.array([number], np.int16)
        assert len(encode_integers(alone)) <= fixed_bytes(alone)


def test_a_strided_view_is_coded_like_its_copy() -> None:
    numbers = np.rint(np.random.default_rng(1).standard_t(3, 9000)).astype(np.int16)
    for view in (numbers[::2], numbers[::-1], numbers[::-3]):
        assert encode_integers(view) == encode_integers(view.copy())


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_truncated_or_extended_codings_are_rejected_or_decode_to_other_numbers(scale: float) -> None:
    rng = np.random.default_rng(1)
    numbers = np.rint(rng.standard_t(3, 3000) * scale).astype(np.int16)
    data = encode_integers(numbers)
    refused = 0
    for cut in range(1, len(data), max(1, len(data) // 50)):
        try:
            decoded = decode_integers(data[:-cut], 3000, 32767)
        except FrameError:
            refused += 1
        else:
            assert not np.array_equal(decoded, numbers)
    assert refused > 40
    for more in (b"\0", b"\0\0", b"\1\2"):
        with pytest.raises(FrameError):
            decode_integers(data + more, 3000, 32767)


@pytest.mark.parametrize("scale", [0.4, 3.0, 40.0])
def test_changed_bytes_are_refused_or_stay_within_the_limit(scale: float) -> None:
    rng = np.random.default_rng(1)
    numbers = np.rint(rng.standard_normal(9000) * scale).astype(np.int16)
    data, limit = encode_integers(numbers), int(np.abs(numbers).max())
    assert data[0] == RANGE
    refused = 0
    for _ in range(600):
        wrong = bytearray(data)
        for place in rng.integers(1, len(data), rng.integers(1, 4)):
            wrong[place] = rng.integers(256)
        try:
            decoded = decode_integers(bytes(wrong), numbers.size, limit)
        except FrameError:
            refused += 1
        else:
            assert np.abs(decoded).max() <= limit
    assert refused > 400


@pytest.mark.parametrize("width", [0, 96])
def test_a_long_vector_of_integers_comes_in_streams_that_threads_share(width: int) -> None:
    numbers = np.rint(np.random.default_rng(1).standard_normal(1_200_007)).astype(np.int16)
    rows = np.array([[500_007, 0], [1_200_007, width]])
    before = thread_count()
    try:
        set_threads(1)
        data = encode_integers(numbers, rows)
        set_threads(3)
        assert encode_integers(numbers, rows) == data
        assert np.array_equal(decode_integers(data, numbers.size, 10, rows), numbers)
    finally:
        set_threads(before)
    assert 8 * len(data) / numbers.size < 2.15  # the entropy of a rounded normal number is 2.1


def test_rare_numbers_cost_their_entropy_and_clusters_less() -> None:
    rng = np.random.default_rng(1)
    rare = (rng.random(30_000) < 0.03).astype(np.int16) * rng.choice([-1, 1], 30_000).astype(np.int16)
    alone = 8 * len(encode_integers(rare))
    assert alone < 1.06 * 30_000 * (0.1944 + 0.03)
    assert 8 * len(encode_integers(np.sort(rare))) < alone / 5  # most of that is for the signs


def test_signs_of_a_matrix_of_rank_one_are_predicted() -> None:
    rng = np.random.default_rng(1)
    rows, columns = rng.choice([-1, 1], (200, 1)), rng.choice([-1, 1], (1, 50))
    numbers = (rows * columns * (rng.random((200, 50)) < 0.3)).astype(np.int16).ravel()
    matrix: Rows = np.array([[10_000, 50]])
    signs = (numbers != 0).sum() / 8
    assert len(encode_integers(numbers, matrix)) < len(encode_integers(numbers)) - signs / 2


def test_the_tables_of_normal_numbers_are_distributions_near_the_true_one() -> None:
    known = tables()
    for k in range(CLASSES):
        count = 2 * int(known.gaps[k]) * int(known.tops[k]) + 1
        starts = known.starts[k, : count + 1].astype(int)
        assert starts[0] == 0
        assert starts[-1] == 1 << BITS
        assert (np.diff(starts) > 0).all()
        first = 2 * int(known.tops[k])  # the symbols without a gap
        drawn = np.abs(np.random.default_rng(0).standard_normal(400_000)) / STEPS[k] + 1 / 3 >= 1
        assert abs(starts[first] / (1 << BITS) - drawn.mean()) < 0.02 * drawn.mean() + 0.002
        assert known.classes[round(drawn.mean() * BLOCK)] in {max(k - 1, 0), k, k + 1}
