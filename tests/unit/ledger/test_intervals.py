"""Intervals are sets of sequences, written short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.errors import InvalidOption
from spark_mq.ledger.intervals import format_intervals, from_sequences, normalise, subtract

spans = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)
some = st.lists(spans, max_size=8)


def members(intervals):
    return {seq for first, last in intervals for seq in range(first, last + 1)}


def is_normal(intervals):
    """Ascending, each with something in it, and a gap before the next."""
    return all(first <= last for first, last in intervals) and all(
        one[1] + 1 < other[0] for one, other in pairwise(intervals)
    )


@given(some)
def test_normalise_keeps_the_set_and_is_shortest(intervals):
    normal = normalise(intervals)
    assert is_normal(normal)
    assert members(normal) == members(intervals)


@given(some, some)
def test_subtract_is_that_of_sets(intervals, less):
    left = subtract(intervals, less)
    assert is_normal(left)
    assert members(left) == members(intervals) - members(less)


def test_a_text_shows_200_intervals():
    apart = [(at, at) for at in range(0, 404, 2)]
    assert format_intervals(apart[:200]).endswith(",396-396,398-398")
    assert format_intervals(apart).endswith(",398-398,... 2 more")


places = st.integers(0, 50)


@given(st.lists(places) | st.builds(range, places, places, st.sampled_from([1, -1, 2, -3])))
def test_sequences_become_intervals(sequences):
    intervals = from_sequences(sequences)
    assert is_normal(intervals)
    assert members(intervals) == set(sequences)


def test_a_range_is_not_iterated():
    whole = range(2**63)
    assert from_sequences(whole) == [(0, 2**63 - 1)]
    assert from_sequences(whole[::-1]) == [(0, 2**63 - 1)]
    for wrong, value in ((range(-1, 2**62), -1), (range(2**63 + 1), 2**63)):
        with pytest.raises(InvalidOption, match="not a sequence") as caught:
            from_sequences(wrong)
        assert caught.value.data == {"option": "sequences", "value": value}


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.0, "1", None, True])
def test_what_is_no_sequence_is_refused(wrong):
    with pytest.raises(InvalidOption, match="not a sequence") as caught:
        from_sequences([1, wrong])
    assert caught.value.data == {"option": "sequences", "value": wrong}
