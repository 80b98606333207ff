"""Expire leases, replay batches and route dead messages."""

from __future__ import annotations

import pytest
from support.having import having
from support.ledger_group import TIMEOUT, Group, limits

from spark_mq.ledger.ranges import AVAILABLE, DEAD
from spark_mq.ledger.settle import NACK

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


@pytest.mark.parametrize(("limit", "size"), [("max_delivery_attempts", 2), ("max_failures", 1)])
@pytest.mark.parametrize("leases", ["a", "ab"])
@pytest.mark.parametrize("lowered", [False, True])
def test_expiry_on_the_last_attempt_is_death(limit, size, leases, lowered):
    rules = limits(**{"max_delivery_attempts": None, limit: len(leases)})
    group = Group(rules=limits(max_delivery_attempts=9) if lowered else rules)
    for lease_id in leases:
        group.lease(lease_id, size)
        group.expire()
    group.rules = rules
    group.expire_leases()
    assert group.at(0) == having(state=DEAD, reason=limit, lease_id=None, suspect=False)


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
