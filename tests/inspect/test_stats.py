"""The stats of all groups at once are those of each group's own rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from support.byte_store import ByteStore, Call
from support.handles import again
from support.limits import Limits
from support.rule_variants import first, rule_variant

from spark_mq import Message, Queue, SparkMQError
from spark_mq.integrations.prometheus import exposition
from spark_mq.testing import ManualClock, memory_queue

SETTINGS = [
    {},
    {"max_in_flight": 2},
    {"max_failures": 2},
    {"max_delivery_attempts": 2, "on_max_deliveries": "block"},
    {"max_delivery_attempts": None, "retry": "none"},
    {"max_retry_age": "30s"},
    {"clock_skew": "0s", "max_tracked_ranges": 2},
]
STEP = st.tuples(
    st.sampled_from(["publish", "delayed", "lease", "ack", "nack", "reject", "wait", "sweep"]),
    st.integers(0, 2),
    st.integers(1, 4),
)


def apply(queue: Queue, clock: ManualClock, step: tuple[str, int, int], held: list[Any]) -> None:
    verb, group, size = step
    if verb == "publish":
        queue.publish(["m"] * size)
    elif verb == "delayed":
        queue.publish(Message("later", deliver_at=timedelta(seconds=20 * size)))
    elif verb == "wait":
        clock.advance(17 * size)
    elif verb == "sweep":
        queue.sweep()
    elif verb == "lease":
        if lease := queue.group(f"g{group}").lease("w", max_messages=size):
            held.append(lease)
    elif held:
        lease = held.pop(group % len(held))
        named = [lease.messages[0].sequence] if size > 2 and verb == "nack" else None
        getattr(lease, verb)(named)


def same(queue: Queue, look: Queue) -> None:
    assert look.describe().groups == {name: queue.group(name).stats() for name in queue.groups()}


@given(st.lists(STEP, max_size=25), st.sampled_from(SETTINGS))
def test_the_counts_of_all_groups_are_those_of_the_rules(
    steps: list[tuple[str, int, int]], settings: dict[str, Any]
) -> None:
    clock = ManualClock()
    queue = memory_queue(clock, **settings)
    kept, held = again(queue), list[Any]()
    for step in steps:
        with suppress(SparkMQError):
            apply(queue, clock, step, held)
        same(queue, kept)  # what it kept from before is not out of date
        same(queue, again(queue))


def test_groups_on_tables_are_counted_alike(queue: Queue, clock: ManualClock) -> None:
    reader = again(queue)
    queue.publish(["a", "b", "c"])
    for name in ("one", "two", "three"):
        lease = queue.group(name).lease("w", max_messages=2)
        lease.nack([lease.messages[0].sequence], error="bad")
    same(queue, reader)
    clock.advance("5m")
    same(queue, reader)
    queue.group("two").lease("w").ack()
    queue.drop_group("one")
    same(queue, reader)


def test_a_second_look_reads_only_what_has_changed(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only their files have
    queue.publish(["a", "b"])
    for number in range(5):
        queue.group(f"g{number}").lease("w")
    reader, read = again(queue), byte_store.paths("read", of="leases")

    def groups() -> list[str]:
        return sorted(name for path in read for name in re.findall("consumer_group=(.*?)/", path))

    reader.describe()
    assert groups() == [f"g{number}" for number in range(5)]
    queue.group("g3").lease("w")
    read.clear()
    assert reader.describe().groups["g3"].leased == 2
    assert groups() == ["g3"]


@pytest.mark.parametrize("by", ["a lease", "a drop"])
def test_a_ledger_that_is_replaced_meanwhile_is_counted_by_the_new_one(
    queue: Queue, byte_store: ByteStore, limits: Limits, by: str
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only their files have
    queue.publish(["a", "b"])
    queue.group("g").lease("w", max_messages=1)
    gone = list[str]()

    def replace(call: Call) -> Any:
        """Replace the ledger and delete its file, just before the file is read."""
        if gone or "consumer_group=" not in call.path:
            return call.run()
        gone.append(call.path)
        if by == "a drop":
            queue.drop_group("g")
        else:
            queue.group("g").lease("w")
        raise FileNotFoundError(call.path)

    reader = again(queue)
    byte_store.on("read", act=replace, of="leases")
    same(queue, reader)
    assert gone


def test_plain_groups_need_no_ledger_of_their_own(queue: Queue) -> None:
    queue.publish(["a", "b"])
    queue.group("g").lease("w")
    slowly: list[str | None] = []  # the letters of a queue on a disk are counted so
    with rule_variant("compute_stats", first(lambda a: slowly.append(a.ledger.head.group))):
        assert queue.describe().groups["g"].leased == 1
    assert "g" not in slowly


def test_a_damaged_group_does_not_hide_the_others(
    delta_queue: Callable[..., Queue], limits: Limits
) -> None:
    limits(tag_bytes=0)  # as of large ledgers, which only their files have
    queue = delta_queue()
    sequences = queue.publish(["a", "b"]).sequences
    for name in ("good", "torn", "well"):
        queue.group(name).lease("w")
    table = DeltaTable(f"{queue.path}/leases")
    (torn,) = [path for path in table.file_uris() if "consumer_group=torn" in path]
    with open(torn, "r+b") as file:
        file.truncate(20)
    overview = Queue.open(queue.path).describe()
    assert sorted(overview.groups) == ["good", "well"]
    assert list(overview.damaged) == ["torn"]
    assert "torn" in overview.damaged["torn"]
    health = Queue.open(queue.path).health()
    assert [problem.check for problem in health.problems] == ["unreadable"]
    queue.group("good").pause()
    assert [name for name, _ in again(queue).trace(sequences[0]).blocked] == ["good"]


def test_no_age_counts_what_is_scheduled_for_later(clock: ManualClock) -> None:
    queue = memory_queue(clock, lanes=8, order="key")
    queue.publish(Message("later", key="a", priority=3, deliver_at=timedelta(hours=5)))
    clock.advance("30m")
    queue.publish(Message("due", key="b", priority=3, deliver_at=timedelta(minutes=10)))
    group = queue.group("g").ensure()

    def minutes() -> set[int | None]:
        overview = queue.describe(lanes=True)
        text = exposition({queue.path: overview}).decode()
        served = re.findall(r"^spark_mq_oldest_(?:unsettled|lane_head)_age\S* (\S+)$", text, re.M)
        ages = {timedelta(seconds=float(age)) for age in served} or {None}
        ages |= {overview.groups["g"].oldest_unsettled_age, overview.lanes["g"].oldest_head_age}
        ages |= {level.oldest_age for level in group.priorities()}
        return {None if age is None else round(age / timedelta(minutes=1)) for age in ages}

    clock.advance("3h")
    assert minutes() == {170}, "since 10 minutes after its publish"
    assert sum(lane.head_age is None for lane in group.lanes()) == 1
    assert not queue.health(max_age="2h", max_unswept=None).healthy
    group.lease("w").ack()
    assert minutes() == {None}
    assert str(queue.health(max_age="1s", max_unswept=None)) == "healthy"
    clock.advance("2h")
    assert minutes() == {30}


def test_deliveries_and_failures_are_counted_by_reason(clock: ManualClock) -> None:
    queue = memory_queue(clock, visibility_timeout="30s", clock_skew="0s")
    queue.publish([str(n) for n in range(10)])
    group = queue.group("g")
    lease = group.lease("w", max_messages=10)
    sequences = [message.sequence for message in lease.messages]
    lease.nack(sequences[:2], delay="1h")
    lease.reject(sequences[2:3])
    lease.ack(sequences[3:6])
    lease.release(sequences[6:7], delay="1h")
    clock.advance("31s")

    def counts() -> tuple[int, ...]:
        stats = group.stats()
        failures = (stats.nacked, stats.rejected, stats.lease_expired)
        return (stats.leases, stats.deliveries, *failures, stats.released)

    assert counts() == (1, 10, 2, 1, 3, 1), "also before a commit has expired the lease"
    group.lease("w", max_messages=10).ack()
    assert counts() == (2, 13, 2, 1, 3, 1)
    text = exposition({queue.path: queue.describe()}).decode()
    assert re.search(r'spark_mq_failures_total\{.*reason="lease_expired"\} 3\n', text)
