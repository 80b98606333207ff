"""The order of keys through seeks, trims, hard limits and a ledger of before."""

from __future__ import annotations

import pytest
from support.handles import again, lease, take, take_all, trim
from support.queues import Make
from support.tables import put_back

from spark_mq import Message, Queue
from spark_mq.errors import GroupBlocked, LeaseLost
from spark_mq.testing import ManualClock

LANES = 8
"""Enough for "a" and "b" to have lanes of their own."""


@pytest.fixture
def queue(make: Make) -> Queue:
    queue = make(lanes=LANES, visibility_timeout="30s", hard_retention="1d")
    queue.group().configure(order="key", retry_delay="10s", on_max_deliveries="block")
    return queue


def check_order(texts: list[str], count: int) -> None:
    """Each key has so many messages, in order."""
    for key in "ab":
        assert [text for text in texts if text[0] == key] == [f"{key}{n}" for n in range(count)]


def test_a_seek_starts_each_key_again_in_order(queue: Queue, clock: ManualClock) -> None:
    for start in (0, 4):
        queue.publish([Message(f"{key}{start + n}", key=key) for n in range(4) for key in "ab"])
    held = lease(queue, 3)
    queue.group().seek("earliest")
    with pytest.raises(LeaseLost, match="unread"):
        held.ack()
    check_order(take_all(queue.group()), 8)


def test_a_hard_limit_frees_the_lane_of_what_it_drops(queue: Queue, clock: ManualClock) -> None:
    group = queue.group()
    queue.publish([Message("a1", key="a")])
    for _ in range(group.settings.max_delivery_attempts or 0):
        lease(queue).nack(delay=0)
    queue.publish([Message("a2", key="a"), Message("b", key="b")])
    other = lease(queue)
    assert not group.lease("w"), "not blocked as long as others are leased"
    other.ack()
    with pytest.raises(GroupBlocked, match="max_delivery_attempts"):
        take(group)
    clock.advance("2d")
    assert trim(queue) >= 1
    queue.publish([Message("a3", key="a")])
    assert take(group, fail_on_data_loss=False)[-1] == "a3"


def test_a_trim_keeps_the_lanes_of_what_is_left(queue: Queue, clock: ManualClock) -> None:
    queue.configure(retention="1h", hard_retention=None)
    group = queue.group()
    for n in range(6):
        queue.publish([Message(f"a{n}", key="a"), Message(f"b{n}", key="b")])
    done = take(group, 5)
    clock.advance("2h")
    assert trim(queue) >= 1
    check_order(done + take_all(again(queue).group()), 6)


def test_a_table_of_before_its_last_commits_recovers_in_order(queue: Queue) -> None:
    queue.publish([Message(f"a{n}", key="a") for n in range(3)])
    with put_back(queue, "leases"):
        take(queue.group(), 2)
    again(queue).recover()
    assert take_all(again(queue).group()) == ["a0", "a1", "a2"]
