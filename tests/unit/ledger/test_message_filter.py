"""Filters as a person gives them."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq import GroupSettings
from spark_mq.errors import InvalidOption
from spark_mq.ledger.message_filter import FILTERS, RowRuns, filter_id


@pytest.mark.parametrize(
    ("given", "text", "meant"),
    [
        ({"key_prefix": ("uk-", "eu-", "eu-")}, "key_prefix=uk-, key_prefix=eu-",
         {"key_prefix": ["eu-", "uk-"]}),
        ({"header": {"b": ["2", "1"], "a": ""}, "key_prefix": "x"},
         "key_prefix=x,header.b=2,header.b=1,header.a=",
         {"header": {"a": [""], "b": ["1", "2"]}, "key_prefix": ["x"]}),
        ({"header": {"a.b": "c=d"}}, "header.a.b=c=d", {"header": {"a.b": ["c=d"]}}),
        ({"key_prefix": "a,b"}, '{"key_prefix": "a,b"}', {"key_prefix": ["a,b"]}),
    ],
)  # fmt: skip
def test_python_and_text_mean_the_same(given: Any, text: str, meant: dict[str, Any]) -> None:
    assert FILTERS.check("filter", given) == FILTERS.check("filter", text) == meant
    assert FILTERS.show(meant).startswith("{") == text.startswith("{"), "shown as it is typed"


def test_a_filter_has_a_hundred_values_at_most() -> None:
    headers = {str(n): "a" for n in range(99)}
    assert FILTERS.check("filter", {"header": headers, "key_prefix": "x" * 1_000})
    with pytest.raises(InvalidOption):
        FILTERS.check("filter", {"header": headers, "key_prefix": ["x", "y"]})


texts = st.text(st.sampled_from('=, {"\u00e9\x00'), max_size=4)
names = texts.filter(bool)
filters = st.fixed_dictionaries(
    {},
    optional={
        "key_prefix": st.lists(names, min_size=1, max_size=3),
        "header": st.dictionaries(
            names, st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=3
        ),
    },
).filter(bool)


@given(filters)
def test_what_is_shown_and_stored_can_be_given_again(one: dict[str, Any]) -> None:
    clean = FILTERS.check("filter", one)
    assert FILTERS.check("filter", FILTERS.show(clean)) == clean
    settings = GroupSettings().changed(filter=one)
    stored = json.loads(json.dumps(settings.encoded()))
    assert GroupSettings.decoded(stored) == settings
    assert filter_id(GroupSettings.decoded(stored).filter or {}) == filter_id(clean)


def test_runs_are_clipped_to_the_rows_asked_for() -> None:
    runs = RowRuns(array("q", [2, 3, 7]), False)
    assert list(runs.between(0, 6)) == [(False, 0, 1), (True, 2, 2), (False, 3, 6)]
    assert list(runs.between(1, 4)) == [(False, 1, 1), (True, 2, 2), (False, 3, 4)]
    assert list(runs.between(2, 2)) == [(True, 2, 2)]
    assert not runs.all_match
    assert RowRuns(array("q", [7]), True).all_match
    assert not RowRuns(array("q", [3, 7]), True).all_match
