"""The order in which messages return after a failure."""

from __future__ import annotations

import pytest
from support.ledger_group import Group, limits

from spark_mq.ledger.settle import ACK, NACK, RELEASE


def test_messages_leased_singly_and_expired_return_with_the_unread():
    group = Group()
    group.lease("a")
    group.lease("b")
    group.expire()
    assert group.lease("c", 5) == [0, 1, 2, 3, 4]


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
    assert [group.lease(f"l{n}", 100) for n in range(3)] == [[0], [1, 2], [*range(3, 10)]]


@pytest.mark.parametrize(
    ("released", "order"),
    [(0, [0] * 8 + [1, 0, 0, 0, 2, 0, 0, 0, 3]), (8, [0] * 5 + [1, 2, 3, 4, 5, 6, 7, 0])],
)
def test_without_a_limit_a_message_that_always_fails_lets_all_others_through(released, order):
    """It is alone in each lease, so it is never a suspect, and it is at the head."""
    group = Group(messages=8, rules=limits(max_delivery_attempts=None, breaker_threshold=None))
    group.lease("before", released)
    group.settle(RELEASE, "before")
    for seq in order:
        assert group.lease(f"of {seq}", 1) == [seq]
        if seq == 0:
            group.expire()
        else:
            group.settle(ACK, f"of {seq}")
