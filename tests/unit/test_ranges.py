"""Ranges, the ledger that holds them, and drafts of the next one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import groupby, pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_mq.errors import LeaseLost, NotAQueue
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import DEAD, LEASED, RANGE_SCHEMA, ROUTING, SETTLED, STATES, WAITING, Ledger, LedgerHeader, Range
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, from_rows, to_rows

FILES = [DataFile(0, 5, "a", 5, 0), DataFile(sequence(2, 0), 4, "b", 4, 0), DataFile(sequence(2, 4), 3, "c", 3, 0)]
INDEX = MessageIndex(FILES, 2)
SEQS = [f.first + row for f in FILES for row in range(f.rows)]

KINDS = [
    Range(0, 0, SETTLED, 1),
    Range(0, 0, WAITING, 1, available_at=5, delivery_count=1, failure_count=1, first_leased_at=1),
    Range(0, 0, WAITING, 1, available_at=5, delivery_count=1, failure_count=1, first_leased_at=1, suspect=True, lease_id="a"),
    Range(0, 0, LEASED, 1, lease_id="a", worker_id="w", leased_at=1, expires_at=9, first_leased_at=1, delivery_count=1),
    Range(0, 0, LEASED, 1, lease_id="b", worker_id="w", leased_at=1, expires_at=9, first_leased_at=1, delivery_count=1),
    Range(0, 0, DEAD, 1, reason="rejected", error="é\n"),
]
"""What a message may be; two are leased, two waiting, and differ in little."""


def ranges_of(kinds, first=0) -> list[Range]:
    """The ranges of messages of some kinds, alike neighbours joined, by counting on fingers."""
    out = []
    for kind, run in groupby(enumerate(kinds, first), key=lambda pair: pair[1]):
        at = [number for number, _ in run]
        out.append(KINDS[kind]._replace(first=SEQS[at[0]], last=SEQS[at[-1]], message_count=len(at)))
    return out


def ledger_of(kinds) -> Ledger:
    """A ledger in which the messages, from the first, are of these kinds; settled ones at the start are below the floor."""
    floor = next((at for at, kind in enumerate(kinds) if kind), len(kinds))
    head = LedgerHeader(floor=SEQS[floor - 1] if floor else -1, forgotten=floor)
    return Ledger.of(head, ranges_of(kinds[floor:], floor))


kind_lists = st.lists(st.integers(0, len(KINDS) - 1), max_size=len(SEQS))


# -- Range


@pytest.mark.parametrize("field", [f for f in RANGE_SCHEMA.names if f not in ("first", "last", "message_count")])
def test_ranges_are_alike_only_if_they_differ_in_nothing_but_place(field):
    one = KINDS[3]
    other = one._replace(first=7, last=9, message_count=3)
    assert one.alike(other)
    assert not one.alike(other._replace(**{field: "something else"}))


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 4, (0, 4, 5)),
        (1, 3, (1, 3, 3)),
        (3, sequence(2, 0), (3, sequence(2, 0), 3)),
        (5, sequence(2, 1), (sequence(2, 0), sequence(2, 1), 2)),
        (2, sequence(1, 7), (2, 4, 3)),
        (-5, 2**62, (0, sequence(2, 6), 12)),
    ],
)
def test_a_part_begins_and_ends_with_messages(first, last, expected):
    whole = Range(0, sequence(2, 6), LEASED, 12, lease_id="a")
    part = whole.part(first, last, INDEX)
    assert (part.first, part.last, part.message_count) == expected
    assert part.alike(whole)


@pytest.mark.parametrize(("first", "last"), [(5, sequence(2, 0) - 1), (3, 2), (sequence(9, 0), sequence(9, 9))])
def test_a_part_in_a_gap_is_empty(first, last):
    assert Range(0, sequence(2, 6), LEASED, 12, lease_id="a").part(first, last, INDEX).message_count == 0


def test_a_settled_range_forgets_all_else():
    assert KINDS[3].settled() == KINDS[0]


def test_a_range_is_immutable():
    with pytest.raises(AttributeError):
        KINDS[0].state = DEAD


# -- Ledger


@given(kind_lists)
def test_a_ledger_gives_back_its_ranges(kinds):
    ledger, expected = ledger_of(kinds), ranges_of(kinds)
    if expected and expected[0].state == SETTLED:
        expected.pop(0)
    assert list(ledger) == expected
    assert len(ledger) == len(expected)
    assert [ledger.at(row) for row in range(len(ledger))] == expected
    assert [ledger.state_at(row) for row in range(len(ledger))] == [r.state for r in expected]
    assert ledger.select(range(len(ledger))[::-1]) == expected[::-1]
    assert ledger.select([]) == []
    assert list(ledger.firsts) == [r.first for r in expected]
    assert list(ledger.lasts) == [r.last for r in expected]
    assert list(ledger.counts) == [r.message_count for r in expected]
    assert ledger.frontier == (SEQS[len(kinds) - 1] if kinds else -1)
    assert ledger.count() == sum(r.message_count for r in expected)
    for state in STATES:
        assert ledger.select(ledger.where(ledger.is_state(state))) == [r for r in expected if r.state == state]
        assert ledger.count(ledger.is_state(state)) == sum(r.message_count for r in expected if r.state == state)
    assert ledger.select(ledger.where(ledger.held_by("a"))) == [r for r in expected if r.lease_id == "a"]


places = st.sampled_from([-1, *SEQS, SEQS[-1] + 1, sequence(1, 0), sequence(9, 0)])


@given(kind_lists, places, places)
@example([1, 1], 1, 0)
def test_the_ranges_over_an_interval(kinds, first, last):
    ledger = ledger_of(kinds)
    over = [ledger.at(row) for row in ledger.overlapping(first, last)]
    assert over == [r for r in ledger if first <= last and r.first <= last and r.last >= first]


def test_a_slice_of_a_table_makes_the_same_ledger():
    """Views of integers must heed a table's offset and chunks."""
    ranges = ranges_of([1, 2, 3, 4, 5, 1, 2])
    table = Ledger.of(LedgerHeader(), ranges).ranges
    for sliced in (table.slice(2, 4), pa.concat_tables([table.slice(2, 1), table.slice(3, 3)])):
        ledger = Ledger(LedgerHeader(), sliced)
        assert list(ledger) == ranges[2:6]
        assert list(ledger.firsts) == [r.first for r in ranges[2:6]]
        assert list(ledger.overlapping(ranges[3].first, ranges[4].last)) == [1, 2]


def test_the_largest_sequences_and_counts_fit():
    big = Range(2**63 - 5, 2**63 - 1, LEASED, 5, "a", "w", 2**52, 2**52 + 1, 2**63 - 1, 0, 1, 2**31 - 1, 2**31 - 1, True, None, "r", "e")
    assert list(Ledger.of(LedgerHeader(), [big])) == [big]


def test_routing_gives_no_hold():
    ledger = Ledger.of(LedgerHeader(), [Range(0, 0, ROUTING, 1, lease_id="a"), Range(1, 1, DEAD, 1, lease_id="a")])
    assert ledger.where(ledger.held_by("a")) == []


# -- Draft


@given(kind_lists, st.data())
def test_any_changes_leave_ranges_in_order_and_joined(kinds, data):
    """Take out some ranges, put back their messages as anything, in any order; read on past the frontier, or not."""
    ledger = ledger_of(kinds)
    floor = ledger.head.forgotten
    draft = LedgerEditor(ledger)
    after = list(kinds)
    rows = sorted(data.draw(st.sets(st.integers(0, len(ledger) - 1)))) if len(ledger) else []
    puts = []
    for r in draft.take(rows):
        for seq in [seq for seq in SEQS if r.first <= seq <= r.last]:
            at = SEQS.index(seq)
            after[at] = data.draw(st.integers(0, len(KINDS) - 1))
            puts.append(KINDS[after[at]]._replace(first=seq, last=seq))
    for _ in range(data.draw(st.integers(0, len(SEQS) - len(kinds)))):
        after.append(data.draw(st.integers(0, len(KINDS) - 1)))
        puts.append(KINDS[after[-1]]._replace(first=SEQS[len(after) - 1], last=SEQS[len(after) - 1]))
    for piece in data.draw(st.permutations(puts)):
        draft.put(piece)
    finished = draft.finish()
    expected = ledger_of(after)
    assert list(finished) == list(expected)
    assert (finished.head.floor, finished.head.forgotten) == (expected.head.floor, expected.head.forgotten)
    assert finished.head.forgotten >= floor
    assert list(ledger) == list(ledger_of(kinds)), "the ledger before is as it was"


def test_a_draft_without_changes_is_the_same_ledger():
    ledger = ledger_of([1, 3, 5])
    draft = LedgerEditor(ledger)
    draft.take([])
    draft.put(Range(9, 9, LEASED, 0))
    assert not draft.changed
    assert draft.finish() is ledger


def test_a_changed_head_alone_is_a_change():
    ledger = ledger_of([1, 3])
    draft = LedgerEditor(ledger)
    draft.head = draft.head.counted({"acked": 2})
    assert draft.changed
    assert draft.finish().head.counters == {"acked": 2}
    assert list(draft.finish()) == list(ledger)


def test_a_piece_put_between_alike_neighbours_joins_all_three():
    draft = LedgerEditor(ledger_of([3, 1, 4, 1]))
    (piece,) = draft.take([2])
    draft.put(KINDS[1]._replace(first=piece.first, last=piece.last))
    assert [(r.first, r.last, r.message_count) for r in draft.finish()] == [(0, 0, 1), (1, 3, 3)]


def test_alike_ranges_with_another_between_stay_apart():
    draft = LedgerEditor(ledger_of([3, 4, 3]))
    for r in draft.take([0, 2]):
        draft.put(r)
    assert [r.lease_id for r in draft.finish()] == ["a", "b", "a"]


def test_ranges_join_across_a_gap_of_the_log():
    """Commits are far apart in sequence, yet neighbours: nothing lies between."""
    draft = LedgerEditor(ledger_of([3, 3, 3, 3, 3]))
    draft.put(KINDS[3]._replace(first=SEQS[5], last=SEQS[6], message_count=2))
    assert [(r.first, r.last, r.message_count) for r in draft.finish()] == [(0, SEQS[6], 7)]


@pytest.mark.parametrize(
    ("kinds", "settle", "floor", "forgotten", "left"),
    [
        ([3, 1, 5], [0], 0, 1, 2),  # the lowest alone
        ([3, 0, 0, 1], [0], 2, 3, 1),  # with the settled ones behind it
        ([3, 1], [1], -1, 0, 2),  # a hole: the floor stays
        ([3, 1], [0, 1], 1, 2, 0),
        ([0, 0, 3, 1], [0], 2, 3, 1),
    ],
)
def test_the_floor_rises_over_all_that_is_settled(kinds, settle, floor, forgotten, left):
    draft = LedgerEditor(ledger_of(kinds))
    for r in draft.take(settle):
        draft.put(r.settled())
    after = draft.finish()
    assert (after.head.floor, after.head.forgotten, len(after)) == (floor, forgotten, left)


# -- the head


def test_counting_nothing_is_no_change():
    head = LedgerHeader()
    assert head.counted({}) is head
    assert head.counted({"acked": 2}).counted({"acked": 3, "skipped": 1}).counters == {"acked": 5, "skipped": 1}
    assert head.counters == {}


# -- as stored


@given(kind_lists)
def test_a_ledger_comes_back_from_its_rows(kinds):
    ledger = ledger_of(kinds)
    head = replace(ledger.head, revision=7, turn="rest", counters={"acked": 3}, settings={"max_delivery_attempts": None})
    stored = Ledger(head, ledger.ranges)
    rows = to_rows("group", stored)
    assert rows.schema == LEASES_SCHEMA
    assert rows.num_rows == len(ledger) + 1
    assert set(rows["consumer_group"].to_pylist()) == {"group"}
    again = from_rows(rows)
    assert (again.head, list(again)) == (head, list(stored))
    # Files and engines promise no order of rows.
    mixed = rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))
    assert list(from_rows(pa.concat_tables([mixed.slice(0, 1), mixed.slice(1)]))) == list(stored)


@pytest.mark.parametrize("floors", [0, 2])
def test_rows_without_just_one_floor_are_no_ledger(floors):
    rows = to_rows("group", ledger_of([3, 1]))
    floor, ranges = rows.filter(pc.equal(rows["state"], "floor")), rows.filter(pc.not_equal(rows["state"], "floor"))
    with pytest.raises(NotAQueue, match=f"has {floors} floor rows"):
        from_rows(pa.concat_tables([ranges, *[floor] * floors]))


def test_errors_travel_between_processes_with_their_data():
    error = pickle.loads(pickle.dumps(LeaseLost("gone", lease_id="a", lost=[(1, 2, "unread")])))
    assert (type(error), str(error), error.lease_id, error.lost) == (LeaseLost, "gone", "a", [(1, 2, "unread")])


def test_kinds_of_these_tests_differ_from_each_other():
    """Else neighbours would join that the tests think apart."""
    assert not any(one.alike(other) for at, one in enumerate(KINDS) for other in KINDS[at + 1 :])
    assert all(one < other for one, other in pairwise(SEQS))
