"""Select the messages of a lease."""

from __future__ import annotations

from array import array

import pytest
from support.ledger_group import SECOND, TIMEOUT, Group, intervals_of, limits

from spark_mq.errors import StorageError
from spark_mq.ledger.acquire import MAX_OUT_OF_REACH, Acquire, Grant
from spark_mq.ledger.commands import FileProblems
from spark_mq.ledger.isolation import isolation_size
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import DataFile, sequence
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT

# -- leasing


def test_unread_messages_are_leased_in_order_and_counted():
    group = Group()
    assert group.lease("a", 3) == [0, 1, 2]
    assert group.lease("b", 100) == [3, 4, 5, 6, 7, 8, 9]
    assert group.at(0) == Range(
        0, 2, LEASED, 3, lease_id="a", worker_id="worker of a", leased_at=group.now,
        expires_at=group.now + TIMEOUT, lease_size=3, first_leased_at=group.now, delivery_count=1,
    )  # fmt: skip


def test_a_lease_checks_as_many_files_ahead_as_the_filter_has_passed():
    group = Group(files=[DataFile(at, 1, str(at), 10, 0) for at in range(12)])
    group.lease("a", 2)
    none = RowRuns(array("q", [1]), False)
    files = FileProblems({*"247"}, {"6": "damaged"}, matches=dict.fromkeys("247", none))
    change = Acquire("w", 2).apply(group.view(files=files))
    assert [file.path for file in change.unchecked] == [*"3589"]
    assert len(Acquire("w", 1).apply(group.view()).unchecked) == 1, "none without a filter"


def test_neighbours_that_a_lease_takes_or_skips_alike_are_one_piece():
    files = [DataFile(10 * at, 1, str(at), 10, 0) for at in range(1, 7)]
    group = Group(files=[DataFile(0, 1, "0", 10, 0, group="other"), *files])
    none = RowRuns(array("q", [1]), False)
    group.ask("a", 9, matches=dict.fromkeys("125", none))
    events = [f"{event} {r.first}-{r.last}" for event, r in group.ledger.events]
    filtered = ["filtered 10-20", "filtered 50-50"]
    assert events == ["other_group 0-0", *filtered, "leased 30-40", "leased 60-60"]


def test_a_lease_passes_damaged_files_and_so_many_that_are_out_of_reach():
    group = Group(files=[DataFile(at, 1, str(at), 10, 0) for at in range(MAX_OUT_OF_REACH + 3)])
    for bad, total, ranges in ((101, 2, "reject 1-1 lease 101-101"), (102, 1, "reject 1-1")):
        failed = dict.fromkeys(map(str, range(bad)), StorageError("no route"))
        problems = FileProblems(damaged={"1": "torn"}, out_of_reach=failed)
        change = Acquire("w", 1).apply(group.view(files=problems))
        assert (change.note["messages"], change.note["ranges"]) == (total, ranges)


# -- isolation and turns


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 999, 10_000, 1_000_000])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_isolation_ends_alone_and_never_grows(limit, n):
    sizes = [isolation_size(limit, d, n) for d in range(n + 2)]
    assert sizes[0] == limit
    assert sizes[n - 1 :] == [1, 1, 1]
    assert sizes == sorted(sizes, reverse=True)
    whole = 1 if n >= 4 else 0  # retries of the whole lease
    assert sizes[: 1 + whole] == [limit] * (1 + whole)
    steps = n - 1 - whole
    for d, size in enumerate(sizes[whole : n - 1], whole):
        # exactly: size is the floor of limit ** ((n-1-d)/steps)
        assert size**steps <= limit ** (n - 1 - d) < (size + 1) ** steps


def test_only_a_group_of_one_attempt_leases_each_message_alone():
    """The first failure of a whole lease is never final, so others need not be alone."""
    assert Group(rules=limits(max_delivery_attempts=1)).lease("a", 10) == [0]
    assert len(Group(rules=limits(retry="none")).lease("a", 10)) == 10


def test_last_attempts_and_suspects_go_in_the_order_of_sequence():
    group = Group(messages=300, rules=limits(max_delivery_attempts=2))
    group.lease("whole", 20)
    group.lease("named", 20)
    group.settle(NACK, "named", list(range(20, 40)), delay=0)
    group.settle(NACK, "whole", delay=0)
    taken = [group.lease(f"l{i}", 1)[0] for i in range(28)]
    isolated = [seq for seq in taken if seq < 40]
    assert isolated == list(range(len(isolated)))
    assert [seq for seq in taken if seq >= 40] == [40, 41, 42, 43, 44, 45], (
        "unread gets each fourth lease while suspects are isolated, and none after that"
    )


# -- caps


def test_dead_and_delayed_ranges_do_not_count_as_tracked():
    group = Group(rules=limits(max_tracked_ranges=2))
    assert [group.lease(name) for name in "ab"] == [[0], [1]]
    assert group.ask("c").blocked_because == "max_tracked_ranges"
    group.settle(REJECT, "a")
    group.settle(NACK, "b", delay=SECOND)
    assert [group.lease(name) for name in "cd"] == [[2], [3]]
    assert group.ask("e").blocked_because == "max_tracked_ranges"


# -- bytes in flight


def test_messages_of_so_many_bytes_are_leased_at_the_same_time():
    group = Group(rules=limits(max_in_flight_bytes=50))  # a message has 10
    assert group.lease("a", 100, max_bytes=30) == [0, 1, 2]
    assert group.lease("b", 100) == [3, 4]
    grant = group.ask("c", 1)
    assert grant == Grant((), "max_in_flight_bytes")
    assert grant.blocked_for_now
    assert not grant.breaker_stops
    group.settle(ACK, "a", [0])
    assert group.lease("d", 100) == [5]
    assert group.ask("e", 100, max_bytes=5).blocked_because == "max_in_flight_bytes"


def test_a_message_that_is_larger_than_the_limit_is_leased_alone():
    sizes = [10, 500, 2]
    files = [DataFile(sequence(n, 0), 1, str(n), size, 0) for n, size in enumerate(sizes)]
    group = Group(files=files, rules=limits(max_in_flight_bytes=50))
    assert group.lease("a", 100) == [sequence(0, 0)]
    assert group.ask("b", 100).blocked_because == "max_in_flight_bytes"
    group.settle(ACK, "a")
    assert group.lease("c", 100) == [sequence(1, 0)]
    assert group.ask("d", 100).blocked_because == "max_in_flight_bytes"


def test_a_blocked_message_is_the_reason_although_the_cap_is_reached():
    group = Group(rules=limits(max_in_flight=1, max_delivery_attempts=1, on_max_deliveries="block"))
    assert group.lease("a", 1, intervals=intervals_of([1])) == [1]
    group.settle(NACK, "a")
    assert group.lease("b") == [0]
    grant = group.ask("c")
    assert grant.blocked_because.startswith("message 1 is past its limit")
    assert not grant.blocked_for_now, "an ack of message 0 would not help"


# -- named messages


def test_breaker_pause_cap_and_rate_hold_for_named_messages():
    group = Group(rules=limits(max_in_flight=2))
    assert group.lease("a", 100, intervals=intervals_of([4, 6, 8])) == [4, 6]
    assert group.ask("b", 1, intervals=intervals_of([8])).blocked_because == "max_in_flight"
    group = Group(rules=limits(rate_limit=[3, SECOND]))
    assert group.lease("a", 2, intervals=intervals_of([4, 6])) == [4, 6]
    assert group.ask("b", 2, intervals=intervals_of([8, 9])).wait_until is not None
    group = Group(rules=limits(breaker_threshold=1))
    group.lease("a")
    group.settle(NACK, "a")
    assert group.ask("b", 1, intervals=intervals_of([8])).breaker_stops
