"""Edits of a ledger: remove, add, join, and raise the floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.having import having
from support.limits import set_limits

from spark_mq.errors import IllegalTransition
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.ranges import (
    AVAILABLE,
    LEASED,
    SETTLED,
    STATES,
    UNREAD,
    Ledger,
    LedgerHeader,
    Range,
    State,
)

from .ledger_kinds import INDEX, KINDS, SEQS, kind_lists, ledger_of


@pytest.fixture(autouse=True, scope="module", params=[100, -1], ids=["list", "table"])
def stored_as(request):
    """How ledgers keep their ranges."""
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, listed_ranges=request.param)
        yield


LEGAL = {
    "unread": {"leased", "available", "dead", "transferring", "settled"},
    "leased": {"available", "dead", "blocked", "settled"},
    "available": {"leased", "dead", "blocked", "transferring", "settled"},
    "dead": {"available", "transferring", "settled"},
    "blocked": {"available", "dead", "settled"},
    "transferring": {"available", "settled"},
    "settled": set(),
}
"""The moves of the state diagram, written down once more."""


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_only_the_moves_of_the_diagram_are_legal(before, after):
    editor = LedgerEditor(Ledger(LedgerHeader()))
    piece, was = Range(3, 4, after.value, 2), Range(0, 9, before.value, 10)
    if after == before or after in LEGAL[before]:
        editor.add(piece, was)
        assert editor.changed
    else:
        with pytest.raises(IllegalTransition) as caught:
            editor.add(piece, was, "event")
        assert (caught.value.before, caught.value.after) == (before, after)
        assert isinstance(caught.value, AssertionError), "a bug, not a user's mistake"
        assert not editor.changed


def test_an_event_shows_the_new_state_and_the_old_lease():
    was = Range(0, 9, LEASED, 10, lease_id="a", worker_id="w", leased_at=1, expires_at=9)
    editor = LedgerEditor(Ledger.from_ranges(LedgerHeader(), [was]))
    editor.remove([0])
    editor.add(Range(0, 3, SETTLED, 4), was, "acked")
    editor.add(Range(4, 9, AVAILABLE, 6, available_at=5), was, "nacked")
    assert editor.build().events == [
        ("acked", was._replace(last=3, message_count=4, state=SETTLED)),
        ("nacked", was._replace(first=4, message_count=6, state=AVAILABLE, available_at=5)),
    ]


def kinds_after(state: str) -> list[int]:
    """The kinds that a message in a state may become."""
    legal = {state, *LEGAL[state]}
    return [at for at, kind in enumerate(KINDS) if kind.state in legal]


@given(kind_lists, st.data())
def test_any_changes_leave_ranges_in_order_and_joined(kinds, data):
    """Some ranges are removed, and their messages added as any legal kind, in any order, with
    unread ones or without.
    """
    ledger = ledger_of(kinds)
    floor = ledger.head.settled_count
    editor = LedgerEditor(ledger)
    after = list(kinds)
    rows = sorted(data.draw(st.sets(st.integers(0, len(ledger) - 1)))) if len(ledger) else []
    added = []
    for r in editor.remove(rows):
        for seq in [seq for seq in SEQS if r.first <= seq <= r.last]:
            at = SEQS.index(seq)
            after[at] = data.draw(st.sampled_from(kinds_after(r.state)))
            added.append((KINDS[after[at]]._replace(first=seq, last=seq), r))
    for _ in range(data.draw(st.integers(0, len(SEQS) - len(kinds)))):
        after.append(data.draw(st.sampled_from(kinds_after(UNREAD))))
        seq = SEQS[len(after) - 1]
        added.append((KINDS[after[-1]]._replace(first=seq, last=seq), Range(seq, seq, UNREAD, 1)))
    for piece, before in data.draw(st.permutations(added)):
        editor.add(piece, before)
    finished = editor.build()
    expected = ledger_of(after)
    assert list(finished) == list(expected)
    assert finished.head == having(
        start_sequence=expected.head.start_sequence, settled_count=expected.head.settled_count
    )
    assert finished.head.settled_count >= floor
    assert list(ledger) == list(ledger_of(kinds)), "the ledger before is as it was"


named = st.sets(st.sampled_from([*SEQS, SEQS[-1] + 1]))  # the last one isn't published


@given(kind_lists, named, st.sets(st.sampled_from([*STATES, UNREAD])))
def test_a_cut_takes_what_it_names_and_leaves_the_rest(kinds, wanted, states):
    ledger, tracked = ledger_of(kinds), SEQS[: len(kinds)]
    before = {seq: KINDS[kind] for seq, kind in zip(tracked, kinds, strict=True)}
    below = {seq for seq in tracked if seq <= ledger.head.start_sequence}
    unread = sorted(wanted & set(SEQS[len(kinds) :])) if UNREAD in states else []
    named = {seq for seq in before if seq in wanted - below and before[seq].state in states}
    editor, cut = LedgerEditor(ledger), []
    for piece in editor.cut(from_sequences(wanted), INDEX, states):
        cut += [seq for seq in SEQS if piece.first <= seq <= piece.last]
        assert piece.message_count == INDEX.count(piece.first, piece.last)
        if piece.state != UNREAD:
            assert piece.same_state_as(before[piece.first])
        editor.add(piece._replace(state=SETTLED), piece)
    assert cut == sorted(named) + unread, "in order"
    skipped = [seq for seq in SEQS[len(kinds) :] if unread and seq < unread[-1]]
    after = before | dict.fromkeys(skipped, Range(0, 0, AVAILABLE, 1, available_at=0))
    after |= dict.fromkeys(cut, Range(0, 0, SETTLED, 1))
    final = editor.build()
    assert final.end_sequence == max([ledger.end_sequence, *unread])
    for seq in set(after) - below:
        (row,) = final.overlapping(seq, seq) or [None]
        if row is None:
            assert (after[seq].state, seq <= final.head.start_sequence) == (SETTLED, True)
        else:
            assert final.range_at(row).same_state_as(after[seq])


def test_a_draft_without_changes_is_the_same_ledger():
    ledger = ledger_of([1, 3, 5])
    editor = LedgerEditor(ledger)
    editor.remove([])
    editor.add(Range(9, 9, LEASED, 0), Range(9, 9, UNREAD, 0))
    assert not editor.changed
    assert editor.build() is ledger
    editor.record_event("seek", KINDS[0])
    assert list(editor.build()) == list(ledger)


def test_alike_ranges_join_unless_another_lies_between():
    editor = LedgerEditor(ledger_of([3, 4, 5, 4, 3]))
    for r in editor.remove([1, 3]):
        editor.add(r._replace(lease_id="a"), r)
    assert [r.lease_id for r in editor.build()] == ["a", None, "a"]
