"""Groups that get only some messages: by key, by headers, beside other rules."""

from __future__ import annotations

from typing import Any

import pytest
from support.byte_store import ByteStore, Injected
from support.handles import again, history, lease, side_by_side, take
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.rule_variants import rule_variant
from support.tables import as_in_a_store, context_of

from spark_mq import ConsumerGroup, Lease, Message, Queue

EU = {"key_prefix": "eu-"}


def publish(queue: Queue, *keys: str | None, **more: Any) -> None:
    """Publish a message for each key, with the key as its text."""
    queue.publish([Message(str(key), key=key, **more) for key in keys])


@pytest.fixture
def group(queue: Queue) -> ConsumerGroup:
    """A group with the filter EU."""
    group = queue.group("eu")
    group.configure(filter=EU)
    return group


def test_a_group_gets_what_matches_and_its_history_has_the_rest_as_skipped(
    queue: Queue, group: ConsumerGroup
) -> None:
    publish(queue, "us-1", "eu-1", "us-2", None, "eu-2", "us-3")
    publish(queue, "us-4")
    everything = queue.group("all")
    assert take(group) == ["eu-1", "eu-2"]
    assert group.lease("w") is None
    stats = group.stats()
    assert stats == having(acked=2, skipped=5, ready=0, ledger_ranges=0)
    assert stats.start_sequence == stats.latest_sequence
    commits = len(history(queue))
    assert group.lease("w") is None
    assert len(history(queue)) == commits, "a lease that finds nothing new writes nothing"
    assert len(take(everything)) == 7
    us_1, _, us_2, none, _, us_3, us_4 = (message.sequence for message in queue.peek(7))
    (event,) = (event for event in queue.trace(us_1).events if event.group == "eu")
    assert (event.event, event.outcome) == ("filtered", "skipped")
    ends = queue.finished("eu", outcome="skipped")
    assert ends["sequence"].to_pylist() == [us_1, us_2, none, us_3, us_4]


def test_messages_that_no_lease_examined_count_as_ready(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, "us-1", "us-2")
    assert (group.stats().ready, group.stats().unexamined) == (2, 2)
    assert queue.stats()["groups"][group.name].unexamined == 2
    assert [message.key for message in group.peek()] == ["us-1", "us-2"]
    assert group.lease("w") is None
    assert (group.stats().ready, group.stats().unexamined) == (0, 0)
    assert not group.peek(state="ready")


def test_key_and_headers_decide_together(queue: Queue, group: ConsumerGroup) -> None:
    group.configure(filter={"header": {"region": "eu"}, "key_prefix": "a"})
    publish(queue, "a1", "b", headers={"region": "eu"})
    publish(queue, "a2")
    assert take(group) == ["a1"]


def test_named_messages_are_filtered_as_well(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, "us-1", "eu-1", "eu-2")
    us, eu, _ = (message.sequence for message in queue.peek())
    lease = group.lease("w", sequences=[us, eu])
    assert [message.text for message in lease.messages] == ["eu-1"]
    lease.ack()
    assert take(group) == ["eu-2"]
    assert group.stats().skipped == 1


def test_many_runs_stay_within_the_limit_of_ranges(group: ConsumerGroup, queue: Queue) -> None:
    group.configure(max_tracked_ranges=100)
    publish(queue, *(f"{'eu' if n % 2 else 'us'}-{n}" for n in range(1_000)))
    held, acked = group.lease("v", max_messages=20), 0
    while (lease := group.lease("w", max_messages=1_000)) is not None:
        assert group.stats().ledger_ranges <= 100
        acked += lease.ack().settled
    assert acked + held.ack().settled == 500
    assert group.stats().ledger_ranges == 0


def test_a_long_backlog_without_a_match_is_skipped_in_parts(
    queue: Queue, group: ConsumerGroup, limits: Limits
) -> None:
    limits(filtered_files=3)
    for _ in range(10):
        publish(queue, "us-1", "us-2")
    publish(queue, "eu-1")
    assert take(group) == ["eu-1"]
    skips = [row for row in history(queue).to_pylist() if row["event"] == "filtered"]
    assert sum(row["message_count"] for row in skips) == 20
    assert len({row["version"] for row in skips}) == 4


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_lease_reads_no_file_that_an_earlier_one_has_filtered(
    queue: Queue, group: ConsumerGroup, byte_store: ByteStore, limits: Limits, seconds: float
) -> None:
    limits(check_seconds=seconds)
    publish(queue, "us-1", "eu-1", "us-2", "eu-2")
    assert take(group, 1) == ["eu-1"]
    opened = byte_store.paths("open", of="messages")
    held = lease(queue, 1, group="eu")
    assert opened == []
    assert held.messages[0].text == "eu-2"
    assert opened, "for the values"


def test_over_a_store_each_file_is_checked_once(delta_queue: Make, byte_store: ByteStore) -> None:
    queue = as_in_a_store(delta_queue())
    group = queue.group("g")
    group.configure(filter=EU)
    for _ in range(30):
        publish(queue, "us-1", "us-2")
    publish(queue, "us-3", "eu-1")
    opened = byte_store.paths("open", of="messages")
    assert take(group, 1) == ["eu-1"]
    assert len(opened) == 2 * 31 + 1, "the footers, the keys, and the values of one file"
    assert group.stats().skipped == 61


def test_eight_workers_with_slow_checks_and_little_memory_get_what_matches(
    delta_queue: Make, limits: Limits
) -> None:
    limits(check_seconds=0.0, filtered_pieces=20, filtered_runs=1)
    queue = delta_queue()
    queue.group("g").configure(filter=EU, max_in_flight=60)
    for at in range(5):
        publish(queue, *(f"{'eu' if n % 3 else 'us'}-{at}-{n}" for n in range(30)))
    seen: list[str] = []

    def handle(taken: Lease) -> None:
        seen.extend(message.text for message in taken.messages)

    def run() -> None:
        again(queue).group("g").work(handle, mode="batch", until="settled", max_messages=40)

    side_by_side(run)
    assert sorted(seen) == sorted(f"eu-{at}-{n}" for at in range(5) for n in range(30) if n % 3)
    stats = queue.group("g").stats()
    assert (stats.acked, stats.skipped, stats.ledger_ranges) == (100, 50, 0)
    for key in ("eu-x", "eu-y"):
        publish(queue, key)
        assert take(queue.group("g")) == [key]
    assert len(context_of(queue).payloads.matches) == 1, "the little memory is kept to"


def test_what_another_thread_finds_meanwhile_is_not_taken_for_known(
    queue: Queue, group: ConsumerGroup
) -> None:
    """Another thread checks the file just after the lease has taken its messages."""
    publish(queue, "us-1", "eu-1")
    other = queue.group("other")
    other.configure(filter=EU)

    def meeting(right: Any) -> Any:  # a generator would take the runs later
        return Injected(lambda *args: [*right(*args)], after=lambda: take(other))

    with rule_variant("WalkFilter.runs", meeting):
        assert take(group) == ["eu-1"]
    assert other.stats().acked == 1
