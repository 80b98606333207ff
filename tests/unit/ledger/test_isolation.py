"""Suspects come back in pieces: how large they are, and how many leases their isolation needs."""

from __future__ import annotations

import pytest
from support.ledger_group import TIMEOUT, Group, limits

from spark_mq.ledger.isolation import Isolation, estimate_isolation, isolation_size
from spark_mq.ledger.settle import ACK, NACK, RELEASE

WORKER, STREAM = 0, 1  # attempts that a lease keeps back
NAME = "12345678-1234-1234-1234-123456789abc"  # of a stream


def failed_twice(messages: int, **settings) -> Group:
    """A group whose messages were leased together twice, and expired twice."""
    group = Group(messages=messages, rules=limits(**settings))
    for lease_id in ("a", "b"):
        group.lease(lease_id, messages)
        group.expire()
    return group


def isolate(group: Group, poison: set[int], reserved: int = WORKER) -> tuple[int, int]:
    """Lease until nothing is left, and return how many leases there were, and how many died."""
    leases = deaths = 0
    while taken := group.lease(f"lease {leases}", group.messages, reserved_attempts=reserved):
        leases += 1
        if poison.isdisjoint(taken):
            group.settle(ACK, f"lease {leases - 1}")
        else:
            deaths += 1
            group.expire()
    return leases, deaths


@pytest.mark.parametrize(
    ("reserved", "poison", "leases", "deaths"),
    [
        (WORKER, set(), 20, 0),
        (WORKER, {25_000}, 132, 3),
        (WORKER, {8_000, 25_000, 42_000}, 328, 9),
        (STREAM, set(), 114, 0),
        (STREAM, {25_000}, 561, 3),
    ],
)
def test_fifty_thousand_that_died_twice(reserved, poison, leases, deaths):
    """Pieces of one size needed 37 and 225 leases without a poison, and 111 and 449 with one."""
    group = failed_twice(50_000)
    assert isolate(group, poison, reserved) == (leases, deaths)
    assert {seq for seq in poison if group.state(seq) != "dead"} == set()
    assert group.ledger.count(("dead",)) == len(poison), "no innocent message died"


def test_a_piece_is_twice_as_large_after_a_success_and_small_again_after_a_death():
    group = failed_twice(10_000)
    assert len(group.lease("one", 10_000)) == 464
    group.settle(ACK, "one")
    assert len(group.lease("two", 10_000)) == 928
    group.expire()
    assert len(group.lease("three", 10_000)) == 21
    group.settle(ACK, "three")
    assert len(group.lease("four", 10_000)) == 42
    group.expire()
    assert group.lease("five", 10_000) == [464 + 21]


def test_a_piece_holds_no_more_than_half_of_those_that_wait_nor_than_its_limit():
    group = failed_twice(1_000)  # in pieces of 100
    taken = []
    while piece := group.lease(f"lease {len(taken)}", 1_000):
        group.settle(ACK, f"lease {len(taken)}")
        taken.append(len(piece))
    assert taken == [100, 200, 200, 200, 150, 100, 50]
    group = failed_twice(1_000)
    assert [len(group.lease("one", 50))] == [isolation_size(50, 2, 5)]
    group.settle(ACK, "one")
    assert len(group.lease("two", 20)) == 2 * isolation_size(20, 2, 5)
    assert isolation_size(3, 2, 5, settled=900, waiting=90) == 3


@pytest.mark.parametrize("attempts", [1, 2, 3, 4, 5, 8])
def test_a_message_on_its_last_attempt_is_alone_however_many_are_settled(attempts):
    assert isolation_size(1_000, attempts - 1, attempts, 10, settled=900, waiting=90) == 1


@pytest.mark.parametrize("attempts", [2, 4])
def test_a_worker_that_holds_others_gets_a_suspect_but_not_for_its_last_attempt(attempts):
    group = Group(messages=5, rules=limits(max_delivery_attempts=attempts))
    group.lease("held", 2, worker="w", timeout=1_000 * TIMEOUT)
    for n in range(attempts - 1):
        assert 2 in group.lease(f"{n}", 2, worker="w")
        group.expire()
    assert group.lease("last", worker="w") == []
    assert [group.lease(worker, worker=worker) for worker in ("idle", "other")] == [[2], [3]]
    assert group.ask("next", worker="idle").blocked_because.startswith("last_attempt")
    assert group.lease("named", worker="idle", intervals=[(4, 4)]) == [4]


def test_a_message_that_failed_by_itself_is_not_alone_in_its_worker():
    group = Group(rules=limits(max_delivery_attempts=2))
    group.lease("one")
    group.settle(NACK, "one", [0], delay=0)
    assert [group.lease(f"{n}", worker="w") for n in range(2)] == [[0], [1]]


def test_the_estimate_counts_pieces_only():
    group = Group(messages=1_000)
    assert estimate_isolation(group.ledger, group.rules) == Isolation()
    group.lease("a", 1_000)
    group.expire()
    assert estimate_isolation(group.ledger, group.rules) == Isolation(), "it is retried whole"
    group.lease("b", 1_000)
    assert estimate_isolation(group.ledger, group.rules) == Isolation(), "a lease has them"
    group.expire()
    assert estimate_isolation(group.ledger, group.rules).suspects == 1_000
    group.lease("c", 1_000)
    group.expire()  # a piece of 100 comes in pieces of 10 and 20, the rest in 100 and 200
    assert estimate_isolation(group.ledger, group.rules) == Isolation(1_000, 6 + 5)


def test_what_a_stream_replayed_and_released_is_alone_on_its_last_attempt():
    group = Group(rules=limits(max_delivery_attempts=3))
    group.lease(f"{NAME}/1/a", 2, reserved_attempts=STREAM)
    group.replay_batch(f"{NAME}/1/b")
    group.settle(RELEASE, f"{NAME}/1/b")
    group.rules = limits(max_delivery_attempts=2)
    assert group.lease("after", 10) == [0]


def test_the_estimate_for_a_stream_knows_the_attempt_that_it_keeps():
    group = Group(messages=50_000)
    group.lease(f"{NAME}/1/a", 50_000, reserved_attempts=STREAM)
    group.replay_batch(f"{NAME}/1/b")
    assert group.replay_batch(f"{NAME}/1/c", again=True) == 0
    assert estimate_isolation(group.ledger, group.rules) == Isolation(50_000, 113)
