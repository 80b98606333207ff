"""The priorities and lanes of a group, what holds them back, and the keys that fill them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rule_variants import gets, rule_variant

from spark_mq import Lease, Message, Queue
from spark_mq.errors import LeaseLost
from spark_mq.ledger.slots import SlotLayout
from spark_mq.testing import ManualClock, memory_queue

LANES = 8
LAYOUT = SlotLayout(LANES)


def key_in(lane: int, number: int = 0) -> str:
    """Return a key of a lane, another one for each number."""
    return [f"k{n}" for n in range(1_000) if LAYOUT.lane(f"k{n}") == lane][number]


def ordered(make: Callable[..., Queue], **settings: Any) -> Queue:
    return make(lanes=LANES, **{"order": "key", **settings})


def lane(queue: Queue, number: int | None) -> Any:
    return next(lane for lane in queue.group("g").lanes(None) if lane.lane == number)


def test_a_lease_holds_a_lane_until_it_ends(make: Callable[..., Queue]) -> None:
    """What else a lane shows, tests/cli/views.txt and notebook.txt have."""
    queue = ordered(make)
    queue.publish([Message("x", key=key_in(3))] * 2)
    lease = queue.group("g").lease("w", max_messages=1)
    held = lane(queue, 3)
    assert (held.held_by, held.lease_id, held.until) == ("lease", lease.lease_id, lease.expires_at)


def test_a_failed_a_released_a_delayed_and_a_blocked_message_are_named(
    make: Callable[..., Queue], clock: ManualClock
) -> None:
    retries = {"retry_delay": "15m", "retry_jitter": 0}
    queue = ordered(make, max_delivery_attempts=2, on_max_deliveries="block", **retries)
    for number in range(3):
        queue.publish([Message("x", key=key_in(number)), Message("y", key=key_in(number))])
    queue.publish([Message("z", key=key_in(7), deliver_at=f"{hours}h") for hours in (2, 3)])
    group = queue.group("g")
    for number in range(3):
        lease = group.lease("w", max_messages=1)
        seq = lease.messages[0].sequence
        if number == 0:
            lease.nack([seq], error="bad")
        elif number == 1:
            lease.release(delay="30m")
        else:
            lease.nack([seq], delay=0)
            group.lease("w", max_messages=1).nack([seq], delay=0, error="worse")
    held = {lane.lane: lane for lane in group.lanes()}
    assert [held[n].held_by for n in (0, 1, 2, 7)] == ["retry", "postponed", "blocked", "delay"]
    assert [held[n].held_back for n in (0, 1, 2, 7)] == [1, 1, 1, 0]
    assert [held[n].error for n in (0, 1, 2, 7)] == ["bad", None, "worse", None]
    retry, release = (clock() + timedelta(minutes=minutes) for minutes in (15, 30))
    assert [held[n].until for n in (0, 1, 2)] == [retry, release, None]
    delay = held[7].until - clock()
    assert timedelta(hours=2) <= delay < timedelta(hours=2, seconds=1), "in whole seconds"
    assert "max_delivery_attempts" in held[2].because
    assert f"message {held[0].sequence} failed" in held[0].because


def test_a_priority_is_as_old_as_its_first_message(clock: ManualClock) -> None:
    for lanes in (0, LANES):
        queue = memory_queue(clock, lanes=lanes)
        queue.publish([Message("x", key=key_in(3))] * 2)
        clock.advance(10)
        queue.publish(Message("y", key=key_in(3)))
        group = queue.group("g")
        group.lease("w", max_messages=2)
        (zero,) = group.priorities()
        assert (zero.priority, zero.ready, zero.leased) == (0, 1, 2)
        assert zero.oldest_age >= timedelta(seconds=9)


def test_files_of_foreign_writers_are_counted(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", lanes=LANES, order="key")
    keys = [key_in(3), key_in(5), key_in(3), None]
    rows = pa.table({"value": pa.array([b"x"] * 4, pa.binary()), "key": pa.array(keys)})
    write_deltalake(tmp_path / "q" / "messages", rows, mode="append", schema_mode="merge")
    group = queue.group("g").ensure()
    assert {lane.lane: lane.messages for lane in group.lanes()} == {3: 2, 5: 1, None: 1}


def test_an_overview_sums_up_lanes_and_priorities_if_asked(
    make: Callable[..., Queue], clock: ManualClock
) -> None:
    queue = ordered(make, retry_delay="15m")
    keys = [key_in(n) for n in (1, 2, 3)]
    queue.publish([Message("x", key=key) for key in keys * 2])
    group = queue.group("g")
    lease = group.lease("w", max_messages=1)
    lease.nack([lease.messages[0].sequence])
    group.lease("w", max_messages=1)
    queue.group("plain").configure(order="none")
    clock.advance(7)
    assert queue.describe().lanes == {}
    lanes = queue.describe(lanes=True).lanes
    assert set(lanes) == {"g"}
    summary = lanes["g"]
    assert (summary.order, summary.lanes, summary.complete) == ("key", 3, True)
    assert (summary.lanes_leased, summary.lanes_held_back, summary.held_back) == (1, 1, 1)
    assert summary.oldest_head_age >= timedelta(seconds=6)
    (zero,) = summary.priorities
    assert (zero.ready, zero.delayed, zero.leased) == (4, 1, 1)
    assert summary.to_arrow().column("priorities").to_pylist()[0][0]["ready"] == 4


def test_an_overview_sums_up_unordered_groups_if_priorities_are_used() -> None:
    queue = memory_queue()
    queue.publish("a")
    queue.group("g").ensure()
    assert queue.describe(lanes=True).lanes == {}
    queue.publish(Message("b", priority=9))
    summary = queue.describe(lanes=True).lanes["g"]
    assert (summary.order, summary.lanes) == ("none", 0)
    assert [level.priority for level in summary.priorities] == [9, 0]


def test_a_delayed_message_that_a_lease_has_skipped_delays_its_lane_still(
    make: Callable[..., Queue],
) -> None:
    queue = ordered(make)
    queue.publish([Message("x", key=key_in(0)), Message("y", key=key_in(0), deliver_at="2h")])
    queue.publish(Message("z", key=key_in(1)))
    queue.group("g").lease("w", max_messages=2).ack()
    assert (lane(queue, 0).held_by, lane(queue, 0).delayed) == ("delay", 1)


def test_an_unordered_group_holds_no_lane_back(make: Callable[..., Queue]) -> None:
    queue = ordered(make, order="none")
    queue.publish([Message("x", key=key_in(0))] * 2)
    queue.group("g").lease("w", max_messages=1)
    found = lane(queue, 0)
    assert (found.held_by, found.held_back, found.leased) == ("", 0, 1)


def test_the_lanes_of_a_large_backlog_are_counted_up_to_a_number_of_runs() -> None:
    """Each run is seen once, so a count of as many runs as there are is complete."""
    queue = memory_queue(lanes=LANES, order="key")
    for _ in range(10):
        queue.publish([Message("x", key=key_in(n)) for n in (0, 0, 1)])
    group = queue.group("g").ensure()
    assert queue.describe(lanes=True).lanes["g"].complete
    with rule_variant("count_lanes", gets(max_runs=20)):
        assert queue.describe(lanes=True).lanes["g"].complete
    with rule_variant("count_lanes", gets(max_runs=6)):
        assert not queue.describe(lanes=True).lanes["g"].complete
        assert {lane.lane: lane.messages for lane in group.lanes()} == {0: 6, 1: 3}


STATES = ("ready", "delayed", "leased", "blocked", "dead")
MESSAGES = st.lists(
    st.tuples(st.sampled_from([0, 0, 9]), st.sampled_from([*map(key_in, range(4)), None])),
    min_size=1,
    max_size=8,
)
STEPS = st.tuples(
    st.sampled_from(["lease", "lease", "ack", "nack", "reject", "release", "expire"]),
    st.integers(1, 9),
    st.integers(0, 40),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.lists(STEPS))
def test_lanes_and_priorities_agree_with_a_look_at_each_message(published: Any, steps: Any) -> None:
    clock = ManualClock()
    given = {"lanes": LANES, "order": "key", "retry_jitter": 0, "breaker_threshold": None}
    queue = memory_queue(clock, **given)
    for some in published:
        queue.publish([Message("x", key=key, priority=priority) for priority, key in some])
    group, leases = queue.group("g").ensure(), list[Lease]()
    for verb, count, delay in steps:
        if verb == "lease":
            lease = group.lease("w", max_messages=count)
            leases += [lease] if lease else []
        elif verb == "expire":
            clock.advance("2m")
        elif leases:
            held = leases[delay % len(leases)]
            named = [message.sequence for message in held.messages][:count]
            later = {"delay": delay} if verb in ("nack", "release") else {}
            with suppress(LeaseLost):
                getattr(held, verb)(named, **later)
    agrees(queue)


def agrees(queue: Queue) -> None:
    group = queue.group("g")
    messages = [m for m in group.peek(1_000) if m.state in STATES]
    lanes = group.lanes(None)
    assert {lane.lane for lane in lanes} == {m.lane for m in messages}
    for lane in lanes:
        own = [m for m in messages if m.lane == lane.lane]
        assert counts(lane) == Counter(m.state for m in own)
        waiting = [m for m in own if m.state != "dead"]
        assert lane.head == min((m.sequence for m in waiting), default=None)
        heads = {m.priority: m.state for m in reversed(waiting)}  # the first of each priority
        behind = [m for m in waiting if m.state == "ready" and heads[m.priority] != "ready"]
        if lane.lane is None:
            assert (lane.held_by, lane.held_back) == ("", 0)
        elif lane.leased:
            assert (lane.held_by, lane.held_back) == ("lease", lane.ready)
        else:
            assert bool(lane.held_by) == bool({*heads.values()} - {"ready"})
            assert lane.held_back == len(behind)
    levels = group.priorities()
    assert {level.priority for level in levels} == {m.priority for m in messages}
    for level in levels:
        own = [m for m in messages if m.priority == level.priority]
        assert counts(level) == Counter(m.state for m in own)
    assert sum(level.ready for level in levels) == group.stats().ready


def counts(shown: Any) -> Counter[str]:
    """Return the messages in each state. Zeros count as none."""
    return Counter({state: getattr(shown, state) for state in STATES})
