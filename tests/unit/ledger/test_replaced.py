"""The text that names replaced messages, and the runs of a file that it makes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.ledger.intervals import (
    MAX_REPLACED_BYTES,
    decode_replaced,
    encode_replaced,
    normalise,
    split_at,
    valid_replaced,
)
from spark_mq.ledger.message_index import sequence

SOME = st.sets(st.integers(0, 60), min_size=1)


@given(st.sets(st.one_of(st.integers(0, 60), st.integers(0, 2**62)), min_size=1))
def test_a_text_has_the_same_sequences(sequences: set[int]) -> None:
    text = encode_replaced(sequences)
    assert decode_replaced(text) == normalise((one, one) for one in sequences)
    assert valid_replaced(text, max(sequences) + 1)
    assert not valid_replaced(text, max(sequences))


def test_a_text_is_short() -> None:
    assert encode_replaced([13, 7, 8, 9]) == "7+2,4"
    assert len(encode_replaced(range(10**6))) < 20
    scattered = encode_replaced(sequence(9_000, 2 * row) for row in range(1_000))
    assert len(scattered) < 2_020
    step = 10**9 // 15_000  # each was published alone, in one of a billion commits
    alone = encode_replaced(sequence(at * step, at % 1_000) for at in range(1, 15_001))
    assert len(alone) <= MAX_REPLACED_BYTES


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "1-2", "-1", "1+-2", "a", "1 2", "1+", "٣", "1" * 20, 7, None, ["1"]]
)
def test_another_tag_names_no_message(text: object) -> None:
    assert not valid_replaced(text, 2**63)


@given(SOME, st.integers(0, 60), st.integers(0, 60))
def test_the_runs_of_a_file_are_replaced_or_not(replaced: set[int], one: int, other: int) -> None:
    first, last = min(one, other), max(one, other)
    runs = list(split_at(normalise((n, n) for n in replaced), first, last))
    found = {n: is_replaced for is_replaced, low, high in runs for n in range(low, high + 1)}
    assert found == {n: n in replaced for n in range(first, last + 1)}
    assert all(a[0] != b[0] and a[2] + 1 == b[1] for a, b in pairwise(runs))
