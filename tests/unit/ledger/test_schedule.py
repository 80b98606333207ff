"""Messages with a deliver_at or expires_at: never early, at most a second late, dropped when
expired; free where unused.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.ledger_group import SECOND, TIMEOUT, Group, limits
from support.tables import ledgers_of, messages_of

from spark_mq import Message, Queue
from spark_mq.errors import InvalidOption
from spark_mq.ledger.message_index import DataFile, DeliveryTimes
from spark_mq.ledger.ranges import AVAILABLE, Ledger
from spark_mq.ledger.settle import NACK
from spark_mq.testing import ManualClock, memory_queue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    return memory_queue(clock, clock_skew=0, retry_delay=0)


def values(queue: Queue, limit: int = 100, **given: Any) -> list[str]:
    """What a lease hands out."""
    lease = queue.group().lease("w", max_messages=limit, **given)
    return [m.value.decode() for m in lease.messages] if lease else []


def ledger(queue: Queue) -> Ledger:
    found = ledgers_of(queue).read("default").ledger
    assert found is not None
    return found


def test_a_delayed_message_is_not_leased_before_its_time_and_then_comes_first(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish([Message("late", deliver_at="60s"), Message("now")])
    queue.publish(["after"])
    assert queue.group().ensure().stats().ready == 2
    assert queue.group().stats().delayed == 1
    assert values(queue) == ["now", "after"]
    assert queue.group().stats().delayed == 1
    clock.advance(59.9)
    assert values(queue) == []
    clock.advance(0.1)
    queue.publish(["newest"])
    assert values(queue) == ["late", "newest"]


def test_a_delay_is_rounded_up_to_a_second_never_down(queue: Queue, clock: ManualClock) -> None:
    queue.publish([Message("x", deliver_at=clock() + timedelta(seconds=10.001))])
    clock.advance(10.001)
    assert values(queue) == []
    clock.advance(0.999)
    assert values(queue) == ["x"]


def test_a_time_is_a_number_a_text_or_a_timedelta_from_now(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish(
        [
            Message("a", deliver_at=5),
            Message("short", deliver_at=0, expires_at="5s"),
            Message("b"),
        ],
        deliver_at=timedelta(seconds=10),
    )
    with queue.publisher(linger="1h") as publisher:
        publisher.publish(Message("c", deliver_at="10s"))
        clock.advance(4)
        assert queue.group().ensure().stats().ready == 1, "the short one"
        clock.advance(1)  # from when it was handed in, not from when it is committed
    assert values(queue, auto_ack=True) == ["a"]
    clock.advance(5)
    assert values(queue) == ["b", "c"]


@pytest.mark.parametrize(
    "wrong",
    ["soon", -60, True, datetime(2026, 1, 1), timedelta(seconds=-1), timedelta(days=36_501),
     "5 parsecs", float("inf"), datetime(2026, 1, 1, tzinfo=UTC).timestamp()],
    ids=repr,
)  # fmt: skip
def test_a_time_of_a_publish_that_is_none_is_refused_by_name(queue: Queue, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^deliver_at=.*(time zone|from now)") as caught:
        queue.publish(["a"], deliver_at=wrong)
    assert (caught.value.data["option"], caught.value.data["value"]) == ("deliver_at", wrong)
    assert queue.stats()["published"] == 0


def test_delayed_messages_behind_the_due_ones_are_one_range_of_each_file_until_one_is_due(
    queue: Queue, clock: ManualClock
) -> None:
    queue.publish([Message("now"), *(Message(f"d{n}", deliver_at=60 + n) for n in range(50))])
    queue.publish([Message("far", deliver_at="15m")])
    assert values(queue, 10, auto_ack=True) == ["now"]
    assert [r.message_count for r in ledger(queue) if r.state == AVAILABLE] == [50, 1]
    assert ledger(queue).end_sequence == messages_of(queue).index().last_sequence
    clock.advance(60)
    assert values(queue) == ["d0"]
    clock.advance(2)
    assert values(queue) == ["d1", "d2"]
    assert sum(r.state == AVAILABLE for r in ledger(queue)) == 2


def test_a_lease_outlives_the_expiry_of_its_messages(queue: Queue, clock: ManualClock) -> None:
    queue.publish([Message("x", expires_at="10s")])
    lease = queue.group().lease("w")
    clock.advance(20)
    assert lease.ack().settled == 1
    assert queue.group().stats().expired == 0


@pytest.mark.parametrize(
    ("now", "due_by", "taken", "states"),
    [(6, 4, [2, 3, 4], "AALLL"), (7, 7, [0, 1, 4], "LLSSL")],
)
def test_available_now_takes_what_was_due_at_its_start(
    now: int, due_by: int, taken: list[int], states: str
) -> None:
    times = DeliveryTimes.of([(2, 5 * SECOND, None), (2, None, 7 * SECOND), (1, None, None)])
    group = Group(5, files=[DataFile(0, 5, "f", 50, 0, times)], now=now * SECOND)
    assert group.lease("a", 9, due_by=due_by * SECOND) == taken
    assert group.states() == states
    assert group.lease("b", 9, due_by=due_by * SECOND) == []
    group.now = 4 * SECOND  # of a worker whose clock is behind
    group.settle(NACK, "a", delay=0)
    assert group.lease("c", 9) == taken


def test_the_runs_of_a_file_are_found_by_row() -> None:
    found = DeliveryTimes.of([(2, 5, None), (3, None, 9), (1, 7, None)])
    assert (found.due_from, found.due_to, found.expires_from) == (0, 7, 9)
    assert list(found.between(1, 3)) == [(1, 1, 5, None), (2, 3, None, 9)]
    assert list(found.between(5, 5)) == [(5, 5, 7, None)]
    assert list(found.between(0, 5)) == [(0, 1, 5, None), (2, 4, None, 9), (5, 5, 7, None)]


def test_what_does_not_fit_into_max_bytes_stays_unread_with_the_delayed_behind_it(
    queue: Queue, clock: ManualClock
) -> None:
    later = {"deliver_at": "1m"}
    queue.publish([Message("a"), Message("x", **later), Message("b"), Message("y", **later)])
    first = queue.peek()[0].sequence
    assert values(queue, max_bytes=1) == ["a"]
    assert ledger(queue).end_sequence == first
    assert values(queue, auto_ack=True) == ["b"]
    clock.advance(60)
    assert values(queue, auto_ack=True) == ["x", "y"]


def test_the_sweep_settles_what_expired_unread_and_sets_aside_what_is_delayed(
    queue: Queue, clock: ManualClock
) -> None:
    early, late = {"expires_at": "5s"}, {"deliver_at": "60s"}
    gone = Message("gone", **early)
    queue.publish([Message("first"), gone, gone, Message("later", **late)])
    queue.publish([gone, Message("now"), Message("last", **late)])
    assert values(queue, 1, auto_ack=True) == ["first"]
    clock.advance(6)
    queue.sweep()
    found = ledger(queue)
    assert [(r.state, r.message_count) for r in found] == [(AVAILABLE, 1), ("settled", 1)]
    assert found.head.counters["expired"] == 3
    revision = found.head.revision
    queue.sweep()
    assert ledger(queue).head.revision == revision
    assert queue.group().stats().ready == 1
    assert values(queue, auto_ack=True) == ["now"]
    clock.advance(60)
    assert values(queue, auto_ack=True) == ["later", "last"]


@pytest.fixture
def burying(clock: ManualClock) -> Queue:
    """A queue whose expired messages become dead letters."""
    queue = memory_queue(clock, clock_skew=0, retry_delay=0, on_expired="dead_letter")
    queue.group().ensure()
    return queue


def counted(queue: Queue) -> tuple[int, int, int]:
    """Return how many messages are dead, expired and ready."""
    stats = queue.group().stats()
    return stats.dead, stats.expired, stats.ready


def _before(queue: Queue) -> None:
    """Look at messages that no commit has noticed yet."""


def _lease(queue: Queue) -> None:
    assert values(queue) == ["b"]
    queue.group().release(queue.group().leases()[0].lease_id)


def _named(queue: Queue) -> None:
    (_, last) = queue.peek()
    assert values(queue, sequences=[last.sequence]) == ["b"]
    queue.group().release(queue.group().leases()[0].lease_id)


def _expire(queue: Queue) -> None:
    queue.group().expire()


@pytest.mark.parametrize("failed", [False, True], ids=["unread", "failed before"])
@pytest.mark.parametrize("notice", [_before, _lease, _named, _expire])
def test_expired_messages_are_dead_with_their_error_if_the_group_says_so(
    burying: Queue, clock: ManualClock, notice: Any, failed: bool
) -> None:
    first, _ = burying.publish([Message("a", expires_at="5s"), "b"]).sequences
    if failed:
        lease = burying.group().lease("w")
        lease.nack(error="no")
    clock.advance(5)
    notice(burying)
    assert counted(burying) == (1, 0, 1)
    (dead,) = burying.group().peek(state="dead")
    assert (dead.sequence, dead.reason, dead.delivery_count) == (first, "expired", int(failed))
    assert dead.error == ("no" if failed else None)
    (place,) = burying.locate(first)
    assert (place.state, place.reason, place.outcome) == ("dead", "expired", None)


def test_a_late_ack_of_the_last_attempt_counts_although_the_message_has_expired(
    burying: Queue, clock: ManualClock
) -> None:
    burying.group().configure(max_delivery_attempts=1)
    (sequence,) = burying.publish([Message("a", expires_at="5s")]).sequences
    lease = burying.group().lease("w", visibility_timeout="5s")
    clock.advance(6)
    assert lease.ack([sequence]).settled == 1


@pytest.mark.parametrize(
    ("late", "expires", "noticed", "ends"),
    [(0, 5, 0, "SSSSSU"), (1, 61, 0, "SSSSSU"), (1, 5, 0, "SDDDSU"), (1, 5, 1, "SDDDSU"),
     (1, 65, 2, "SDDDSU")],
)  # fmt: skip
def test_a_settle_takes_what_has_not_expired_of_a_late_lease(
    late: int, expires: int, noticed: int, ends: str
) -> None:
    some = DeliveryTimes.of([(1, None, None), (2, None, expires * SECOND)])
    more = DeliveryTimes.of([(1, None, expires * SECOND), (2, None, None)])
    files = [DataFile(0, 3, "a", 30, 0, some), DataFile(3, 3, "b", 30, 0, more)]
    group = Group(6, limits(breaker_threshold=None), files, now=0)
    group.lease("before", 5)
    group.settle("nack", "before", [0, 1, 2, 3, 4], delay=0)
    group.rules = limits(on_expired="dead_letter", breaker_threshold=1)
    assert group.lease("a", 5) == [0, 1, 2, 3, 4]
    group.now += TIMEOUT + late
    if noticed:
        group.expire_leases()
    if noticed > 1:  # another lease has found that the files are out of reach
        group.postpone_file(0, 4, group.now + 10 * SECOND)
        group.now += 9 * SECOND
    group.settle("ack", "a")
    assert group.states() == ends
    dead = [(r.message_count, r.reason, r.error) for r in group.ledger if r.state == "dead"]
    assert dead == ends.count("DDD") * [(3, "expired", "lease a of worker of a expired")]
    assert [name for name, _ in group.ledger.events].count("breaker_opened") == ("D" in ends)


def test_an_expired_message_is_routed_by_the_sweep_and_comes_back_without_its_time(
    burying: Queue, clock: ManualClock
) -> None:
    first, second = burying.publish(
        [Message("a", expires_at="5s"), Message("b", expires_at="1h")]
    ).sequences
    clock.advance(5)
    assert burying.sweep().routed == 1
    (letter,) = burying.redrive(dry_run=True).table.to_pylist()
    assert (letter["sequence"], letter["reason"], letter["error"]) == (first, "expired", None)
    assert [one.outcome for one in burying.locate(first)] == ["dead_lettered"]
    assert burying.redrive().messages == 1
    clock.advance("2h")
    assert values(burying) == ["a"]
    assert [one.reason for one in burying.locate(second)] == ["expired"]


def test_by_default_and_once_switched_back_expired_messages_are_settled(
    burying: Queue, clock: ManualClock
) -> None:
    assert memory_queue(clock).group().settings.on_expired == "drop"
    burying.group().configure(on_expired="drop")
    burying.publish([Message("a", expires_at="5s"), "b"])
    clock.advance(5)
    assert counted(burying) == (0, 1, 1)
    assert values(burying) == ["b"]
    assert counted(burying) == (0, 1, 0)


@pytest.mark.parametrize("damaged", [True, False])
def test_expired_messages_of_a_file_that_cannot_be_read_are_dead_as_expired(
    damaged: bool,
) -> None:
    rules = limits(on_expired="dead_letter")
    times = DeliveryTimes.of([(2, None, 5), (2, None, None)])
    group = Group(rules=rules, files=[DataFile(0, 4, "a", 40, 0, times)])
    if damaged:
        assert group.reject_file(0, 3, "x") == 2
    else:
        group.postpone_file(0, 3, group.now + 1)
    reasons = [(r.first, r.last, r.state, r.reason) for r in group.ledger]
    assert reasons == [
        (0, 1, "dead", "expired"),
        (2, 3, "dead", "payload unreadable") if damaged else (2, 3, "available", None),
    ]
