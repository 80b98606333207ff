"""Ranges, their states, and the ledger that holds them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.limits import set_limits

from spark_mq.errors import NotAQueue
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.message_index import sequence
from spark_mq.ledger.ranges import (
    DEAD,
    LEASED,
    RANGE_SCHEMA,
    SETTLED,
    STATES,
    TRANSFERRING,
    Ledger,
    LedgerHeader,
    Range,
)
from spark_mq.storage.ledger_files import LEASES_SCHEMA, from_rows, to_rows

from .ledger_kinds import INDEX, KINDS, SEQS, kind_lists, ledger_of, ranges_of

# -- Range


@pytest.mark.parametrize(
    "field", [f for f in RANGE_SCHEMA.names if f not in ("first", "last", "message_count")]
)
def test_ranges_are_alike_only_if_they_differ_in_nothing_but_place(field):
    one = KINDS[3]
    other = one._replace(first=7, last=9, message_count=3)
    assert one.same_state_as(other)
    assert not one.same_state_as(other._replace(**{field: "something else"}))


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 4, (0, 4, 5)),
        (1, 3, (1, 3, 3)),
        (3, sequence(2, 0), (3, sequence(2, 0), 3)),
        (5, sequence(2, 1), (sequence(2, 0), sequence(2, 1), 2)),
        (2, sequence(1, 7), (2, 4, 3)),
        (4, 5, (4, 4, 1)),
        (-5, 2**62, (0, sequence(2, 6), 12)),
    ],
)
def test_a_part_begins_and_ends_with_messages(first, last, expected):
    whole = Range(0, sequence(2, 6), LEASED, 12, lease_id="a")
    part = whole.slice(first, last, INDEX)
    assert (part.first, part.last, part.message_count) == expected
    assert part.same_state_as(whole)


@pytest.mark.parametrize(
    ("first", "last"), [(5, sequence(2, 0) - 1), (3, 2), (sequence(9, 0), sequence(9, 9))]
)
def test_a_part_in_a_gap_is_empty(first, last):
    part = Range(0, sequence(2, 6), LEASED, 12).slice(first, last, INDEX)
    assert part.message_count == 0


def test_a_settled_range_forgets_all_else():
    assert KINDS[3].as_settled() == KINDS[0]


# -- Ledger


@given(kind_lists)
def test_a_ledger_gives_back_its_ranges(kinds):
    ledger, expected = ledger_of(kinds), ranges_of(kinds)
    if expected and expected[0].state == SETTLED:
        expected.pop(0)
    assert list(ledger) == expected
    assert len(ledger) == len(expected)
    assert [ledger.range_at(row) for row in range(len(ledger))] == expected
    assert [ledger.state_at(row) for row in range(len(ledger))] == [r.state for r in expected]
    assert ledger.ranges_at(range(len(ledger))[::-1]) == expected[::-1]
    assert ledger.ranges_at([]) == []
    assert list(ledger.first_sequences) == [r.first for r in expected]
    assert list(ledger.last_sequences) == [r.last for r in expected]
    assert list(ledger.message_counts) == [r.message_count for r in expected]
    assert ledger.end_sequence == (SEQS[len(kinds) - 1] if kinds else -1)
    assert ledger.count() == sum(r.message_count for r in expected)
    for state in STATES:
        assert ledger.ranges_at(ledger.find((state,))) == [r for r in expected if r.state == state]
        assert ledger.count((state,)) == sum(r.message_count for r in expected if r.state == state)
    assert ledger.ranges_at(ledger.rows_held("a")) == [r for r in expected if r.lease_id == "a"]


CONDITIONS = [
    ("lease_id", "=", "a"), ("lease_id", "starts with", "a"), ("expires_at", "<", 9),
    ("available_at", "<=", 5), ("available_at", ">", 4), ("delivery_count", ">=", 1),
    ("suspect", "=", False),
]  # fmt: skip


@given(
    kind_lists,
    st.lists(st.sampled_from(STATES), min_size=1, unique=True),
    st.lists(st.sampled_from(CONDITIONS), max_size=3),
)
def test_a_list_and_a_table_of_ranges_give_the_same_answers(kinds, states, conditions):
    ranges = list(ledger_of(kinds))
    small = Ledger(LedgerHeader(), ranges)
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, listed_ranges=-1)
        large = Ledger(LedgerHeader(), ranges)
    assert small.rows is not None
    assert large.rows is None
    assert list(small) == list(large) == ranges
    assert small.find(states, *conditions) == large.find(states, *conditions)
    assert small.count(states, *conditions) == large.count(states, *conditions)
    for name in ("expires_at", "available_at", "delivery_count"):
        assert small.minimum(name, states, *conditions) == large.minimum(name, states, *conditions)
        assert small.distinct(name, states) == large.distinct(name, states)
    found = small.find(states)
    assert small.values_at("state", found) == large.values_at("state", found)
    assert list(small.first_sequences) == list(large.first_sequences)
    assert [large.range_at(row) for row in range(len(large))] == ranges


places = st.sampled_from([-1, *SEQS, SEQS[-1] + 1, sequence(1, 0), sequence(9, 0)])


@given(kind_lists, places, places)
@example([1, 1], 1, 0)
def test_the_ranges_over_an_interval(kinds, first, last):
    ledger = ledger_of(kinds)
    over = [ledger.range_at(row) for row in ledger.overlapping(first, last)]
    assert over == [r for r in ledger if first <= last and r.first <= last and r.last >= first]


def test_a_slice_of_a_table_makes_the_same_ledger(monkeypatch):
    """Views of integers must heed a table's offset and chunks."""
    set_limits(monkeypatch, listed_ranges=-1)  # or it would be a list
    ranges = ranges_of([1, 2, 3, 4, 5, 1, 2])
    table = Ledger.from_ranges(LedgerHeader(), ranges).ranges
    for sliced in (table.slice(2, 4), pa.concat_tables([table.slice(2, 1), table.slice(3, 3)])):
        ledger = Ledger(LedgerHeader(), sliced)
        assert list(ledger) == ranges[2:6]
        assert list(ledger.first_sequences) == [r.first for r in ranges[2:6]]
        assert list(ledger.overlapping(ranges[3].first, ranges[4].last)) == [1, 2]


def test_the_largest_sequences_and_counts_fit():
    big = Range(
        2**63 - 5, 2**63 - 1, LEASED, 5, "a", "w", 2**52, 2**52 + 1, 2**63 - 1, 0, 1,
        2**31 - 1, 2**31 - 1, True, None, "r", "e",
    )  # fmt: skip
    assert list(Ledger.from_ranges(LedgerHeader(), [big])) == [big]


def test_routing_gives_no_hold():
    no_hold = [Range(0, 0, TRANSFERRING, 1, lease_id="a"), Range(1, 1, DEAD, 1, lease_id="a")]
    ledger = Ledger.from_ranges(LedgerHeader(), no_hold)
    assert ledger.rows_held("a") == []


# -- stored rows


@given(kind_lists)
def test_a_ledger_comes_back_from_its_rows(kinds):
    ledger = ledger_of(kinds)
    head = replace(
        ledger.head,
        revision=7,
        leases_without_fresh=2,
        breaker=Breaker(failed=(3, 5), cause="boom", opened_at=7, next_trial_at=9, trial=5),
        counters={"acked": 3},
        happened={"leased": 4, "leases": 2},
        settings={"max_delivery_attempts": None},
    )
    stored = Ledger(head, ledger.ranges)
    rows = to_rows("group", stored)
    assert rows.schema == LEASES_SCHEMA
    assert rows.num_rows == len(ledger) + 1
    assert set(rows["consumer_group"].to_pylist()) == {"group"}
    again = from_rows(rows)
    assert (again.head, list(again)) == (head, list(stored))
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, small_ledger_rows=0)
        many = from_rows(rows)
    assert (many.head, list(many)) == (head, list(stored)), "many rows are read by columns"
    # Files and engines promise no order of rows.
    mixed = rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))
    assert list(from_rows(pa.concat_tables([mixed.slice(0, 1), mixed.slice(1)]))) == list(stored)


def test_a_range_without_a_first_sequence_is_no_ledger():
    rows = to_rows("group", ledger_of([3, 1]))
    firsts = pa.array([None] * rows.num_rows, pa.int64())
    with pytest.raises(NotAQueue, match="has no first sequence"):
        from_rows(rows.set_column(rows.schema.names.index("first"), "first", firsts))


@pytest.mark.parametrize("floors", [0, 2])
def test_rows_without_just_one_floor_are_no_ledger(floors):
    rows = to_rows("group", ledger_of([3, 1]))
    floor = rows.filter(pc.equal(rows["state"], "header"))
    ranges = rows.filter(pc.not_equal(rows["state"], "header"))
    with pytest.raises(NotAQueue, match=f"has {floors} header rows"):
        from_rows(pa.concat_tables([ranges, *[floor] * floors]))
