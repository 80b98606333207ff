"""Expire leases, replay batches and route dead messages."""

from __future__ import annotations

import pytest
from support.having import having
from support.ledger_group import SECOND, TIMEOUT, Group, dead_ones, freeze, freeze_dead, limits

from spark_mq.ledger.interventions import SettleRouted
from spark_mq.ledger.ranges import AVAILABLE, DEAD, TRANSFERRING
from spark_mq.ledger.settle import ACK, NACK

# -- expiry


def test_expiry_makes_suspect_and_due_since_the_deadline():
    group = Group()
    deadline = group.now + TIMEOUT
    group.lease("a", 3)
    group.expire()
    back = group.at(1)
    assert back == having(state=AVAILABLE, suspect=True, available_at=deadline, lease_id="a")
    assert (back.delivery_count, back.failure_count) == (1, 1)
    assert "a" in back.error


def test_a_lease_is_not_expired_before_the_margin_for_clocks_has_passed():
    group = Group(rules=limits(clock_skew=SECOND))
    group.lease("a")
    group.now += TIMEOUT + SECOND
    group.expire_leases()
    assert group.state(0) == "leased"
    group.now += 1
    group.expire_leases()
    assert group.state(0) == "available"


def test_every_operation_folds_others_but_never_the_lease_it_names():
    group = Group()
    group.lease("a", 2)
    group.lease("b", 2)
    group.now += TIMEOUT + 1
    group.expire_leases("a")
    assert group.states().startswith("LLAA")


def test_the_rest_of_a_partly_settled_lease_expires_suspect():
    group = Group()
    group.lease("a", 3)
    group.settle(ACK, "a", [0])
    group.settle(NACK, "a", [1])
    group.expire()
    assert group.at(2).suspect
    assert not group.at(1).suspect


def test_expiry_on_the_last_attempt_is_death():
    group = Group(messages=1, rules=limits(max_delivery_attempts=2))
    for lease_id in "ab":
        group.lease(lease_id)
        group.expire()
    dead = group.at(0)
    assert dead == having(state=DEAD, reason="max_delivery_attempts", lease_id=None, suspect=False)


def test_without_a_limit_nothing_dies():
    group = Group(messages=1, rules=limits(max_delivery_attempts=None))
    for attempt in range(40):
        assert group.lease(f"l{attempt}") == [0]
        group.expire()
    assert group.at(0).delivery_count == 40


def test_a_lowered_limit_applies_before_the_next_delivery():
    group = Group(messages=1)
    for lease_id in "ab":
        group.lease(lease_id)
        group.expire()
    group.rules = limits(max_delivery_attempts=2)
    assert group.lease("c") == []
    assert group.state(0) == "dead"


# -- replays of a stream's batch


@pytest.mark.parametrize(("failures", "alone"), [(3, False), (2, True)])
def test_a_replay_keeps_messages_near_their_failure_limit_out_of_company(failures, alone):
    group = Group(100, limits(max_delivery_attempts=None, max_failures=10))
    group.lease("a", 100)
    group.settle(NACK, "a", delay=0)
    leased = len(group.lease("s/1/x", 100))
    assert leased > 1
    group.rules = limits(max_delivery_attempts=None, max_failures=failures)
    assert group.replay_batch("s/1/y") == (0 if alone else leased)


# -- dead letters


def test_freezing_sets_the_first_dead_ranges_aside_under_an_id():
    group = dead_ones()
    assert freeze_dead(group, "r1", 2) == 2
    frozen = [r for r in group.ledger if r.state == TRANSFERRING]
    assert [(r.first, r.state, r.lease_id, r.reason, r.error) for r in frozen] == [
        (1, TRANSFERRING, "r1", "rejected", "1"),
        (3, TRANSFERRING, "r1", "rejected", "3"),
    ]
    assert group.states() == "LTLTLDLLUU"


def test_routed_settles_its_id_only_and_once():
    group = dead_ones()
    freeze_dead(group, "r1", 2)
    freeze_dead(group, "r2", 2)
    total = group.run(SettleRouted("r1", "routed"))
    assert (total, group.states()) == (2, "LSLSLTLLUU")
    assert group.ledger.head.counters == {"dead_lettered": 2}
    before = group.ledger
    assert group.run(SettleRouted("r1", "routed")) == 0
    assert group.ledger is before


def test_a_routing_id_gives_no_right_to_settle():
    group = dead_ones()
    freeze(group)
    assert group.settle(ACK, "routing").settled == 0
    assert group.settle(ACK, "routing", [1]).lost == [(1, 1, "dead: rejected")]
    assert group.extend("routing").settled == 0
