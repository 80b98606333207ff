"""Groups that get only some messages: by key, by headers, beside other rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.handles import again, history
from support.marks import slow
from support.tables import as_in_a_store, context_of

from spark_mq import ConsumerGroup, Message, Queue
from spark_mq.inspect.stats import StatsReader
from spark_mq.ledger import selection
from spark_mq.testing import ManualClock, memory_queue

Make = Callable[..., Queue]

EU = {"key_prefix": "eu-"}


def publish(queue: Queue, *keys: str | None, **more: Any) -> None:
    """Publish a message for each key, with the key as its text."""
    queue.publish([Message(str(key), key=key, **more) for key in keys])


def leased(group: ConsumerGroup, count: int = 1_000) -> list[str]:
    """Lease and ack. Return the texts."""
    lease = group.lease("w", max_messages=count)
    if lease is None:
        return []
    lease.ack()
    return [one.text for one in lease.messages]


@pytest.fixture
def queue(make: Make) -> Queue:
    return make(retry_delay="10s")


@pytest.fixture
def group(queue: Queue) -> ConsumerGroup:
    """A group with the filter EU."""
    group = queue.group("eu")
    group.configure(filter=EU)
    return group


def test_a_group_gets_what_matches_and_skips_the_rest(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, "us-1", "eu-1", "us-2", None, "eu-2", "us-3")
    publish(queue, "us-4")
    everything = queue.group("all")
    lease = group.lease("w", max_messages=10)
    assert [one.text for one in lease.messages] == ["eu-1", "eu-2"]
    lease.ack()
    assert group.lease("w") is None
    stats = group.stats()
    assert (stats.acked, stats.skipped, stats.ready, stats.ledger_ranges) == (2, 5, 0, 0)
    assert stats.start_sequence == stats.latest_sequence
    assert len(leased(everything)) == 7


def test_messages_that_no_lease_has_examined_count_as_ready(
    queue: Queue, group: ConsumerGroup
) -> None:
    publish(queue, "us-1", "us-2")
    assert (group.stats().ready, group.stats().unexamined) == (2, 2)
    assert StatsReader(context_of(queue)).read()[group.name].unexamined == 2
    assert queue.group("all").ensure().stats().unexamined == 0
    assert [one.key for one in group.peek()] == ["us-1", "us-2"]
    assert group.lease("w") is None
    assert (group.stats().ready, group.stats().unexamined) == (0, 0)
    assert not group.peek(state="ready")


def test_history_and_trace_say_that_the_filter_skipped_a_message(
    queue: Queue, group: ConsumerGroup
) -> None:
    publish(queue, "us-1", "eu-1")
    (us, _) = (one.sequence for one in queue.peek())
    assert leased(group) == ["eu-1"]
    (event,) = (one for one in queue.trace(us).events if one.group == "eu")
    assert (event.event, event.outcome) == ("filtered", "skipped")
    ends = queue.finished("eu", outcome="skipped")
    assert [one["sequence"] for one in ends.to_pylist()] == [us]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"header": {"region": "eu"}}, ["a", "b"]),
        ({"header": {"region": ["us", "eu"]}}, ["a", "b", "c"]),
        ({"header": {"region": "eu", "tier": "gold"}}, ["b"]),
        ({"header": {"region": "eu"}, "key_prefix": "a"}, ["a"]),
        ("header.region=eu, key_prefix=b", ["b"]),
        ("key_prefix=a, key_prefix=d", ["a", "d"]),
        ({"header": {"nothing": "x"}}, []),
    ],
)
def test_all_conditions_must_hold_each_with_any_of_its_values(
    make: Make, wanted: Any, found: list[str]
) -> None:
    queue = make()
    group = queue.group("g")
    group.configure(filter=wanted)
    given: dict[str, dict[str, str]] = {
        "a": {"region": "eu"}, "b": {"region": "eu", "tier": "gold"}, "c": {"region": "us"},
        "d": {},
    }  # fmt: skip
    queue.publish([Message(key, key=key, headers=headers) for key, headers in given.items()])
    assert leased(group) == found


def test_a_new_filter_holds_for_messages_not_leased_yet(
    queue: Queue, group: ConsumerGroup, clock: ManualClock
) -> None:
    publish(queue, "eu-1", "us-1", "eu-2", "us-2", "eu-3")
    first = group.lease("w", max_messages=1)
    first.nack()
    group.configure(filter={"key_prefix": "us-"})
    clock.advance("1m")
    assert leased(group) == ["eu-1", "us-1", "us-2"]
    group.configure(filter=None)
    publish(queue, "eu-4")
    assert leased(group) == ["eu-4"], "what was skipped stays skipped"
    group.seek("earliest")
    assert len(leased(group)) == 6


def test_a_message_that_was_only_released_is_examined_again(
    queue: Queue, group: ConsumerGroup
) -> None:
    publish(queue, "eu-1", "eu-2")
    lease = group.lease("w", max_messages=2)
    lease.release()
    group.configure(filter={"key_prefix": "us-"})
    assert leased(group) == []
    assert group.stats().skipped == 2


def test_a_skipped_message_does_not_hold_back_its_key(make: Make, clock: ManualClock) -> None:
    queue = make(lanes=8)
    group = queue.group("g")
    group.configure(order="key", filter={"header": {"kind": "order"}})
    for kind in ("note", "order", "note", "order"):
        queue.publish([Message(f"{kind} {key}", key=key, headers={"kind": kind}) for key in "ab"])
    first = group.lease("w", max_messages=2)
    held = {one.text for one in first.messages}
    rest = group.lease("x", max_messages=10)
    assert held <= {"order a", "order b"}
    first.ack()
    if rest is not None:
        rest.ack()
    while leased(group):
        pass
    assert (group.stats().acked, group.stats().skipped) == (4, 4)


def test_named_messages_are_filtered_as_well(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, "us-1", "eu-1", "eu-2")
    us, eu, _ = (one.sequence for one in queue.peek())
    lease = group.lease("w", sequences=[us, eu])
    assert [one.text for one in lease.messages] == ["eu-1"]
    lease.ack()
    assert leased(group) == ["eu-2"]
    assert group.stats().skipped == 1


def test_delayed_and_expired_messages_end_by_their_times(
    queue: Queue, group: ConsumerGroup, clock: ManualClock
) -> None:
    later, soon = clock() + timedelta(hours=1), clock() + timedelta(minutes=1)
    publish(queue, "us-1", "eu-1", deliver_at=later)
    publish(queue, "us-2", "eu-2", expires_at=soon)
    publish(queue, "us-3", "eu-3")
    clock.advance("2m")
    assert leased(group) == ["eu-3"]
    stats = group.stats()
    assert (stats.expired, stats.skipped, stats.delayed) == (2, 1, 2)
    clock.advance("1h")
    assert leased(group) == ["eu-1"]
    assert group.stats().skipped == 2


def test_bytes_limit_what_is_leased_and_lose_nothing(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, *(f"{'eu' if n % 2 else 'us'}-{n}" for n in range(40)))
    found: list[str] = []
    for _ in range(60):
        lease = group.lease("w", max_messages=100, max_bytes=200)
        if lease is None:
            break
        found += [one.text for one in lease.messages]
        lease.ack()
    assert found == [f"eu-{n}" for n in range(1, 40, 2)]
    assert group.stats().skipped == 20


def test_many_runs_stay_within_the_limit_of_ranges(make: Make) -> None:
    queue = make()
    group = queue.group("g")
    group.configure(filter=EU, max_tracked_ranges=100)
    publish(queue, *(f"{'eu' if n % 2 else 'us'}-{n}" for n in range(1_000)))
    leases = []
    while (lease := group.lease("w", max_messages=1_000)) is not None:
        leases.append(lease)
        assert group.stats().ledger_ranges <= 101
        if len(leases) > 20:
            break
        lease.ack()
    assert sum(len(one) for one in leases) == 500
    assert group.stats().ledger_ranges == 0


def test_a_long_backlog_without_a_match_is_skipped_in_parts(
    make: Make, limits: Callable[..., None]
) -> None:
    limits(filtered_files=3)
    queue = make()
    group = queue.group("g")
    group.configure(filter=EU)
    for _ in range(10):
        publish(queue, "us-1", "us-2")
    publish(queue, "eu-1")
    assert leased(group) == ["eu-1"]
    notes = [one for one in history(queue).to_pylist() if one["event"] == "filtered"]
    assert sum(one["message_count"] for one in notes) == 20
    assert len({one["version"] for one in notes}) == 4


def test_a_second_process_finds_the_same(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, "us-1", "eu-1", "us-2", "eu-2")
    assert leased(group, 1) == ["eu-1"]
    assert leased(again(queue).group("eu")) == ["eu-2"]


def test_over_a_store_files_are_checked_in_threads(delta_queue: Make) -> None:
    queue = as_in_a_store(delta_queue())
    group = queue.group("g")
    group.configure(filter=EU)
    for _ in range(30):
        publish(queue, "us-1", "us-2")
    publish(queue, "us-3", "eu-1")
    assert leased(group, 1) == ["eu-1"]
    assert group.lease("w") is None
    assert group.stats().skipped == 61


@pytest.mark.parametrize("mode", [slow("message"), "batch"])
def test_eight_workers_with_slow_checks_and_little_memory_get_what_matches(
    delta_queue: Make, limits: Callable[..., None], mode: str
) -> None:
    limits(check_seconds=0.0, filtered_pieces=20, filtered_runs=1)
    queue = delta_queue()
    queue.group("g").configure(filter=EU, max_in_flight=60)
    for at in range(5):
        publish(queue, *(f"{'eu' if n % 3 else 'us'}-{at}-{n}" for n in range(30)))
    seen: list[str] = []

    def handle(given: Any) -> None:
        seen.extend(one.text for one in (given.messages if mode == "batch" else [given]))

    def run() -> None:
        again(queue).group("g").work(handle, mode=mode, until="settled", max_messages=40)

    workers = [threading.Thread(target=run) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(seen) == sorted(f"eu-{at}-{n}" for at in range(5) for n in range(30) if n % 3)
    stats = queue.group("g").stats()
    assert (stats.acked, stats.skipped, stats.ledger_ranges) == (100, 50, 0)


def test_what_another_thread_finds_meanwhile_is_not_taken_for_known(
    queue: Queue, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread checks the file just after the lease has taken its messages."""
    publish(queue, "us-1", "eu-1")
    other, take, done = queue.group("other"), selection.WalkFilter.runs, list[str]()
    other.configure(filter=EU)

    def runs(own: Any, *args: Any) -> Any:
        found = list(take(own, *args))
        if not done:
            done.append("other")
            assert leased(other) == ["eu-1"]
        return found

    monkeypatch.setattr(selection.WalkFilter, "runs", runs)
    assert leased(group) == ["eu-1"]
    assert done


def test_two_groups_of_one_process_have_their_own_filters(
    queue: Queue, group: ConsumerGroup
) -> None:
    us = queue.group("us")
    us.configure(filter="key_prefix=us-")
    publish(queue, "us-1", "eu-1")
    assert leased(us) == ["us-1"]
    assert leased(group) == ["eu-1"]


def test_workers_get_what_matches(queue: Queue, group: ConsumerGroup) -> None:
    publish(queue, *(f"{'eu' if n % 3 else 'us'}-{n}" for n in range(90)))
    for mode, until in (("message", "empty"), ("batch", "settled")):
        seen: list[Any] = []
        group.work(seen.append, mode=mode, until=until)
        assert seen
        assert group.stats().ready == 0
        publish(queue, *(f"{'eu' if n % 3 else 'us'}-{n}" for n in range(90)))
    stats = group.stats()
    assert (stats.acked, stats.skipped) == (120, 60)


def test_nothing_is_written_by_a_lease_that_finds_nothing_new(
    queue: Queue, group: ConsumerGroup
) -> None:
    publish(queue, "us-1")
    assert group.lease("w") is None
    before = len(history(queue))
    for _ in range(3):
        assert group.lease("w") is None
    assert len(history(queue)) == before


# -- beside a plain Python filter

keys = st.sampled_from([None, "a", "ab", "b", "c"])
regions = st.sampled_from([{}, {"r": "1"}, {"r": "2"}, {"s": "1"}, {"r": "1", "s": "2"}])
batches = st.lists(st.tuples(keys, regions, st.integers(0, 1)), min_size=1, max_size=8)
wanted = st.sampled_from(
    [
        {"key_prefix": ["a"]}, {"key_prefix": ["ab", "c"]}, {"header": {"r": ["1"]}},
        {"header": {"r": ["1", "2"], "s": ["1", "2"]}}, {"header": {"s": ["1"]}},
        {"key_prefix": ["a", "b"], "header": {"r": ["1", "2"]}},
    ]
)  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), batches),
        st.tuples(st.just("lease"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["ack", "nack", "release", "wait"]), st.integers(0, 3)),
    ),
    min_size=3,
    max_size=25,
)


def wants(given: dict[str, Any], key: str | None, headers: dict[str, str]) -> bool:
    prefixes = given.get("key_prefix")
    if prefixes and not any(key is not None and key.startswith(one) for one in prefixes):
        return False
    return all(headers.get(name) in values for name, values in given.get("header", {}).items())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["none", "key", "fair"])
@given(wanted, steps)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_workers_do_each_message_that_matches_is_delivered_and_no_other(
    order: str, given: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    clock = ManualClock()
    queue = memory_queue(clock, lanes=4, max_delivery_attempts=None, retry_delay="1s")
    group = queue.group("g")
    group.configure(order=order, filter=given, breaker_threshold=None)
    expected, other, held, seen = set[str](), 0, list[Any](), dict[str, list[str]]()
    number = 0

    def take(count: int) -> bool:
        lease = group.lease("w", max_messages=count)
        if lease is None:
            return False
        assert len(lease) <= count
        assert {one.text for one in lease.messages} <= expected
        held.append(lease)
        return True

    def ack(lease: Any) -> None:
        for one in lease.messages:
            seen.setdefault(str(one.key), []).append(one.text)
        lease.ack()

    for step, value in steps:
        if step == "publish":
            messages = []
            for key, headers, priority in value:
                number += 1
                messages.append(
                    Message(f"{number:04d}", key=key, headers=headers, priority=priority)
                )
                if wants(given, key, headers):
                    expected.add(f"{number:04d}")
                else:
                    other += 1
            queue.publish(messages)
        elif step == "lease":
            take(value)
        elif step == "wait":
            clock.advance("5s")
        elif value < len(held):
            lease = held.pop(value)
            ack(lease) if step == "ack" else getattr(lease, step)()
    for lease in held:
        ack(lease)
    held.clear()
    for _ in range(200):
        clock.advance("10m")
        if not take(5):
            break
        ack(held.pop())
    texts = [one for some in seen.values() for one in some]
    assert sorted(texts) == sorted(expected)
    stats = group.ensure().stats()
    assert (stats.acked, stats.skipped, stats.ready) == (len(expected), other, 0)
    assert stats.ledger_ranges == 0
