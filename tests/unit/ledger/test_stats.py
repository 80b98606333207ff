"""Count the messages of a group."""

from __future__ import annotations

from functools import partial

from support.having import having
from support.ledger_group import SECOND, Group, freeze

from spark_mq.ledger.message_index import DataFile, DeliveryTimes
from spark_mq.ledger.settle import ACK, NACK, REJECT
from spark_mq.ledger.stats import compute_stats
from spark_mq.util.clock import to_seconds


def age(group: Group, of: str = "oldest_unsettled_age") -> float | None:
    stats = compute_stats(group.ledger, group.index, group.rules, group.now)
    return to_seconds(getattr(stats, of))


def test_settled_messages_do_not_make_the_oldest_message_older():
    old, new = DataFile(0, 2, "old", 20, 100 * SECOND), DataFile(2, 2, "new", 20, 900 * SECOND)
    group = Group(4, files=[old, new])
    assert age(group) == 900
    group.lease("a", 2)
    group.settle(ACK, "a", [0])
    assert age(group) == 900
    group.settle(ACK, "a", [1])
    assert age(group) == 100
    group.lease("b", 2)
    group.settle(ACK, "b")
    assert age(group) is None


def timed(first: int, at: int, *deliver_at: int | None) -> DataFile:
    """A file that was published at a second, with a message for each time of delivery."""
    times = [(1, None if due is None else due * SECOND, None) for due in deliver_at]
    rows = len(deliver_at)
    return DataFile(first, rows, f"{first}", rows, at * SECOND, DeliveryTimes.of(times))


def test_what_is_scheduled_for_later_has_no_age():
    group = Group(3, files=[timed(0, 100, 5_000, 900), timed(2, 200, 6_000)])
    assert age(group) == 100  # since its own time, not since its publish
    group.lease("a", 1)
    group.settle(ACK, "a")
    group.now = 5_000 * SECOND - 1
    assert age(group) is None
    group.now += 1
    assert age(group) == 0


def test_a_message_that_waits_for_its_retry_has_the_age_of_its_time():
    group = Group(3, files=[timed(0, 100, 5_000), timed(1, 200, 400, None)])
    assert age(group) == 800
    group.lease("a", 2)
    group.settle(NACK, "a", delay=300 * SECOND, error="no")
    assert age(group) == 800
    group.now = 1_100 * SECOND
    assert age(group) == 900


def test_a_later_file_may_have_been_due_before_the_first_one():
    other = DataFile(0, 1, "other", 1, 10, group="another")
    files = [other, timed(1, 100, 990), timed(2, 300, 980, None), timed(4, 999, None)]
    group = Group(5, files=files)
    assert age(group) == 700
    group.lease("a", 3)
    assert age(group) == 700
    group.settle(ACK, "a", [3])
    assert age(group) == 20
    group.settle(REJECT, "a", [1])
    freeze(group)
    stats = compute_stats(group.ledger, group.index, group.rules, group.now)
    assert stats == having(transferring=1, unsettled=3)


def test_a_lease_has_the_age_of_its_start():
    group, ages = Group(3), []
    ack = partial(group.settle, ACK)
    for act, lease_id in ((group.lease, "a"), (group.lease, "b"), (ack, "a"), (ack, "b")):
        act(lease_id)
        group.now += 20 * SECOND
        ages.append(age(group, "oldest_lease_age"))
    assert ages == [20, 40, 40, None]
