"""Order, deadlines and counts, as the README promises them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
from support.handles import lease

from spark_mq import Queue
from spark_mq.testing import ManualClock

Make = Callable[..., Queue]


def next_values(queue: Queue, count: int = 100) -> list[str]:
    found = queue.group().lease("w", max_messages=count)
    return [] if found is None else [m.value.decode() for m in found.messages]


def test_what_expired_or_was_nacked_goes_back_to_the_head_in_the_order_of_sequence(
    queue: Queue, clock: ManualClock
) -> None:
    s = queue.publish([str(n) for n in range(8)]).sequences
    first = lease(queue, 4)
    first.nack([s[3], s[1]], delay=0)
    first.ack([s[0], s[2]])
    assert next_values(queue, 3) == ["1", "3", "4"], "before what is unread"


def test_messages_leased_singly_and_expired_return_in_order(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish([str(n) for n in range(3)])
    for _ in range(2):
        lease(queue, 1)
    clock.advance("62s")
    assert [next_values(queue, 1) for _ in range(3)] == [["0"], ["1"], ["2"]]


def test_unread_messages_never_overtake_what_was_nacked_whole_twice(queue: Queue) -> None:
    queue.publish([str(n) for n in range(9)])
    for _ in range(2):
        taken = lease(queue, 4)
        assert [m.value for m in taken.messages] == [b"0", b"1", b"2", b"3"]
        taken.nack(delay=0)
    seen: list[str] = []
    while len(seen) < 9:
        taken = lease(queue, 4)
        seen += [m.value.decode() for m in taken.messages]
        taken.ack()
    assert seen == [str(n) for n in range(9)]


def test_what_one_killed_worker_held_returns_whole_and_before_the_unread(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish([str(n) for n in range(12_000)])
    assert len(lease(queue, 10_000)) == 10_000
    clock.advance("62s")
    again_leased = lease(queue, 10_000)
    assert len(again_leased) == 10_000, "in one piece"
    assert again_leased.messages[0].delivery_count == 2
    assert len(lease(queue, 10_000)) == 2_000


def test_while_suspects_are_isolated_unread_messages_get_each_fourth_lease(
    make: Make, clock: ManualClock
) -> None:
    queue = make(max_delivery_attempts=3)
    queue.publish([str(n) for n in range(40)])
    lease(queue, 25)
    clock.advance("62s")
    kinds = ["unread" if int(next_values(queue, 25)[0]) > 24 else "suspect" for _ in range(4)]
    assert kinds == ["suspect", "suspect", "suspect", "unread"]


def test_one_worker_that_settles_before_it_leases_again_sees_the_order_of_sequence(
    queue: Queue,
) -> None:
    for part in range(4):
        queue.publish([str(5 * part + n) for n in range(5)])
    seen = []
    for size in (1, 3, 2, 7, 4, 3):
        taken = lease(queue, size)
        seen += [m.value.decode() for m in taken.messages]
        taken.ack()
    assert seen == [str(n) for n in range(20)]


def test_delayed_messages_come_first_when_due(queue: Queue, clock: ManualClock) -> None:
    queue.publish(["later", "now"][:1], deliver_at=clock() + timedelta(seconds=5))
    queue.publish([str(n) for n in range(4)])
    assert next_values(queue, 2) == ["0", "1"]
    clock.advance("6s")
    assert next_values(queue, 2) == ["later", "2"]


def test_no_message_reaches_a_worker_more_often_than_the_limit_however_its_leases_end(
    make: Make, clock: ManualClock
) -> None:
    queue = make(max_delivery_attempts=4)
    s = queue.publish(["a", "b"]).sequences
    ends: list[Callable[[object], object]] = [
        lambda taken: taken.nack(delay=0),  # type: ignore[attr-defined]
        lambda _: clock.advance("62s"),
        lambda taken: taken.nack([m.sequence for m in taken.messages], delay=0),  # type: ignore[attr-defined]
    ]
    delivered = dict.fromkeys(s, 0)
    for n in range(40):
        taken = queue.group().lease("w", max_messages=10)
        if taken is None:
            break
        for m in taken.messages:
            delivered[m.sequence] += 1
            assert m.delivery_count == delivered[m.sequence]
        ends[n % 3](taken)
    assert set(delivered.values()) == {4}
    assert queue.group().stats().dead == 2, "the last failure made them dead in that same commit"


def test_at_most_once_a_lease_that_is_acked_at_once_is_never_given_out_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(["a"])
    taken = queue.group().lease("dies", auto_ack=True)
    assert [m.value for m in taken.messages] == [b"a"]
    clock.advance("1h")
    assert next_values(queue) == []
    assert queue.group().nack(taken.lease_id).settled == 0
    assert next_values(queue) == []


def test_the_log_names_the_workers_whose_leases_expired(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish([str(number) for number in range(1_500)])
    group = queue.group("billing")
    group.lease("one", max_messages=1_000)
    group.lease("two", max_messages=200)
    clock.advance("2h")
    with caplog.at_level(logging.WARNING, logger="spark_mq"):
        group.lease("three")
        group.lease("four")
    lines = [one.getMessage() for one in caplog.records if "expired" in one.getMessage()]
    assert lines == [
        "group billing: the leases of one, two expired, with 1,200 messages. Their workers died, "
        "hung, or did not reach the store"
    ]
