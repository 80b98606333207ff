"""The order in which messages return after a failure."""

from __future__ import annotations

import pytest
from support.having import having
from support.ledger_group import SECOND, Group, limits

from spark_mq.ledger.settle import ACK, NACK, RELEASE


def leased(group: Group, limit: int, count: int) -> list[list[int]]:
    """Several leases, none of which is settled."""
    return [group.lease(f"l{i}", limit) for i in range(count)]


def test_messages_leased_singly_and_expired_return_with_the_unread():
    group = Group()
    leased(group, 1, 2)
    group.expire()
    assert group.lease("b", 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", ["expire", "nack", "batch"])
def test_a_message_alone_in_its_lease_is_no_suspect(how):
    group = Group()
    group.lease("s/1/0", 1)
    if how == "expire":
        group.expire()
    elif how == "nack":
        group.settle(NACK, "s/1/0", [0], whole=True, delay=0)
    else:
        group.replay_batch("s/1/1", again=True)
    assert group.at(0) == having(state="available", suspect=False, failure_count=1)


def test_the_first_failure_of_a_whole_lease_is_retried_whole_before_the_unread():
    group = Group()
    group.lease("a", 4)
    group.settle(NACK, "a", delay=0)
    assert leased(group, 100, 2) == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_a_whole_retry_is_not_mixed_with_other_messages():
    group = Group()
    group.lease("a", 1)
    group.lease("b", 3)
    group.lease("c", 1)
    group.expire()
    assert leased(group, 100, 3) == [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_a_piece_is_smaller_than_the_lease_that_failed_also_with_a_large_limit():
    """A stream asks for 100,000 messages, and its batches may be small."""
    group = Group(messages=100)
    sizes = []
    for i in range(4):
        sizes.append(len(group.lease(f"l{i}", 100_000, reserved_attempts=1)))
        group.settle(NACK, f"l{i}", delay=0)
    assert sizes == [100, 100, 10, 1]


def test_what_failed_together_stays_together_around_settled_messages():
    """A worker that dies after it acked every other message leaves 50 ranges, and one retry."""
    group = Group(messages=100)
    group.lease("a", 100)
    group.settle(ACK, "a", list(range(0, 100, 2)))
    group.expire()
    assert len(group.ledger) == 99
    assert group.lease("b", 100) == list(range(1, 100, 2))


def pieces(group: Group, limit: int) -> list[int]:
    """The sizes of the leases that take all messages below 10,000, each acked."""
    sizes, left = [], 10_000
    while left and len(sizes) < 100:
        taken = group.lease(f"l{len(sizes)}", limit, reserved_attempts=1)
        left -= sum(seq < 10_000 for seq in taken)
        sizes.append(len(taken))
        group.settle(ACK, f"l{len(sizes) - 1}")
    return sizes


@pytest.mark.parametrize(("limit", "count"), [(10_000, 1), (1_000, 10)])
def test_what_one_killed_worker_held_returns_in_few_pieces(limit, count):
    group = Group(messages=30_000)
    for i in range(10_000 // limit):
        assert len(group.lease(f"killed{i}", limit, reserved_attempts=1)) == limit
    group.expire()
    assert pieces(group, limit) == [limit] * count, "none of them shared with unread messages"


def test_a_suspect_keeps_its_place_before_later_messages_that_wait():
    group = Group()
    group.lease("a", 1)
    group.lease("b", 2)
    group.lease("c", 1)
    group.settle(RELEASE, "a")
    group.settle(NACK, "b", delay=0)
    group.settle(RELEASE, "c")
    assert leased(group, 100, 3) == [[0], [1, 2], [3, 4, 5, 6, 7, 8, 9]]


def test_unread_messages_do_not_join_while_other_work_waits():
    group = Group()
    group.lease("a", 1)
    group.lease("b", 2)
    group.settle(RELEASE, "a")
    group.settle(NACK, "b", delay=0)
    assert group.lease("c", 100) == [0]


def test_a_delayed_retry_lets_unread_messages_go_first():
    group = Group()
    group.lease("a", 2)
    group.settle(NACK, "a", delay=10 * SECOND)
    assert group.lease("b", 3) == [2, 3, 4]
    group.now += 10 * SECOND
    assert group.lease("c", 3) == [0, 1]


def test_without_a_limit_a_message_that_always_fails_lets_all_others_through():
    """It is alone in each lease, so it is never a suspect, and it is at the head."""
    group = Group(messages=8, rules=limits(max_delivery_attempts=None, breaker_threshold=None))
    done: set[int] = set()
    for i in range(60):
        taken = group.lease(f"l{i}", 1)
        if taken == [0]:
            group.expire()
        else:
            done.update(taken)
            group.settle(ACK, f"l{i}")
    assert done == {1, 2, 3, 4, 5, 6, 7}


def test_without_a_limit_a_message_that_was_delivered_very_often_comes_last():
    group = Group(messages=3, rules=limits(max_delivery_attempts=None, breaker_threshold=None))
    for i in range(5):
        assert group.lease(f"l{i}", 1) == [0]
        group.settle(NACK, f"l{i}", delay=0)
    assert group.lease("first", 1) == [0], "nothing else waits"
    assert group.lease("other", 1) == [1]
    group.settle(NACK, "other", delay=0)
    group.settle(NACK, "first", delay=0)
    assert group.lease("next", 1) == [1]
