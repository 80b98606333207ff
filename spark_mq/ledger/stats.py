"""How a group stands: counts of its messages by state."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from spark_mq.ledger import acquire as selection
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, ROUTING, UNREAD, WAITING, Ledger, Range
from spark_mq.ledger.schedule import ripen, sort_out
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.validation import SECOND

__all__ = ["GroupStats", "stats_of"]


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Messages of a group by state. Leases past their deadline count as ready.

    ``unread`` are part of ``ready``. ``acked``, ``dead_lettered``, ``dropped``, ``skipped``, ``expired``, ``lost``: totals since the
    group began. ``floor``: all up to this sequence is settled. ``tail``: the last sequence published, at table version ``tail_version``.
    ``oldest_unsettled_age``: seconds since the publish of the first message that is not settled; ``oldest_lease_age``: since the oldest
    live lease was taken; None without one. ``blocked_because``: what lets nothing be leased (a cap, or a message that blocks), or "".
    """

    ready: int
    unread: int
    delayed: int
    in_flight: int
    dead: int
    blocked: int
    routing: int
    acked: int
    dead_lettered: int
    dropped: int
    skipped: int
    expired: int
    lost: int
    floor: int
    tail: int
    tail_version: int
    oldest_unsettled_age: float | None
    oldest_lease_age: float | None
    ledger_ranges: int
    blocked_because: str


def stats_of(ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int) -> GroupStats:
    """The stats of a ledger that has been folded at `now` (microseconds)."""
    ledger = ripen(ledger, index, now, now)
    waiting, leased = ledger.is_state(WAITING), ledger.is_state(LEASED)
    due = ledger.count(pc.and_(waiting, pc.less_equal(ledger.column("available_at").cast("int64"), now)))
    unread = index.count(ledger.frontier + 1, index.tail)
    later = expired = 0
    if index.timed_after(ledger.frontier):
        pieces = sort_out(Range(ledger.frontier + 1, index.tail, UNREAD, unread), index, now, now)
        later, expired = (sum(r.message_count for r in some) for some in (pieces.later, pieces.expired))
        unread -= later + expired
    _, grant = selection.lease(ledger, index, now, rules, selection.AcquireRequest("stats", "stats", 1, now))
    counters = ledger.head.counters
    return GroupStats(
        ready=unread + due,
        unread=unread,
        delayed=ledger.count(waiting) - due + later,
        in_flight=ledger.count(leased),
        dead=ledger.count(ledger.is_state(DEAD)),
        blocked=ledger.count(ledger.is_state(BLOCKED)),
        routing=ledger.count(ledger.is_state(ROUTING)),
        acked=counters.get("acked", 0),
        dead_lettered=counters.get("dead_lettered", 0),
        dropped=counters.get("dropped", 0),
        skipped=counters.get("skipped", 0),
        expired=counters.get("expired", 0) + expired,
        lost=counters.get("lost", 0),
        floor=ledger.head.floor,
        tail=index.tail,
        tail_version=index.version,
        oldest_unsettled_age=_age(_oldest_unsettled(ledger, index), now),
        oldest_lease_age=_age(pc.min(ledger.ranges.filter(leased)["leased_at"].cast("int64")).as_py(), now),
        ledger_ranges=len(ledger),
        blocked_because=grant.blocked_because,
    )


def _oldest_unsettled(ledger: Ledger, index: MessageIndex) -> int | None:
    """When the first message was published that is not settled. (The lowest range of a ledger never is.)"""
    first = ledger.firsts[0] if len(ledger) else index.at_or_after(ledger.head.floor + 1)
    return None if first is None else index.file_at(first).committed_at


def _age(instant: int | None, now: int) -> float | None:
    return None if instant is None else max(0.0, (now - instant) / SECOND)
