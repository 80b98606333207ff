"""The delivery rules of a consumer group: every transition of a range, as pure functions from a ledger to the next.

    state     how it got there                        leaves by
    unread    published                               lease
    leased    lease (counted)                         ack -> settled; nack, expiry -> waiting or past a limit; reject -> dead;
                                                      release -> waiting, as before the lease
    waiting   nack, expiry, release                   lease, when available_at <= now
    dead      past a limit, or rejected               routing -> settled
    blocked   past a limit, where the group blocks    unblock -> waiting, dead or settled
    routing   being copied to the DLQ                 settled
    settled   acked, routed, dropped, skipped         forgotten below the floor

Time, the commit index and chance are arguments. The rules come out of an exhaustive search over small models; what a lease
takes is chosen in ``selection.py``, how it is settled stands in ``settling.py``, what its owner does to a group in ``moving.py``. Each
operation first folds: other leases past their deadline become waiting or dead. An operation never folds the lease that it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, ROUTING, SETTLED, WAITING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings

__all__ = [
    "AGE_USED",
    "ATTEMPTS_USED",
    "FAILURES_USED",
    "final",
    "fold",
    "freeze_dead",
    "give_back",
    "held_by_batch",
    "past_limit",
    "routed",
    "take_over",
    "to_dead",
    "to_waiting",
]

ATTEMPTS_USED: Final = "max_delivery_attempts"
FAILURES_USED: Final = "max_failures"
AGE_USED: Final = "max_retry_age"


def fold(ledger: Ledger, now: int, rules: GroupSettings, keep: Iterable[str] = ()) -> Ledger:
    """Turns leases past deadline + margin, but for those in `keep`, into waiting (due at once, suspect) or what is past a limit.

    So with what waits beyond a limit that has been lowered: that applies before the next delivery; and with what is blocked, where the
    group has ceased to block.
    """
    late = pc.and_(ledger.is_state(LEASED), pc.less(ledger.column("expires_at").cast(pa.int64()), now - rules.clock_skew))
    mask = pc.or_(pc.fill_null(late, False), _spent(ledger, rules))
    if rules.on_exhausted != "block":
        mask = pc.or_(mask, ledger.is_state(BLOCKED))
    kept = list(keep)
    if kept:
        mask = pc.and_(mask, pc.invert(pc.is_in(ledger.column("lease_id"), value_set=pa.array(kept, pa.string()))))
    draft = LedgerEditor(ledger)
    for r in draft.take(ledger.where(mask)):
        if r.state == LEASED:
            draft.put(_expired(r, rules), "lease_expired", of=r)
        else:
            draft.put(past_limit(r, rules, r.reason or _limit_of(r, rules), r.error), "exhausted", of=r)
    return draft.finish()


def _spent(ledger: Ledger, rules: GroupSettings) -> pa.ChunkedArray:
    """A mask of what waits past a limit. Failures of whole leases are no reason to die unheard: such a suspect gets its turn, alone."""
    most = 2**31 - 1
    spent = pc.greater_equal(ledger.column("delivery_count"), rules.max_delivery_attempts or most)
    allowed = rules.failures_allowed(own=True)
    if allowed is not None:
        failed = pc.and_(pc.greater_equal(ledger.column("failure_count"), allowed), pc.invert(ledger.column("suspect")))
        spent = pc.or_(spent, failed)
    return pc.and_(ledger.is_state(WAITING), spent)


def _limit_of(r: Range, rules: GroupSettings) -> str:
    return ATTEMPTS_USED if rules.max_delivery_attempts and r.delivery_count >= rules.max_delivery_attempts else FAILURES_USED


def _expired(r: Range, rules: GroupSettings) -> Range:
    error, at = f"lease {r.lease_id} of {r.worker_id} expired", r.expires_at or 0
    r = failed(r, at)
    if reason := final(r, rules, at, own=r.lease_size == 1):
        return past_limit(r, rules, reason, error)
    # What belongs to the lease stays with its id, for an extension would revive it.
    back = to_waiting(r, at, error)
    return back._replace(lease_id=r.lease_id, worker_id=r.worker_id, leased_at=r.leased_at, lease_size=r.lease_size, suspect=True)


def failed(r: Range, at: int) -> Range:
    """With one failure more."""
    return r._replace(failure_count=r.failure_count + 1, first_failed_at=r.first_failed_at or at)


def final(r: Range, rules: GroupSettings, now: int, *, own: bool) -> str | None:
    """Why the failure that has just been counted is the last one, or None. ``own``: named in a nack, or alone in its lease."""
    if rules.max_delivery_attempts is not None and r.delivery_count >= rules.max_delivery_attempts:
        return ATTEMPTS_USED
    allowed = rules.failures_allowed(own)
    if allowed is not None and r.failure_count >= allowed:
        return FAILURES_USED
    # The age makes nobody die for the company it was in: the culprit is found first.
    if own and rules.max_retry_age is not None and now - (r.first_failed_at or now) >= rules.max_retry_age:
        return AGE_USED
    return None


def to_waiting(r: Range, available_at: int, error: str | None) -> Range:
    return r._replace(
        state=WAITING,
        lease_id=None,
        worker_id=None,
        leased_at=None,
        expires_at=None,
        lease_size=None,
        available_at=available_at,
        error=error,
    )


def to_dead(r: Range, reason: str, error: str | None) -> Range:
    """Dead; ``leased_at`` stays, as the time of the last delivery."""
    return to_waiting(r, 0, error)._replace(state=DEAD, leased_at=r.leased_at, available_at=None, suspect=False, reason=reason)


def past_limit(r: Range, rules: GroupSettings, reason: str, error: str | None, *, blocks: bool = True) -> Range:
    """What becomes of a range past a limit, as the group wants it. A rejected one goes the same way, but never blocks."""
    dead = to_dead(r, reason, error)
    if rules.on_exhausted == "drop":
        return dead._replace(state=SETTLED)
    return dead._replace(state=BLOCKED) if blocks and rules.on_exhausted == "block" else dead


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

    A batch that was replayed before is not granted again. Nor is a message that has no attempt left, nor one whose last attempt that
    would be, in company, unless it has failed by itself: they go back as suspects, without a lease id.
    """
    draft = LedgerEditor(ledger)
    held = draft.take(held_by_batch(ledger, prefix))
    crowded = sum(r.message_count for r in held) > 1
    kept: list[Range] = []
    for r in held:
        if granted_before or _is_last(r, rules, 0) or (crowded and _is_last(r, rules, 1) and not _own_failure(r)):
            draft.put(give_back(r, now, rules), "given_back", of=r)
        else:
            kept.append(r)
    size = sum(r.message_count for r in kept)
    granted = [
        r._replace(
            state=LEASED,
            lease_id=lease_id,
            worker_id=worker_id,
            leased_at=now,
            expires_at=expires_at,
            lease_size=size,
            available_at=None,
            delivery_count=r.delivery_count + 1,
        )
        for r in kept
    ]
    for r in granted:
        draft.put(r, "replayed")
    return draft.finish(), granted


def _is_last(r: Range, rules: GroupSettings, left: int) -> bool:
    """Whether a limit is reached with so many deliveries more, if they fail."""
    attempts, failures = rules.max_delivery_attempts, rules.failures_allowed(own=False)
    return (attempts is not None and r.delivery_count + left >= attempts) or (failures is not None and r.failure_count + left >= failures)


def _own_failure(r: Range) -> bool:
    """Whether its last failure was its own. Of what is leased, ``suspect`` tells how it was before, so a batch under way blames nobody."""
    return r.failure_count > 0 and not r.suspect


def give_back(r: Range, now: int, rules: GroupSettings) -> Range:
    """A range of a batch that died: due at once, suspect, no claim left; dead if it has no attempt left."""
    r = failed(r, now) if r.state == LEASED else r
    error = r.error or f"batch {r.lease_id} died"
    if reason := final(r, rules, now, own=r.lease_size == 1):
        return past_limit(r, rules, reason, error)
    return to_waiting(r, now, error)._replace(suspect=True)


def freeze_dead(ledger: Ledger, routing_id: str, limit: int) -> tuple[Ledger, list[Range]]:
    """First step of routing: up to `limit` dead ranges are set aside under a routing id."""
    draft = LedgerEditor(ledger)
    frozen = [r._replace(state=ROUTING, lease_id=routing_id) for r in draft.take(ledger.where(ledger.is_state(DEAD))[:limit])]
    for r in frozen:
        draft.put(r)
    return draft.finish(), frozen


def routed(ledger: Ledger, routing_id: str, event: str = "routed") -> tuple[Ledger, int]:
    """Last step of routing: what was set aside under the id is settled. Returns how many messages."""
    draft = LedgerEditor(ledger)
    rows = ledger.where(pc.and_(ledger.is_state(ROUTING), pc.equal(ledger.column("lease_id"), routing_id)))
    total = 0
    for r in draft.take(rows):
        draft.put(r.settled(), event, of=r)
        total += r.message_count
    return draft.finish(), total
