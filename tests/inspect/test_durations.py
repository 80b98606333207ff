"""The histograms of time to lease and time to settle, and what a look reads for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.handles import again
from support.limits import Limits, keeping
from support.tables import context_of

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock, memory_queue

BOUNDS = (0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600, float("inf"))


def found(histogram: Any) -> dict[float, int]:
    """The messages of each bucket that has some, by its upper bound."""
    steps = zip(BOUNDS, histogram.counts, (0, *histogram.counts), strict=False)
    return {bound: count - before for bound, count, before in steps if count > before}


def of(queue: Queue, name: str = "g") -> tuple[dict[float, int], dict[float, int]]:
    own = queue.describe(durations=True).durations[name]
    return found(own.time_to_lease), found(own.time_to_settle)


def test_messages_are_counted_by_their_time_to_lease_and_to_settle(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    group = queue.group("g").ensure()
    assert of(queue) == ({}, {})
    queue.publish(["a", "b", "c"])
    clock.advance("40s")
    lease = group.lease("w", max_messages=3, visibility_timeout="2h")
    assert of(queue) == ({60.0: 3}, {})
    clock.advance("100s")
    first, second, third = (message.sequence for message in lease.messages)
    lease.ack([first])
    lease.nack([second], delay=0)
    clock.advance("10m")
    lease.reject([third])
    assert [message.sequence for message in group.lease("w").messages] == [second]
    clock.advance("10h")
    group.lease("late", max_messages=5)  # whose predecessor has expired
    assert of(queue) == ({60.0: 3}, {300.0: 2, 900.0: 1})
    total = queue.describe(durations=True).durations["g"].time_to_settle
    assert 899 <= total.seconds <= 903


def test_the_time_to_lease_begins_when_a_message_is_due(clock: ManualClock) -> None:
    queue = memory_queue(clock)
    group = queue.group("g").ensure()
    of(queue)
    queue.publish([Message("a", deliver_at=timedelta(hours=2)), "b", "c"])
    clock.advance("2h")
    clock.advance("3s")
    lease = group.lease("w", max_messages=3)
    assert of(queue)[0] == {5.0: 1, 21_600.0: 2}
    lease.nack([lease.messages[0].sequence], delay=0)
    clock.advance("1s")
    group.lease("w")
    assert of(queue)[0] == {5.0: 1, 21_600.0: 2}, "only the first lease of each counts"


def test_each_commit_is_counted_once_with_sweeps_between_looks(queue: Queue) -> None:
    group = queue.group("g").ensure()
    reader = again(queue)
    of(reader)
    leased = 0
    for sweeps in (0, 1, 0, 2, 1):
        queue.publish(["m"] * 3)
        for _ in range(3):
            group.lease("w").ack()
            leased += 1
        for _ in range(sweeps):
            queue.sweep()
        for look in (reader, reader):
            to_lease, to_settle = of(look)
            assert sum(to_lease.values()) == sum(to_settle.values()) == leased
    late = again(queue)
    assert of(late) == ({}, {}), "the counts begin with the first look"


def test_cleaned_commits_are_read_from_the_archive(queue: Queue) -> None:
    group = queue.group("g").ensure()
    reader = again(queue)
    of(reader)
    queue.publish(["m"] * 12)
    for _ in range(12):
        group.lease("w").ack()
    queue.sweep()
    ledgers = context_of(again(queue)).ledgers
    with keeping(0, 0):
        ledgers.clean(ledgers.version())
    kept = context_of(again(queue)).ledgers
    assert len(list(kept.commits(0, kept.version()))) < 12
    to_lease, to_settle = of(reader)
    assert sum(to_lease.values()) == sum(to_settle.values()) == 12


def test_a_look_that_runs_out_of_time_reads_on_at_the_next_one(limits: Limits) -> None:
    limits(durations_look=-1.0)
    queue = memory_queue()
    group = queue.group("g").ensure()

    def leased() -> int:
        return sum(of(queue)[0].values())

    assert leased() == 0
    queue.publish(["m"] * 3)
    for _ in range(3):
        group.lease("w")
    assert [leased() for _ in range(4)] == [1, 2, 3, 3]
