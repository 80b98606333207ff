"""Workers whose clocks are minutes apart, and clocks that jump: what holds then, and that nothing
is lost or breaks.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handles import again, history, lease, take_all
from support.queues import Make
from support.tables import group_ledger_of

from spark_mq import Message, Queue, errors
from spark_mq.testing import ManualClock, memory_queue


def apart(queue: Queue, clock: ManualClock, minutes: float) -> tuple[Queue, ManualClock]:
    """A handle on another machine, whose clock goes wrong by so much."""
    other = ManualClock(clock() + timedelta(minutes=minutes))
    return again(queue, clock=other), other


# -- minutes apart


@pytest.mark.parametrize("minutes", [5, -5])
def test_within_the_margin_no_lease_is_ended_early(
    make: Make, clock: ManualClock, minutes: float
) -> None:
    """``clock_skew`` is the difference of two clocks that the group bears."""
    queue = make(clock_skew="5m", visibility_timeout="60s")
    other, others_clock = apart(queue, clock, minutes)
    queue.publish(["a", "b"])
    mine, theirs = lease(queue, 1), lease(other, 1)
    for both in (clock, others_clock):
        both.advance("59s")
    assert queue.group().lease("thief") is None
    assert other.group().lease("thief") is None
    assert other.group().nack(mine.lease_id).settled == 1
    assert queue.group().nack(theirs.lease_id).settled == 1
    assert "lease_expired" not in history(queue)["event"].to_pylist(), "nor was a nack late"


# -- a clock that jumps


JUMPS = [timedelta(hours=-2), timedelta(hours=2), timedelta(days=400)]
NONSENSE = [datetime(*day, tzinfo=UTC) for day in ((1, 1, 1), (1970, 1, 1), (9999, 12, 31))]
"""As of a machine that starts without its battery."""


@pytest.mark.parametrize("to", [*JUMPS, *NONSENSE])
def test_a_jump_breaks_no_kind_of_state(make: Make, clock: ManualClock, to: Any) -> None:
    """Leased, waiting, delayed, dead, expired, unread: after the jump all can be looked at, and in
    the end, when the clock is right again, each is done.
    """
    queue, now = make(), clock()
    queue.publish([str(n) for n in range(8)])
    queue.publish("delayed", deliver_at=now + timedelta(minutes=1))
    queue.publish(Message("mortal", expires_at="900d"))
    held = lease(queue, 2)
    lease(queue, 1).nack(delay="1m")
    lease(queue, 1).reject()
    lease(queue, 1)
    clock.set(now + to if isinstance(to, timedelta) else to)
    worker = again(queue)
    stats = replace(worker.group().stats(), start_sequence=0)  # it's -1 before the first message
    assert all(value >= 0 for value in asdict(stats).values() if isinstance(value, int | float))
    held.extend()
    assert held.expires_at > clock()
    assert held.ack().settled == 2
    queue.group().expire()
    worker.sweep()
    worker.publish("after")
    take_all(worker.group())
    clock.set(now + timedelta(days=401))  # when all is due
    take_all(worker.group())
    worker.sweep()
    stats = worker.group().stats()
    assert stats.acked + stats.dead_lettered + stats.expired == 11
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert str(worker.trace(held._ranges[0].first))


# -- many, at random


steps = st.lists(
    st.tuples(st.sampled_from(["lease", "lease", "ack", "nack", "extend", "release", "expire",
                               "jump", "tick"]), st.integers(0, 2),
              st.integers(-900, 900)), max_size=40,
)  # fmt: skip


@settings(max_examples=5 * settings.default.max_examples // 8)
@given(steps)
def test_whatever_the_clocks_do_each_message_is_settled_once_and_none_is_lost(
    taken: list[tuple[str, int, int]],
) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    queue = memory_queue(clock, max_delivery_attempts=None, retry_delay="5s")
    workers = [(queue, clock), *(apart(queue, clock, minutes) for minutes in (7, -3))]
    published = len(queue.publish([str(n) for n in range(6)]).sequences)
    queue.group().ensure()
    held: list[Any] = []
    settled = 0
    for what, who, amount in taken:
        handle, its_clock = workers[who]
        group = handle.group()
        if what == "lease":
            leased = group.lease(f"w{who}", max_messages=1 + abs(amount) % 4)
            held += [leased.lease_id] if leased is not None else []
        elif what == "jump":
            its_clock.set(its_clock() + timedelta(seconds=amount))
        elif what == "tick":
            for _, each in workers:
                each.advance(abs(amount) / 10)
        elif what == "expire":
            group.expire()
        elif held:
            try:
                result = getattr(group, what)(held[amount % len(held)])
                settled += result.settled if what == "ack" else 0
            except errors.LeaseLost as lost:
                settled += lost.result.settled if what == "ack" else 0
        stats = group.stats()
        ranges = list(group_ledger_of(group).current())
        assert all(a.last < b.first for a, b in pairwise(ranges))
        assert stats.acked == settled
        assert stats.ready + stats.delayed + stats.leased + stats.acked == published
        assert all(
            age is None or age >= timedelta(0)
            for age in (stats.oldest_unsettled_age, stats.oldest_lease_age)
        )
    clock.set(datetime(2027, 1, 1, tzinfo=UTC))
    while (last := queue.group().lease("last", max_messages=10)) is not None:
        settled += last.ack().settled
    assert settled == published


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_a_late_last_nack_commits_the_death(make: Make, clock: ManualClock, verb: str) -> None:
    """Its lease expires first. A message that stayed leased would be acked with its batch."""
    queue = make(max_delivery_attempts=1, clock_skew=0)
    (sequence,) = queue.publish("a").sequences
    held = lease(queue)
    clock.advance("2m")
    with pytest.raises(errors.LeaseLost):
        held.nack([sequence]) if verb == "nack" else held.release()
    ends = [row for row in history(queue).to_pylist() if row["event"] == "lease_expired"]
    assert [(row["state"], row["operation"]) for row in ends] == [("dead", verb)]
    assert again(queue).sweep().routed == 1
