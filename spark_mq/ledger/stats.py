"""Count a group's messages by state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from spark_mq.ledger.acquire import AcquireRequest, acquire
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, LEASED, TRANSFERRING, Ledger
from spark_mq.ledger.schedule import split_by_time, split_due, unread_range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.records import Record

__all__ = ["GroupStats", "age_at", "compute_stats"]


@dataclass(frozen=True, slots=True)
class GroupStats(Record):
    """Messages of a group by state.

    Messages of a lease past its deadline count as ready.
    """

    ready: int
    """Due now, unread ones included."""
    unread: int
    """Due now and never leased."""
    delayed: int
    """Due later, by deliver_at or after a nack or release."""
    leased: int
    """Held by a lease."""
    dead: int
    """Waiting for the sweep to route them."""
    blocked: int
    """Past a limit in a group that blocks."""
    transferring: int
    """Being copied to another queue."""
    acked: int
    """Acked since the group began."""
    dead_lettered: int
    """Routed to the dead-letter queue since the group began."""
    dropped: int
    """Dropped since the group began, at a limit, by a reject or by the owner."""
    skipped: int
    """Skipped by seeks since the group began."""
    expired: int
    """Past their expires_at since the group began."""
    lost: int
    """Trimmed before the group settled them, since the group began."""
    floor: int
    """All messages up to this sequence are settled."""
    tail: int
    """The last published sequence, or -1."""
    tail_version: int
    """The version of ``messages/`` that the numbers belong to."""
    oldest_unsettled_age: timedelta | None
    """Time since the publish of the first unsettled message. None without one."""
    oldest_lease_age: timedelta | None
    """Time since the start of the oldest live lease. None without one."""
    ledger_ranges: int
    """Ranges in the ledger."""
    blocked_because: str
    """The cap, message, pause or breaker that stops the group, or an empty string."""
    breaker: str
    """"closed", "open" or "paused"."""


def compute_stats(
    ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int
) -> GroupStats:
    """Return the stats of a ledger. The caller has expired leases already."""
    ledger = split_due(ledger, index, now, now)
    due = ledger.count((AVAILABLE,), ("available_at", "<=", now))
    unread, later, expired = _unread_counts(ledger, index, now)
    _, grant = acquire(ledger, index, now, rules, AcquireRequest("stats", "stats", 1, now))
    counters = ledger.head.counters
    return GroupStats(
        ready=unread + due,
        unread=unread,
        delayed=ledger.count((AVAILABLE,)) - due + later,
        leased=ledger.count((LEASED,)),
        dead=ledger.count((DEAD,)),
        blocked=ledger.count((BLOCKED,)),
        transferring=ledger.count((TRANSFERRING,)),
        acked=counters.get("acked", 0),
        dead_lettered=counters.get("dead_lettered", 0),
        dropped=counters.get("dropped", 0),
        skipped=counters.get("skipped", 0),
        expired=counters.get("expired", 0) + expired,
        lost=counters.get("lost", 0),
        floor=ledger.head.ack_floor,
        tail=index.last_sequence,
        tail_version=index.version,
        oldest_unsettled_age=age_at(_oldest_unsettled(ledger, index), now),
        oldest_lease_age=age_at(ledger.minimum("leased_at", (LEASED,)), now),
        ledger_ranges=len(ledger),
        blocked_because=grant.blocked_because,
        breaker=ledger.head.breaker.state(rules),
    )


def _unread_counts(ledger: Ledger, index: MessageIndex, now: int) -> tuple[int, int, int]:
    """Count the unread messages that are due, due later, and expired."""
    unread = unread_range(ledger, index)
    if unread is None:
        return 0, 0, 0
    if not index.has_times_after(ledger.tracked_up_to):
        return unread.message_count, 0, 0
    pieces = split_by_time(unread, index, now, now)
    later = sum(r.message_count for r in pieces.later)
    expired = sum(r.message_count for r in pieces.expired)
    return unread.message_count - later - expired, later, expired


def _oldest_unsettled(ledger: Ledger, index: MessageIndex) -> int | None:
    """Return when the first unsettled message was published, or None."""
    floor = ledger.head.ack_floor
    # The lowest range of a ledger is never settled.
    first = ledger.first_sequences[0] if len(ledger) else index.first_at_or_after(floor + 1)
    return None if first is None else index.file_at(first).committed_at


def age_at(instant: int | None, now: int) -> timedelta | None:
    return None if instant is None else timedelta(microseconds=max(0, now - instant))
