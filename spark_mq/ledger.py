"""The delivery rules of a consumer group: every transition of a range, as pure functions from a ledger to the next.

    state     how it got there                        leaves by
    unread    published                               lease
    leased    lease (counted)                         ack -> settled; nack, expiry -> waiting or dead; reject -> dead;
                                                      release -> waiting, as before the lease
    waiting   nack, expiry, release                   lease, when available_at <= now
    dead      its last attempt failed, or rejected    routing -> settled
    routing   being copied to the DLQ                 settled
    settled   acked, routed, dropped, skipped         forgotten below the floor

Time, the commit index and chance are arguments. The rules come out of an exhaustive search over small models; what a lease
takes is chosen in ``selection.py``, how it is settled stands in ``settling.py``. Each operation first folds: other leases past
their deadline become waiting or dead. An operation never folds the lease that it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.draft import Draft
from spark_mq.index import CommitIndex
from spark_mq.ranges import DEAD, LEASED, ROUTING, SETTLED, WAITING, Ledger, Range
from spark_mq.settings import GroupSettings

__all__ = [
    "ATTEMPTS_USED",
    "fold",
    "freeze_dead",
    "give_back",
    "held_by_batch",
    "routed",
    "seek",
    "take_over",
    "to_dead",
    "to_waiting",
    "used_up",
]

ATTEMPTS_USED: Final = "max_delivery_attempts"


def fold(ledger: Ledger, now: int, rules: GroupSettings, keep: Iterable[str] = ()) -> Ledger:
    """Turns leases past deadline + margin, but for those in `keep`, into waiting (due at once, suspect) or dead."""
    late = pc.and_(ledger.is_state(LEASED), pc.less(ledger.column("expires_at").cast(pa.int64()), now - rules.clock_skew))
    # A lowered limit applies before the next delivery.
    spent = pc.and_(
        ledger.is_state(WAITING),
        pc.greater_equal(ledger.column("delivery_count"), rules.max_delivery_attempts or 2**31 - 1),
    )
    mask = pc.or_(pc.fill_null(late, False), spent)
    kept = list(keep)
    if kept:
        mask = pc.and_(mask, pc.invert(pc.is_in(ledger.column("lease_id"), value_set=pa.array(kept, pa.string()))))
    draft = Draft(ledger)
    for r in draft.take(ledger.where(mask)):
        draft.put(_expired(r, rules) if r.state == LEASED else to_dead(r, ATTEMPTS_USED, r.error))
    return draft.finish()


def _expired(r: Range, rules: GroupSettings) -> Range:
    error = f"lease {r.lease_id} of {r.worker_id} expired"
    r = replace(r, failure_count=r.failure_count + 1)
    if used_up(r, rules):
        return to_dead(r, ATTEMPTS_USED, error)
    # What belongs to the lease stays with its id, for an extension would revive it.
    back = to_waiting(r, r.expires_at or 0, error)
    return replace(back, lease_id=r.lease_id, worker_id=r.worker_id, leased_at=r.leased_at, suspect=True)


def used_up(r: Range, rules: GroupSettings) -> bool:
    return rules.max_delivery_attempts is not None and r.delivery_count >= rules.max_delivery_attempts


def to_waiting(r: Range, available_at: int, error: str | None) -> Range:
    return replace(
        r,
        state=WAITING,
        lease_id=None,
        worker_id=None,
        leased_at=None,
        expires_at=None,
        available_at=available_at,
        error=error,
    )


def to_dead(r: Range, reason: str, error: str | None) -> Range:
    return replace(to_waiting(r, 0, error), state=DEAD, available_at=None, suspect=False, reason=reason)


def held_by_batch(ledger: Ledger, prefix: str) -> list[int]:
    """The rows of what the batch of a stream still holds, under whichever runner's lease id (``stream/n/runner``)."""
    return ledger.where(pc.and_(ledger.is_state(LEASED, WAITING), pc.starts_with(ledger.column("lease_id"), prefix)))


def take_over(
    ledger: Ledger,
    now: int,
    rules: GroupSettings,
    prefix: str,
    *,
    lease_id: str,
    worker_id: str,
    expires_at: int,
    granted_before: bool,
) -> tuple[Ledger, list[Range]]:
    """The replay of a batch: what it still holds passes to `lease_id`, counted as a delivery. Returns what was granted.

    A batch that was replayed before is not granted again, nor one that would put a message on its last attempt in company: its
    messages go back as suspects, without a lease id.
    """
    rows = held_by_batch(ledger, prefix)
    draft = Draft(ledger)
    held = draft.take(rows)
    limit = rules.max_delivery_attempts
    alone = sum(r.message_count for r in held) == 1
    last = limit is not None and any(r.delivery_count + 1 >= limit for r in held)
    spent = limit is not None and any(r.delivery_count >= limit for r in held)
    if granted_before or spent or (last and not alone):
        for r in held:
            draft.put(give_back(r, now, rules))
        return draft.finish(), []
    granted = [
        replace(
            r,
            state=LEASED,
            lease_id=lease_id,
            worker_id=worker_id,
            leased_at=now,
            expires_at=expires_at,
            available_at=None,
            delivery_count=r.delivery_count + 1,
        )
        for r in held
    ]
    for r in granted:
        draft.put(r)
    return draft.finish(), granted


def give_back(r: Range, now: int, rules: GroupSettings) -> Range:
    """A range of a batch that died: due at once, suspect, no claim left; dead if it has no attempt left."""
    r = replace(r, failure_count=r.failure_count + (r.state == LEASED))
    error = r.error or f"batch {r.lease_id} died"
    if used_up(r, rules):
        return to_dead(r, ATTEMPTS_USED, error)
    return replace(to_waiting(r, now, error), suspect=True)


def freeze_dead(ledger: Ledger, routing_id: str, limit: int) -> tuple[Ledger, list[Range]]:
    """First step of routing: up to `limit` dead ranges are set aside under a routing id."""
    draft = Draft(ledger)
    frozen = [replace(r, state=ROUTING, lease_id=routing_id) for r in draft.take(ledger.where(ledger.is_state(DEAD))[:limit])]
    for r in frozen:
        draft.put(r)
    return draft.finish(), frozen


def routed(ledger: Ledger, routing_id: str) -> tuple[Ledger, int]:
    """Last step of routing: what was set aside under the id is settled. Returns how many messages."""
    draft = Draft(ledger)
    rows = ledger.where(pc.and_(ledger.is_state(ROUTING), pc.equal(ledger.column("lease_id"), routing_id)))
    total = 0
    for r in draft.take(rows):
        draft.put(r.settled())
        total += r.message_count
    draft.head = draft.head.counted("dead_lettered", total)
    return draft.finish(), total


def seek(ledger: Ledger, index: CommitIndex, target: int) -> Ledger:
    """All before `target` is settled (skipped), all from it on is unread; leases are fenced, ``routing`` is left alone."""
    routing = ledger.select(ledger.where(ledger.is_state(ROUTING)))
    ranges: list[Range] = []
    reach = min([target, *(r.first for r in routing)])
    head = replace(ledger.head, floor=reach - 1, forgotten=index.count(0, reach - 1))
    for r in routing:
        ranges += _sought(reach, r.first - 1, target, index)
        ranges.append(r)
        reach = r.last + 1
    # Past the last routing range only what is skipped needs a range: the rest is unread by being past the frontier.
    ranges += _sought(reach, target - 1, target, index)
    skipped = index.count(ledger.head.floor + 1, target - 1) - sum(
        index.count(r.first, min(r.last, target - 1)) for r in ledger.select(ledger.where(ledger.is_state(SETTLED, ROUTING)))
    )
    return Ledger.of(head.counted("skipped", max(0, skipped)), ranges)


def _sought(first: int, last: int, target: int, index: CommitIndex) -> list[Range]:
    pieces = [(first, min(last, target - 1), SETTLED), (max(first, target), last, WAITING)]
    return [
        Range(index.cut(low, 1), index.cut(low, count), state, count, available_at=0 if state == WAITING else None)
        for low, high, state in pieces
        if (count := index.count(low, high))
    ]
