"""Select the messages of a lease."""

from __future__ import annotations

import pytest
from support.ledger_group import SECOND, TIMEOUT, Group, freeze, limits

from spark_mq.ledger.acquire import Grant
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.isolation import isolation_size
from spark_mq.ledger.message_index import DataFile, sequence
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE

# -- leasing


def test_unread_messages_are_leased_in_order_and_counted():
    group = Group()
    assert group.lease("a", 3) == [0, 1, 2]
    assert group.lease("b", 100) == [3, 4, 5, 6, 7, 8, 9]
    assert group.at(0) == Range(
        0, 2, LEASED, 3, lease_id="a", worker_id="worker of a", leased_at=group.now,
        expires_at=group.now + TIMEOUT, lease_size=3, first_leased_at=group.now, delivery_count=1,
    )  # fmt: skip


def test_a_lease_spans_commits_and_their_gaps():
    group = Group(
        files=[DataFile(sequence(1, 0), 2, "a", 2, 0), DataFile(sequence(5, 0), 3, "b", 3, 0)]
    )
    assert group.lease("a", 3) == [sequence(1, 0), sequence(1, 1), sequence(5, 0)]
    (held,) = group.ledger
    assert (held.first, held.last, held.message_count) == (sequence(1, 0), sequence(5, 0), 3)


def test_nothing_is_leased_where_nothing_is_due():
    group = Group(messages=1)
    group.lease("a")
    before = group.ledger
    assert group.ask("b") == Grant((), "")
    assert group.ledger is before


def test_redelivery_goes_to_the_head():
    group = Group()
    group.lease("a", 4)
    group.settle(RELEASE, "a", [1, 2])
    assert group.lease("b", 4) == [1, 2, 4, 5]


def test_a_first_lease_is_remembered_over_redelivery():
    group = Group()
    first = group.now
    group.lease("a")
    group.expire()
    group.lease("b")
    assert group.at(0).first_leased_at == first
    assert group.at(0).delivery_count == 2


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


@pytest.mark.parametrize("attempts", [1, 0])
def test_with_one_attempt_every_lease_is_of_one_message(attempts):
    assert isolation_size(1000, 0, attempts) == 1
    group = Group(rules=limits(max_delivery_attempts=1))
    assert group.lease("a", 100) == [0]
    group.expire()
    assert group.state(0) == "dead"


def test_an_expired_lease_comes_back_in_smaller_pieces_of_it_alone():
    group = Group(messages=10_000)
    group.lease("a", 10_000)
    group.expire()
    for size in (10_000, 464, 21, 1):
        assert group.lease("next", 10_000) == list(range(size))
        group.expire()
    assert group.state(0) == "dead"
    assert group.state(1) == "available"


def test_a_suspect_piece_never_spans_two_failures():
    group = Group()
    group.lease("a", 3)
    group.lease("b", 3)
    group.now += 1
    group.lease("c", 2)
    group.expire()
    assert len([r for r in group.ledger if r.suspect]) == 3, (
        "their last errors differ: each is a range"
    )
    assert len(group.lease("d", 10_000)) == 3


def test_isolation_follows_the_limit_of_the_current_lease():
    group = Group(messages=1000, rules=limits(max_delivery_attempts=3))
    group.lease("a", 900)
    group.expire()
    assert len(group.lease("b", 100)) == 10


def test_spare_attempts_are_kept_for_a_replay():
    """The source keeps one: with n = 5 it isolates as if n were 4."""
    group = Group(messages=1000)
    group.lease("a", 1000, reserved_attempts=1)
    group.expire()
    assert len(group.lease("b", 1000, reserved_attempts=1)) == 1000
    group.expire()
    assert len(group.lease("c", 1000, reserved_attempts=1)) == 31
    group.expire()
    assert len(group.lease("d", 1000, reserved_attempts=1)) == 1
    group.expire()
    assert group.state(0) == "available"
    assert group.lease("e", 1000, reserved_attempts=1) == [0]
    group.expire()
    assert group.state(0) == "dead"


def test_without_a_limit_no_suspect_starves_another():
    """The first one kills its worker each time and for ever; all behind it get through."""
    group = Group(messages=4, rules=limits(max_delivery_attempts=None))
    acked = set()
    for i in range(40):
        taken = group.lease(f"l{i}", 100)
        if 0 in taken:
            group.expire()
        else:
            acked.update(taken)
            group.settle(ACK, f"l{i}")
    assert acked == {1, 2, 3}


def test_messages_on_their_last_attempt_are_leased_apart_from_the_rest():
    group = Group(rules=limits(max_delivery_attempts=2))
    group.lease("a", 4)
    group.settle(NACK, "a", [1, 3], delay=0)
    group.settle(ACK, "a")
    leases = [group.lease(f"l{i}", 100) for i in range(2)]
    assert sorted(leases) == [[1, 3], [4, 5, 6, 7, 8, 9]]


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


def test_max_in_flight_cuts_a_lease_to_what_fits_then_says_why():
    group = Group(rules=limits(max_in_flight=5))
    assert len(group.lease("a", 3)) == 3
    assert len(group.lease("b", 3)) == 2
    assert group.ask("c", 3) == Grant((), "max_in_flight")
    group.settle(ACK, "a", [0])
    assert group.lease("c", 3) == [5]


def test_max_in_flight_is_no_reason_where_nothing_is_due():
    group = Group(messages=2, rules=limits(max_in_flight=2))
    group.lease("a", 2)
    assert group.ask("b") == Grant((), "")


def test_a_full_ledger_stops_unread_and_says_why_but_waiting_work_goes_on():
    group = Group(rules=limits(max_tracked_ranges=2))
    group.lease("a", 1)
    group.lease("b", 1)
    assert group.ask("c") == Grant((), "max_tracked_ranges")
    group.settle(RELEASE, "a")
    assert group.lease("c", 10) == [0]
    group.settle(ACK, "c")
    group.settle(ACK, "b")
    assert group.lease("d") == [2]


def test_dead_routing_and_delayed_ranges_do_not_fill_a_ledger():
    group = Group(rules=limits(max_tracked_ranges=2))
    for lease_id, verb in (("a", REJECT), ("b", NACK), ("c", REJECT)):
        assert group.lease(lease_id)
        group.settle(verb, lease_id, delay=1000 * SECOND)
        if lease_id == "a":
            freeze(group)
    assert group.states().startswith("TADU")
    assert group.lease("d") == [3]
    assert group.lease("e") == [4]
    assert group.ask("f").blocked_because == "max_tracked_ranges"
    group.now += 1000 * SECOND
    assert group.lease("f") == [1], "due now, so it goes on"


# -- Trigger.AvailableNow, sizes


def test_available_now_takes_nothing_past_its_end():
    group = Group()
    assert group.lease("a", 100, max_sequence=3) == [0, 1, 2, 3]
    assert group.ask("b", 100, max_sequence=3) == Grant((), "")


@pytest.mark.parametrize("how", [RELEASE, "expire"])
def test_available_now_cuts_a_waiting_range_at_its_end(how):
    group = Group()
    group.lease("a", 8)
    group.settle(RELEASE, "a") if how == RELEASE else group.expire()
    assert group.lease("b", 10_000, max_sequence=0) == [0]
    assert group.lease("c", 10_000, max_sequence=0) == []
    assert group.state(1) == "available"


def test_available_now_does_not_wait_for_what_became_due_later():
    group = Group(messages=4)
    start = group.now
    group.lease("a", 2)
    group.lease("b", 2)
    group.settle(NACK, "a", [0], delay=0)
    group.settle(NACK, "a", [1], delay=1)
    group.expire()
    assert group.lease("c", 100, due_by=start) == [0]
    assert group.lease("d", 100, due_by=start) == []
    assert group.lease("e", 100)


@pytest.mark.parametrize(
    ("max_bytes", "taken"), [(0, 1), (9, 1), (10, 1), (35, 3), (100, 10), (1000, 10)]
)
def test_max_bytes_cuts_but_always_leaves_one(max_bytes, taken):
    group = Group()  # of 10 bytes a message
    assert len(group.lease("a", 100, max_bytes=max_bytes)) == taken
    assert group.states() == "L" * taken + "U" * (10 - taken)


def test_max_bytes_goes_by_the_sizes_of_the_files():
    group = Group(files=[DataFile(0, 2, "big", 2000, 0), DataFile(2, 100, "small", 100, 0)])
    assert len(group.lease("a", 1000, max_bytes=2010)) == 12
    group = Group(files=[DataFile(0, 100, "small", 100, 0), DataFile(100, 2, "big", 2000, 0)])
    assert len(group.lease("a", 1000, max_bytes=1100)) == 101


def test_what_max_bytes_leaves_out_goes_back_as_it_was():
    group = Group()
    group.lease("a", 6)
    group.settle(NACK, "a", [0, 4], delay=0)
    group.settle(RELEASE, "a")
    before = {seq: group.at(seq)._replace(first=0, last=0, message_count=0) for seq in range(6)}
    assert group.lease("b", 100, max_bytes=20) == [0, 1]
    assert {
        seq: group.at(seq)._replace(first=0, last=0, message_count=0) for seq in range(2, 6)
    } == {seq: before[seq] for seq in range(2, 6)}
    assert group.states() == "LLAAAAUUUU"


# -- bytes in flight


def test_messages_of_so_many_bytes_are_leased_at_the_same_time():
    group = Group(rules=limits(max_in_flight_bytes=50))  # a message has 10
    assert group.lease("a", 3) == [0, 1, 2]
    assert group.lease("b", 100) == [3, 4]
    grant = group.ask("c", 1)
    assert grant == Grant((), "max_in_flight_bytes")
    assert grant.blocked_for_now
    assert not grant.breaker_stops
    group.settle(ACK, "a", [0])
    assert group.lease("d", 100) == [5]
    assert group.ask("e", 100, max_bytes=5).blocked_because == "max_in_flight_bytes"


def test_a_message_that_is_larger_than_the_limit_is_leased_alone():
    sizes = [10, 500, 10]
    files = [DataFile(sequence(n, 0), 1, str(n), size, 0) for n, size in enumerate(sizes)]
    group = Group(files=files, rules=limits(max_in_flight_bytes=50))
    assert group.lease("a", 100) == [sequence(0, 0)]
    assert group.ask("b", 100).blocked_because == "max_in_flight_bytes"
    group.settle(ACK, "a")
    assert group.lease("c", 100) == [sequence(1, 0)]
    assert group.ask("d", 100).blocked_because == "max_in_flight_bytes"


def test_bytes_and_messages_in_flight_and_rates_hold_together():
    rules = limits(max_in_flight_bytes=50, max_in_flight=4, rate_limit=[3, SECOND])
    group = Group(rules=rules)
    assert group.lease("a", 100) == [0, 1, 2]
    group.now += SECOND
    assert group.lease("b", 100) == [3]
    group.now += SECOND
    assert group.ask("c", 100).blocked_because == "max_in_flight"
    group.settle(ACK, "a", [0, 1])
    assert group.lease("d", 100) == [4, 5]


# -- named messages


def named(*sequences: int) -> list[tuple[int, int]]:
    return normalise((one, one) for one in sequences)


def test_a_lease_takes_only_the_messages_that_it_names():
    group = Group()
    assert group.lease("a", 100, intervals=named(3, 5, 6)) == [3, 5, 6]
    assert group.states() == "AAALALLUUU"
    assert group.lease("b", 100) == [0, 1, 2, 4, 7, 8, 9]


def test_named_messages_that_are_not_leased_are_no_ranges_of_their_own():
    group = Group()
    assert group.lease("a", 1, intervals=named(3, 5, 7)) == [3]
    assert [(r.first, r.last, r.state) for r in group.ledger] == [
        (0, 2, "available"), (3, 3, "leased"),
    ]  # fmt: skip


def test_named_messages_that_are_settled_held_delayed_or_missing_are_left_out():
    group = Group()
    group.lease("a", 3)
    group.settle(ACK, "a", [0])
    group.settle(NACK, "a", [1], delay=SECOND)
    before = group.ledger
    assert group.ask("b", 100, intervals=named(0, 1, 2, 50)) == Grant()
    assert group.ledger is before
    assert group.lease("b", 100, intervals=named(0, 1, 2, 9, 50)) == [9]
    group.now += SECOND
    assert group.lease("c", 100, intervals=named(1)) == [1]
    assert group.at(1).delivery_count == 2


def test_no_named_messages_are_no_lease():
    assert Group().ask("a", 100, intervals=[]) == Grant()


def test_a_full_ledger_leases_named_messages_that_it_tracks_and_no_others():
    group = Group(rules=limits(max_tracked_ranges=2))
    group.lease("a", 3)
    group.settle(RELEASE, "a", [1])
    assert group.lease("b", 100, intervals=named(1, 5)) == [1]
    assert group.ask("c", 100, intervals=named(5)).blocked_because == "max_tracked_ranges"
    assert group.ask("c", 100, intervals=named(50)) == Grant()


def test_breaker_pause_cap_and_rate_hold_for_named_messages():
    group = Group(rules=limits(max_in_flight=2))
    assert group.lease("a", 100, intervals=named(4, 6, 8)) == [4, 6]
    assert group.ask("b", 1, intervals=named(8)).blocked_because == "max_in_flight"
    group = Group(rules=limits(rate_limit=[3, SECOND]))
    assert group.lease("a", 2, intervals=named(4, 6)) == [4, 6]
    assert group.ask("b", 2, intervals=named(8, 9)).wait_until is not None
    group = Group(rules=limits(breaker_threshold=1))
    group.lease("a")
    group.settle(NACK, "a")
    assert group.ask("b", 1, intervals=named(8)).breaker_stops


def test_a_blocked_message_stops_named_messages_after_it():
    group = Group(rules=limits(max_delivery_attempts=1, on_max_deliveries="block"))
    group.lease("a", 1, intervals=named(4))
    group.settle(NACK, "a", delay=0)
    assert group.state(4) == "blocked"
    assert group.ask("b", 1, intervals=named(8)).blocked_because.startswith("message 4 ")
    assert group.lease("b", 1, intervals=named(2, 8)) == [2]
