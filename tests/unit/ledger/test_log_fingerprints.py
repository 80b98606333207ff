"""What a ledger remembers of its log, and what it forgets if the log went back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ledger_group import Group

from spark_mq.ledger.log_fingerprints import (
    MAX_SEQUENCE,
    REWOUND,
    agreed_up_to,
    forget,
    with_fingerprint,
)
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.settle import ACK, NACK, REJECT


def files(versions: range, name: str = "old", rows: int = 3) -> list[DataFile]:
    return [DataFile(sequence(v, 0), rows, f"{name}-{v}", 30, v) for v in versions]


def index_of(found: list[DataFile]) -> MessageIndex:
    return MessageIndex(found, max((f.first >> 32 for f in found), default=0))


def marked(group: Group) -> Group:
    group.ledger = with_fingerprint(group.ledger, group.index)
    return group


def worked(versions: range, count: int = 99) -> Group:
    """A group that has leased from a log, file by file."""
    group = Group(files=files(versions))
    for n in range(count):
        if not group.lease(f"l{n}", 3):
            break
        marked(group)
    return group


def test_a_ledger_agrees_with_the_log_that_it_was_made_from():
    group = worked(range(1, 40), 30)
    assert agreed_up_to(group.ledger, group.index) is None
    assert agreed_up_to(group.ledger, index_of(files(range(1, 50)))) is None, "a longer one"
    assert agreed_up_to(Ledger(LedgerHeader()), index_of([])) is None
    assert agreed_up_to(group.ledger, index_of(files(range(1, 50), "new"))) == -1, "another one"
    group.lease("unmarked", 3)
    assert agreed_up_to(group.ledger, index_of(files(range(1, 31)))) == sequence(30, 2)


def test_a_ledger_keeps_few_marks_and_more_of_the_newest():
    """Of one commit here, so the distances between its files are not whole versions."""
    group = Group(files=[DataFile(sequence(3, 3 * n), 3, f"{n}", 30, 1) for n in range(500)])
    for n in range(500):
        group.lease(f"l{n}", 3)
        marked(group)
    kept = [int(mark.path) for mark in group.ledger.head.log_fingerprints]
    assert kept == [0, 358, 447, 481, 494, 497, 498, 499]


@pytest.mark.parametrize("at", [1, 7, 20, 38])
def test_a_ledger_disagrees_with_a_log_that_grew_again(at: int):
    """No number shows that: the log is longer than it was."""
    group = worked(range(1, 40))
    again = files(range(1, at + 1)) + files(range(at + 1, 60), "new")
    known = [mark.first for mark in group.ledger.head.log_fingerprints]
    newest = max(first for first in known if first <= sequence(at, 0))
    assert agreed_up_to(group.ledger, index_of(again)) == newest + 2, "all of the file"


def test_what_a_ledger_forgets_is_unread():
    group = worked(range(1, 6))
    for n in range(5):
        group.settle((ACK, NACK, REJECT)[n % 3], f"l{n}")
    short = index_of(files(range(1, 4)))
    after, messages = forget(group.ledger, short, sequence(4, 0))
    assert messages == 6
    assert after.head.log_fingerprints[-1].first == sequence(3, 0)
    assert after.end_sequence == sequence(3, 2)
    assert [(r.first >> 32, r.state, r.message_count) for r in after] == [
        (2, "available", 3),
        (3, "dead", 3),
    ]
    ((_event, r),) = [found for found in after.events if found[0] == REWOUND]
    assert (r.first, r.last, r.message_count) == (sequence(4, 0), sequence(5, 2), 6)
    assert forget(after, short, sequence(3, 3)) == (after, 0), "once"
    assert forget(after, short, sequence(3, 2))[1] == 1, "the last one alone"


def test_a_part_of_the_middle_is_forgotten():
    group = Group(files=files(range(1, 6)))
    held = group.lease("a", 15)
    group.settle(ACK, "a", [*held[:3], held[5]])
    index = index_of(files(range(1, 3)) + files(range(5, 6)))
    after, messages = forget(group.ledger, index, sequence(2, 2), sequence(5, 0) - 1)
    assert messages == 7
    (left,) = after
    assert (left.first, left.last, left.message_count) == (sequence(2, 0), sequence(5, 2), 5)
    assert after.head.start_sequence == sequence(1, 2)
    group.ledger = after
    group.settle(ACK, "a", held[12:])
    after, _ = forget(group.ledger, index, sequence(2, 0), sequence(2, 2))
    assert (len(after), after.head.start_sequence) == (0, sequence(5, 2))
    assert after.head.settled_count == 6
    index = index_of(files(range(1, 2)) + files(range(5, 6)))
    assert forget(after, index, sequence(5, 2))[1] == 1, "the last one alone"


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 12), st.integers(0, 6))
def test_any_message_after_a_restore_is_unread_and_any_other_keeps_its_state(
    seed: int, versions: int, at: int, more: int
):
    chance = random.Random(seed)
    group = Group(files=files(range(1, versions + 1)))
    held: list[tuple[str, int]] = []
    for n in range(chance.randint(0, 12)):
        seqs = marked(group).lease(f"l{n}", chance.randint(1, 5))
        marked(group)
        held += [(f"l{n}", seq) for seq in seqs]
        chance.shuffle(held)
        for lease_id, seq in held[: chance.randint(0, 4)]:
            group.settle(chance.choice([ACK, NACK, REJECT]), lease_id, [seq])
    old = files(range(1, min(at, versions) + 1))
    index = index_of(old + files(range(at + 1, at + 1 + more), "new"))
    before = {seq: group.state(seq) for f in old for seq in range(f.first, f.last + 1)}
    agreed = agreed_up_to(group.ledger, index)
    if agreed is None:
        assert group.ledger.end_sequence <= max((f.last for f in old), default=-1)
        return
    had = group.index.count(agreed + 1, group.ledger.end_sequence)
    group.ledger, messages = forget(group.ledger, index, agreed + 1, MAX_SEQUENCE)
    assert messages == had
    assert agreed_up_to(group.ledger, index) is None
    for f in index.files:
        for seq in range(f.first, f.last + 1):
            expected = before[seq] if seq <= agreed else "unread"
            assert group.state(seq) == expected
    assert sum(r.message_count for r in group.ledger) == sum(
        index.count(r.first, r.last) for r in group.ledger
    )
    assert group.ledger.head.settled_count == index.count(0, group.ledger.head.start_sequence)
