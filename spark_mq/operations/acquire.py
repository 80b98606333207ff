"""Taking a lease, and waiting for one: the loop behind :meth:`spark_mq.ConsumerGroup.lease` and the worker loop."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_mq.lease import Lease
from spark_mq.ledger import acquire as selection
from spark_mq.ledger.schedule import next_due
from spark_mq.util.notifier import Notifier, subscribed
from spark_mq.util.validation import SECOND

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["LeaseOptions", "take"]

FIRST_PAUSE = 0.01
"""Seconds until the second look; each further one comes half as much later again."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """What a worker asks for. ``timeout``: microseconds, None for the group's."""

    worker_id: str
    max_messages: int
    timeout: int | None = None
    fail_on_data_loss: bool = True


def take(
    group: ConsumerGroup, wanted: LeaseOptions, left: Callable[[], float], poll: float, also: Notifier | None = None
) -> tuple[Lease | None, str]:
    """A lease, as soon as there is something to lease; None once `left()`, in seconds, is not above zero, and why if a cap is to blame.

    ``poll``: seconds until the next look at what other processes may have done. ``also``: a bell that wakes the waiter besides.
    Someone else may be faster: then it waits on.
    """
    group.ensure()
    queue, pause = group.queue, FIRST_PAUSE
    clock = getattr(queue.clock, "bell", None)  # of a clock that is moved by hand
    with subscribed(*filter(None, (queue.log.bell, queue.leases.bell, clock, also))) as rung:
        while True:
            rung.clear()  # before the look, so that nothing is missed in between
            lease, why = _try(group, wanted)
            if lease is not None:
                return lease, ""
            if (remaining := left()) <= 0:
                return None, why
            rung.wait(max(0.0, min(remaining, pause, poll, _until_due(group))))
            pause *= 1.5


def _try(group: ConsumerGroup, wanted: LeaseOptions) -> tuple[Lease | None, str]:
    while True:
        lease_id = uuid.uuid4().hex

        def request(now: int, default: int, lease_id: str = lease_id) -> selection.AcquireRequest:
            return selection.AcquireRequest(lease_id, wanted.worker_id, wanted.max_messages, now + (wanted.timeout or default))

        grant, expires_at = group.grant(request, wanted.fail_on_data_loss)
        if not grant.ranges:
            return None, grant.blocked_because
        if ranges := group.verified(grant.ranges, lease_id):
            return Lease(group, lease_id, wanted.worker_id, expires_at, ranges), ""
        # all of it was unreadable, and is dead now


def _until_due(group: ConsumerGroup) -> float:
    """Seconds until time alone may make something due."""
    stored, now = group.queue.leases.read(group.name), group.queue.now()
    if stored.ledger is None:
        return float("inf")
    at = next_due(stored.ledger, group.queue.log.index(stored.ledger.frontier), group.rules(stored), now)
    return float("inf") if at is None else (at - now) / SECOND
