"""Choose how many suspects a lease takes, and estimate how many leases their isolation needs.

If a lease of several messages fails as a whole, nobody knows its culprit, so all of them are
suspects. They come back in pieces that get smaller with each failure, and on its last attempt a
suspect is alone. So only a message that really kills its worker dies. Alone means that its process
has no other lease, because all of them end with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_mq.ledger.ranges import AVAILABLE, LEASED, Condition, Ledger, Range, of_process
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.states import UNSETTLED
from spark_mq.ledger.stream_batch import names_batch

__all__ = [
    "ASSUMED_ATTEMPTS",
    "NOTHING_ISOLATED",
    "RESERVED_ATTEMPTS",
    "WHOLE_RETRY_ATTEMPTS",
    "Isolation",
    "estimate_isolation",
    "failed_together",
    "holds_last_attempt",
    "holds_leases",
    "is_last_attempt",
    "is_retried_whole",
    "isolation_size",
    "settled_since",
]

ASSUMED_ATTEMPTS: Final = 5  # that isolation assumes for a group without a limit
WHOLE_RETRY_ATTEMPTS: Final = 4
"""With this many attempts, the first failure of a whole lease is retried whole."""
RESERVED_ATTEMPTS: Final = 1  # that the lease of a batch keeps back for a replay


def is_retried_whole(deliveries: int, attempts: int | None) -> bool:
    """Return whether suspects come back whole, because a deployment may be why they failed."""
    return deliveries == 1 and (attempts or ASSUMED_ATTEMPTS) >= WHOLE_RETRY_ATTEMPTS


def isolation_size(
    limit: int,
    deliveries: int,
    attempts: int,
    failed: int | None = None,
    *,
    settled: int = 0,
    waiting: int = 0,
) -> int:
    """Return how many suspects one lease takes, out of `waiting` ones that failed together.

    After `d` of `n` deliveries that is ``max(1, floor(limit ** ((n-1-d)/(n-2))))``. So with four
    attempts or more, the first failure is retried whole. With fewer, the divisor is ``n-1``. A
    piece is also smaller than the lease that `failed`, in the same measure, if `limit` is much
    larger.

    A piece grows by the messages of that lease that are `settled` since, up to twice this size
    and half of those that wait. On the last attempt it does not grow.
    """
    # Not more, because all messages of a piece that fails may have to be alone in their next lease.
    if attempts <= 1:
        return 1
    steps = attempts - 2 if attempts >= WHOLE_RETRY_ATTEMPTS else attempts - 1
    left = min(steps, max(0, attempts - 1 - deliveries))
    exact: float = limit ** (left / steps)
    if failed is not None and left < steps:
        exact = min(exact, failed ** (left / (left + 1)))
    size = max(1, min(limit, int(exact + 1e-9)))
    return max(size, min(limit, size + min(size, settled), waiting // 2)) if left else size


def is_last_attempt(r: Range, attempts: int | None) -> bool:
    """Return whether the next delivery of an available message is its last one.

    A message with one attempt alone is not meant: it would let a worker use one thread only.
    """
    return attempts is not None and 1 < attempts <= r.delivery_count + 1


def holds_leases(ledger: Ledger, worker_id: str) -> bool:
    return LEASED in ledger.states and ledger.count((LEASED,), of_process(worker_id)) > 0


def holds_last_attempt(ledger: Ledger, worker_id: str, attempts: int | None) -> bool:
    """Return whether a worker's process has a suspect on its last attempt, which must be alone."""
    if attempts is None or attempts == 1:
        return False
    last = ("lease_size", "=", 1), ("delivery_count", ">=", attempts)
    rows = ledger.find((LEASED,), of_process(worker_id), *last)
    return any(r.suspect or not r.failure_count for r in ledger.ranges_at(rows))


def failed_together(r: Range) -> list[Condition]:
    """Return what is true for messages that failed in the same lease as a suspect, and as often."""
    names = ("available_at", "delivery_count", "failure_count", "lease_id", "error")
    values = [(name, getattr(r, name)) for name in names]
    return [(name, "is null" if value is None else "=", value) for name, value in values]


def settled_since(ledger: Ledger, r: Range) -> int:
    """Return how many messages of the lease in which a suspect failed are settled."""
    if r.lease_size is None or r.first_failed_at is None:
        return 0
    # Those that failed again, or that another lease holds, have more deliveries.
    of_lease = ("first_failed_at", "=", r.first_failed_at)
    left = ledger.count(UNSETTLED, of_lease, ("delivery_count", ">=", r.delivery_count))
    return max(0, r.lease_size - left)


class Isolation(NamedTuple):
    """The suspects that wait in pieces, and about how many leases they need if none fails."""

    suspects: int = 0
    leases: int = 0


NOTHING_ISOLATED: Final = Isolation()


def estimate_isolation(ledger: Ledger, rules: GroupSettings) -> Isolation:
    """Return the isolation of a group. Leases are assumed to be as large as those that failed."""
    if AVAILABLE not in ledger.states:
        return NOTHING_ISOLATED
    suspects = ledger.ranges_at(ledger.find((AVAILABLE,), ("suspect", "=", True)))
    if not suspects:
        return NOTHING_ISOLATED
    of_stream = any(names_batch(r.lease_id) or names_batch(r.error) for r in suspects)
    attempts = rules.attempts_before_isolation(RESERVED_ATTEMPTS if of_stream else 0)
    limit = max(r.lease_size or r.message_count for r in suspects)
    heads = {tuple(failed_together(r)): r for r in suspects}.values()
    total = NOTHING_ISOLATED
    for head in heads:
        if not is_retried_whole(head.delivery_count, attempts):
            pieces = _isolation_of(ledger, head, limit, attempts or ASSUMED_ATTEMPTS)
            total = Isolation(total.suspects + pieces.suspects, total.leases + pieces.leases)
    return total


def _isolation_of(ledger: Ledger, head: Range, limit: int, attempts: int) -> Isolation:
    """Return the isolation of the messages that failed together with a suspect."""
    waiting = ledger.count((AVAILABLE,), *failed_together(head))
    settled = settled_since(ledger, head)
    given = (limit, head.delivery_count, attempts, head.lease_size)
    first = isolation_size(*given, settled=settled, waiting=waiting)
    later = isolation_size(*given, settled=settled + first, waiting=waiting)
    return Isolation(waiting, 1 + -(-max(0, waiting - first) // later))
