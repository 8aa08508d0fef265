"""Codings of small integers are exact, never longer than fixed width, and reject invalid bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qafel.coding.integers import (
    CODINGS,
    RANS,
    Integers,
    decode_integers,
    encode_integers,
    max_integer_bytes,
)
from qafel.coding.rans_digits import GROUPINGS
from qafel.coding.threads import set_threads, thread_count
from qafel.errors import FrameError

INTEGERS = hnp.arrays(np.int16, st.integers(0, 700), elements=st.integers(-32767, 32767))
SMALL = hnp.arrays(np.int16, st.integers(0, 1500), elements=st.integers(-3, 3))


@settings(max_examples=300, deadline=None)
@given(INTEGERS | SMALL, st.sampled_from(CODINGS))
def test_integers_survive_every_coding_and_never_take_more_than_fixed_width(
    numbers: Integers, coding: str
) -> None:
    limit = int(np.abs(numbers).max()) if numbers.size else 0
    data = encode_integers(numbers, coding)
    assert len(data) <= max_integer_bytes(numbers.size, limit)
    assert len(data) <= len(encode_integers(numbers, "fixed"))
    assert np.array_equal(decode_integers(data, numbers.size, limit), numbers)
    if limit:
        with pytest.raises(FrameError):
            decode_integers(data, numbers.size, limit - 1)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_single_number_takes_no_more_than_fixed_width(coding: str) -> None:
    for number in range(-300, 301):
        alone = np.array([number], np.int16)
        assert len(encode_integers(alone, coding)) <= len(encode_integers(alone, "fixed"))


@pytest.mark.parametrize("coding", CODINGS)
def test_a_strided_view_is_coded_like_its_copy(coding: str) -> None:
    numbers = np.rint(np.random.default_rng(1).standard_t(3, 9000)).astype(np.int16)
    for view in (numbers[::2], numbers[::-1], numbers[::-3]):
        assert encode_integers(view, coding) == encode_integers(view.copy(), coding)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_truncated_or_extended_codings_are_rejected_or_decode_to_other_numbers(
    coding: str, scale: float
) -> None:
    rng = np.random.default_rng(1)
    numbers = np.rint(rng.standard_t(3, 3000) * scale).astype(np.int16)
    data = encode_integers(numbers, coding)
    refused = 0
    for cut in range(1, len(data), max(1, len(data) // 50)):
        try:
            decoded = decode_integers(data[:-cut], 3000, 32767)
        except FrameError:
            refused += 1
        else:
            assert not np.array_equal(decoded, numbers)
    assert refused > 40
    with pytest.raises(FrameError):
        decode_integers(data + b"\0", 3000, 32767)


def test_a_long_vector_of_integers_comes_in_streams_that_threads_share() -> None:
    numbers = np.rint(np.random.default_rng(1).standard_normal(1_200_007)).astype(np.int16)
    before = thread_count()
    try:
        set_threads(1)
        data = encode_integers(numbers, "rans")
        set_threads(3)
        assert encode_integers(numbers, "rans") == data
        assert np.array_equal(decode_integers(data, numbers.size, 10), numbers)
    finally:
        set_threads(before)
    assert 8 * len(data) / numbers.size < 2.2  # the entropy of a rounded normal number is 2.1


def test_the_range_coder_is_near_the_entropy_and_learns_what_repeats() -> None:
    rng = np.random.default_rng(1)
    rare = (rng.random(30_000) < 0.03).astype(np.int16) * rng.choice([-1, 1], 30_000).astype(np.int16)
    assert 8 * len(encode_integers(rare, "range")) < 1.03 * 30_000 * (0.1944 + 0.03)
    wave = np.rint(4 * np.sin(np.arange(30_000) / 5)).astype(np.int16)
    assert 8 * len(encode_integers(wave, "range")) < 2 * 30_000  # where its numbers alone have 3.1 bits


def of_grouping(kind: int, size: int) -> Integers:
    """Numbers for which rANS chooses a grouping: up to its m, except for one in five hundred."""
    rng = np.random.default_rng(kind)
    max_digit = GROUPINGS[kind][1]
    numbers = np.rint(rng.standard_normal(size) * max_digit / 2).clip(-max_digit, max_digit).astype(np.int16)
    some = rng.choice(size, size // 500, replace=False)
    numbers[some] = rng.choice([-1, 1], some.size) * rng.integers(max_digit + 1, 2 * max_digit + 9, some.size)
    return numbers


@pytest.mark.parametrize("kind", range(len(GROUPINGS)))
@pytest.mark.parametrize("size", [20_000, 20_011, 600_001])
def test_every_grouping_of_rans_survives_with_outliers_anywhere(kind: int, size: int) -> None:
    numbers = of_grouping(kind, size)
    numbers[[0, 1, 31, 32, -2, -1]] = [32767, -32767, 200, 300, 500, -1000]
    data = encode_integers(numbers, "rans")
    streams = -(-size // (1 << 19))
    assert data[0] == RANS
    assert data[1 + 4 * streams] == kind
    assert np.array_equal(decode_integers(data, size, 32767), numbers)
    with pytest.raises(FrameError):
        decode_integers(data, size, 32766)


def test_outliers_that_no_sample_shows_are_coded_with_another_grouping() -> None:
    numbers = np.zeros(1 << 19, np.int16)
    numbers.reshape(-1, 1024)[:, 500:521] = 9  # two in a hundred, between the runs that are looked at
    data = encode_integers(numbers, "rans")
    assert data[0] == RANS
    assert GROUPINGS[data[5]][1] > 9
    assert np.array_equal(decode_integers(data, numbers.size, 9), numbers)


@pytest.mark.parametrize("kind", range(len(GROUPINGS)))
def test_changed_bytes_of_rans_are_refused_or_stay_within_the_limit(kind: int) -> None:
    numbers = of_grouping(kind, 9000)
    data, limit, rng = encode_integers(numbers, "rans"), int(np.abs(numbers).max()), np.random.default_rng(1)
    head = 5 + (2 * GROUPINGS[kind][1] + 1) ** GROUPINGS[kind][0] + 60
    refused = 0
    for _ in range(600):
        wrong = bytearray(data)
        for place in rng.integers(1, rng.choice([head, len(data)]), rng.integers(1, 4)):
            wrong[place] = rng.integers(256)
        try:
            decoded = decode_integers(bytes(wrong), numbers.size, limit)
        except FrameError:
            refused += 1
        else:
            assert np.abs(decoded).max() <= limit
    assert refused > 400
