"""How a group stands: counts of its messages by state."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from spark_mq import selection
from spark_mq.index import CommitIndex
from spark_mq.ranges import DEAD, LEASED, ROUTING, UNREAD, WAITING, Ledger, Range
from spark_mq.settings import GroupSettings
from spark_mq.timing import ripen, sort_out

__all__ = ["GroupStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Messages of a group by state. Leases past their deadline count as ready.

    ``unread`` are part of ``ready``. ``acked``, ``dead_lettered``, ``skipped``, ``expired``: totals since the group began.
    ``floor``: all up to this sequence is settled. ``tail``: the last sequence published.
    ``blocked_because``: the cap that lets nothing be leased, or "".
    """

    ready: int
    unread: int
    delayed: int
    in_flight: int
    dead: int
    routing: int
    acked: int
    dead_lettered: int
    skipped: int
    expired: int
    floor: int
    tail: int
    ledger_ranges: int
    blocked_because: str


def stats_of(ledger: Ledger, index: CommitIndex, rules: GroupSettings, now: int) -> GroupStats:
    """The stats of a ledger that has been folded at `now` (microseconds)."""
    ledger = ripen(ledger, index, now, now)
    waiting = ledger.is_state(WAITING)
    due = ledger.count(pc.and_(waiting, pc.less_equal(ledger.column("available_at").cast("int64"), now)))
    unread = index.count(ledger.frontier + 1, index.tail)
    later = expired = 0
    if index.timed_after(ledger.frontier):
        pieces = sort_out(Range(ledger.frontier + 1, index.tail, UNREAD, unread), index, now, now)
        later, expired = (sum(r.message_count for r in some) for some in (pieces.later, pieces.expired))
        unread -= later + expired
    _, grant = selection.lease(ledger, index, now, rules, selection.Request("stats", "stats", 1, now))
    counters = ledger.head.counters
    return GroupStats(
        ready=unread + due,
        unread=unread,
        delayed=ledger.count(waiting) - due + later,
        in_flight=ledger.count(ledger.is_state(LEASED)),
        dead=ledger.count(ledger.is_state(DEAD)),
        routing=ledger.count(ledger.is_state(ROUTING)),
        acked=counters.get("acked", 0),
        dead_lettered=counters.get("dead_lettered", 0),
        skipped=counters.get("skipped", 0),
        expired=counters.get("expired", 0) + expired,
        floor=ledger.head.floor,
        tail=index.tail,
        ledger_ranges=len(ledger),
        blocked_because=grant.blocked_because,
    )
