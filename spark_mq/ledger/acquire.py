"""Lease messages, unless the breaker, a pause, a cap or a blocked message stops the group."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spark_mq.ledger.grant import AcquireRequest, Grant, blocked_by
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.lane_selector import LaneSelector
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.order import isolation_size
from spark_mq.ledger.ranges import BLOCKED, LEASED, Ledger
from spark_mq.ledger.schedule import split_due
from spark_mq.ledger.settings import GroupSettings

__all__ = [
    "MAX_IN_FLIGHT",
    "AcquireRequest",
    "Grant",
    "acquire",
    "isolation_size",
]


MAX_IN_FLIGHT: Final = "max_in_flight"


def acquire(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, request: AcquireRequest
) -> tuple[Ledger, Grant]:
    """Return the next ledger and the lease's messages, or `ledger` itself without a grant.

    The caller has expired leases already.
    """
    breaker = ledger.head.breaker
    if why := breaker.blocked_because(rules, now, _is_leased(ledger, breaker.trial)):
        return ledger, Grant((), why, blocked_for_now=True)
    trials = breaker.is_open(rules)
    if trials:
        request = replace(request, max_messages=1)
    blocked = ""
    if rules.order != "key" or not is_ordered(index, rules):
        # In an ordered group a blocked message stops only its lane.
        request, blocked = _limit_to_unblocked(ledger, request)
    split = split_due(ledger, index, now, request.cutoff(now))
    selector = LaneSelector(split, index, now, rules, request)
    if selector.limit < 1:
        if not selector.has_due():
            return ledger, Grant()
        return ledger, Grant((), MAX_IN_FLIGHT, blocked_for_now=True)
    if (found := selector.acquire()) is None:
        return ledger, selector.nothing(blocked)
    after, grant = found
    if trials:
        on_trial = breaker.with_trial(grant.ranges[0].first, now, rules)
        after = after.replaced(replace(after.head, breaker=on_trial), after.events)
    return after, grant


def _is_leased(ledger: Ledger, message: int | None) -> bool:
    if message is None:
        return False
    return any(ledger.state_at(row) == LEASED for row in ledger.overlapping(message, message))


def _limit_to_unblocked(ledger: Ledger, request: AcquireRequest) -> tuple[AcquireRequest, str]:
    """Return the request up to the first blocked message, and why it ends there."""
    blocked = ledger.find((BLOCKED,)) if BLOCKED in ledger.states else []
    if not blocked:
        return request, ""
    first = ledger.range_at(blocked[0])
    before = first.first - 1
    max_sequence = before if request.max_sequence is None else min(before, request.max_sequence)
    return replace(request, max_sequence=max_sequence), blocked_by(first)
