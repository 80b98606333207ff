"""Expire leases, apply limits, count failed leases in the breaker, and settle what is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from spark_mq.errors import DataLossError
from spark_mq.ledger.commands import Change, Command, Needs, View
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    SETTLED,
    UNREAD,
    Condition,
    Ledger,
    Range,
    of_process,
)
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.clock import MICROSECOND
from spark_mq.util.show import show_count

ATTEMPT_LIMIT: Final = "max_delivery_attempts"
FAILURE_LIMIT: Final = "max_failures"
AGE_LIMIT: Final = "max_retry_age"
EXPIRED: Final = "expired"
"""The reason of messages that are dead because they were not leased before their ``expires_at``."""
REQUESTED: Final = "requested"
"""The reason of messages that the owner made dead, or due before their time."""


def expire_leases(
    ledger: Ledger, now: int, rules: GroupSettings, keep: Iterable[str] = ()
) -> Ledger:
    """Expire leases not in `keep`, and apply limits. Return `ledger` itself if nothing changed."""
    late: Condition = ("expires_at", "<", now - rules.clock_skew // MICROSECOND)
    if rows := ledger.find((LEASED,), late):
        ledger = without_lone_blame(ledger, rows)
        rows = ledger.find((LEASED,), late)
    rows += _exhausted_rows(ledger, rules)
    if rules.on_max_deliveries != "block":
        rows += ledger.find((BLOCKED,))
    if not rows:
        return ledger
    kept = set(keep)
    rows.sort()
    editor = LedgerEditor(ledger)
    leased: list[Range] = []
    for row, r in zip(rows, ledger.ranges_at(rows), strict=True):
        if r.lease_id in kept:
            continue
        editor.mark_removed(row)
        if r.state == LEASED:
            leased.append(r)
            editor.add(expired(r, rules), r, "lease_expired", of_lease=True)
        else:
            limit = r.reason if r.state == BLOCKED else exhausted_limit(r, rules, now, own=True)
            editor.add(exhaust(r, rules, limit or FAILURE_LIMIT, r.error), r, "exhausted")
    record_expired_leases(editor, leased, rules)
    return editor.build()


def without_lone_blame(ledger: Ledger, late: list[int]) -> Ledger:
    """Return the ledger in which no message counts as alone whose process held other leases."""
    # They may all have ended with it, so nobody knows which message was the culprit.
    editor = LedgerEditor(ledger)
    for process in {of_process(worker) for worker in ledger.values_at("worker_id", late) if worker}:
        rows = ledger.find((LEASED,), process)
        held = ledger.ranges_at(rows)
        if len({r.lease_id for r in held}) == 1:
            continue
        size = sum(r.message_count for r in held)
        for row, r in zip(rows, held, strict=True):
            if r.lease_size == 1:
                editor.mark_removed(row)
                editor.add(r._replace(lease_size=size), r)
    return editor.build()


def record_expired_leases(
    editor: LedgerEditor, leased: Iterable[Range], rules: GroupSettings
) -> None:
    """Count each expired lease in the breaker, by order of deadlines."""
    # The first delivery of a message does not count, unless it is the trial. Its usual end is a
    # worker that was stopped, such as for a deployment.
    firsts: dict[str | None, Range] = {}
    for r in leased:
        firsts.setdefault(r.lease_id, r)
    for r in sorted(firsts.values(), key=lambda r: (r.expires_at or 0, r.first)):
        if r.delivery_count > 1 or r.first == editor.head.breaker.trial:
            at = r.expires_at or 0
            record_failure(editor, expired(r, rules), _expiry_error(r), at, rules)


def record_failure(
    editor: LedgerEditor, r: Range, error: str | None, now: int, rules: GroupSettings
) -> None:
    """Count a lease that failed as a whole in the breaker. `r` is its first range, as it is now."""
    before = editor.head.breaker
    after = before.with_failure(r.first, error, now, rules)
    if after != before:
        editor.head = replace(editor.head, breaker=after)
        if after.opened_at is not None and before.opened_at is None:
            # Only the event of the failure may settle the messages.
            state = AVAILABLE if r.state == SETTLED else r.state
            editor.record_event("breaker_opened", r._replace(state=state, error=error))


def _exhausted_rows(ledger: Ledger, rules: GroupSettings) -> set[int]:
    # Failures of whole leases do not exhaust a suspect, which is first delivered alone.
    rows: set[int] = set()
    if rules.max_delivery_attempts is not None:
        attempts = ("delivery_count", ">=", rules.max_delivery_attempts)
        rows.update(ledger.find((AVAILABLE,), attempts))
    limit = rules.failure_limit(own=True)
    if limit is not None:
        failed = ("failure_count", ">=", limit)
        rows.update(ledger.find((AVAILABLE,), failed, ("suspect", "=", False)))
    return rows


def is_late(r: Range, now: int, rules: GroupSettings) -> bool:
    """Return whether a leased range is past its deadline and the margin for clocks."""
    return r.expires_at is not None and r.expires_at < now - rules.clock_skew // MICROSECOND


def _expiry_error(r: Range) -> str:
    # util/error_shape.py knows this text, so that expiries of all workers are one failure.
    return f"lease {r.lease_id} of {r.worker} expired"


def expired(r: Range, rules: GroupSettings) -> Range:
    """Return a leased range after its expiry, available or past a limit."""
    at, own = r.expires_at or 0, r.lease_size == 1
    after = after_failure(with_failure(r, at), rules, at, _expiry_error(r), own=own, due_at=at)
    if after.state != AVAILABLE:
        return after
    # The lease's own fields stay, because an extension would revive the lease.
    return after._replace(lease_id=r.lease_id, worker_id=r.worker_id, lease_size=r.lease_size)


def with_failure(r: Range, at: int) -> Range:
    first = r.first_failed_at or at
    return r._replace(failure_count=r.failure_count + 1, first_failed_at=first)


def after_failure(
    r: Range, rules: GroupSettings, now: int, error: str | None, *, own: bool, due_at: int
) -> Range:
    """Return a range as available, and suspect unless its last failure was its own, or as ended."""
    if reason := exhausted_limit(r, rules, now, own=own):
        return exhaust(r, rules, reason, error)
    lease_size = None if own else r.lease_size
    return to_available(r, due_at, error)._replace(suspect=not own, lease_size=lease_size)


def exhausted_limit(r: Range, rules: GroupSettings, now: int, *, own: bool) -> str | None:
    """Return the limit that the last failure, counted in `r`, reached, or None."""
    attempts = rules.max_delivery_attempts
    if attempts is not None and r.delivery_count >= attempts:
        return ATTEMPT_LIMIT
    limit = rules.failure_limit(own)
    if limit is not None and r.failure_count >= limit:
        return FAILURE_LIMIT
    # The age limit waits until the culprit of a whole lease is known.
    age = now - (r.first_failed_at or now)
    longest = rules.max_retry_age
    if own and longest is not None and age >= longest // MICROSECOND:
        return AGE_LIMIT
    return None


def to_available(r: Range, available_at: int, error: str | None) -> Range:
    """Return the range as available, without its lease."""
    # If it has failed, ``leased_at`` stays as the time of the last delivery.
    return r._replace(
        state=AVAILABLE,
        lease_id=None,
        worker_id=None,
        leased_at=r.leased_at if r.failure_count else None,
        expires_at=None,
        lease_size=None,
        available_at=available_at,
        error=error,
    )


def returned(r: Range, now: int) -> Range:
    """Return a leased range as available, with its delivery uncounted."""
    count = r.delivery_count - 1
    first = r.first_leased_at if count else None
    back = to_available(r, now, r.error)
    return back._replace(delivery_count=count, first_leased_at=first)


def released(r: Range, now: int, delay: int | None) -> Range:
    if r.state == AVAILABLE:  # an expiry has counted the delivery already
        lease_size = r.lease_size if r.suspect else None
        at = (r.available_at or 0) if delay is None else now + delay
        return to_available(r, at, r.error)._replace(lease_size=lease_size)
    return returned(r, now + (delay or 0))


def revived(r: Range, expires_at: int) -> Range:
    """Return an expired range as leased, without the failure of the expiry."""
    failures = r.failure_count - 1
    return r._replace(
        state=LEASED,
        failure_count=failures,
        first_failed_at=r.first_failed_at if failures else None,
        available_at=None,
        expires_at=expires_at,
    )


def counted_from_zero(r: Range, available_at: int) -> Range:
    """Return the range as available and never delivered, but with its first lease and error."""
    return Range(
        r.first, r.last, AVAILABLE, r.message_count,
        available_at=available_at, first_leased_at=r.first_leased_at, error=r.error,
        sink_writes=r.sink_writes,
    )  # fmt: skip


def to_dead(r: Range, reason: str, error: str | None) -> Range:
    """Return the range as dead. ``leased_at`` stays as the time of the last delivery."""
    return to_available(r, 0, error)._replace(
        state=DEAD, leased_at=r.leased_at, available_at=None, suspect=False, reason=reason
    )


def exhaust(r: Range, rules: GroupSettings, reason: str, error: str | None) -> Range:
    """Return a range past a limit as dead, settled or blocked, by ``on_max_deliveries``."""
    state = {"drop": SETTLED, "block": BLOCKED}.get(rules.on_max_deliveries, DEAD)
    return to_dead(r, reason, error)._replace(state=state)


def expire(r: Range, rules: GroupSettings) -> Range:
    """Return messages past their ``expires_at`` as dead or settled, by ``on_expired``."""
    return to_dead(r, EXPIRED, r.error) if rules.on_expired == "dead_letter" else r.as_settled()


def rejected(r: Range, rules: GroupSettings, reason: str, error: str | None) -> Range:
    """Return a rejected range as dead or settled, by ``on_reject``."""
    state = SETTLED if rules.on_reject == "drop" else DEAD
    return to_dead(r, reason, error)._replace(state=state)


def without_lost(view: View, ledger: Ledger, fail: bool) -> tuple[Ledger, str]:
    """Settle dropped unread messages as lost, with a text for the log. Raise DataLossError."""
    if view.horizon <= ledger.head.start_sequence:
        return ledger, ""
    after, lost = settle_lost(ledger, view.log, view.horizon)
    if not lost:
        return ledger, ""
    if fail:
        raise DataLossError(
            f"group {view.group!r} lost {show_count(lost, 'message')} up to {view.horizon} to the "
            "queue's hard limit, or its group_expiry, before it had settled them. Accept the loss "
            "with fail_on_data_loss=False (failOnDataLoss in a stream), or seek('earliest')",
            group=view.group, lost=lost, horizon=view.horizon,
        )  # fmt: skip
    return after, (
        f"lost {show_count(lost, 'message')} up to {view.horizon}, dropped by the queue's hard "
        "limit, or its group_expiry"
    )


def settle_lost(
    ledger: Ledger,
    index: MessageIndex,
    horizon: int,
    event: str = "lost",
    states: Collection[str] = (AVAILABLE, DEAD, BLOCKED, UNREAD),
) -> tuple[Ledger, int]:
    """Settle messages up to a trim horizon as lost, if in some states, and count them.

    Leased ones are left out by default, because a holder may have read its messages.
    """
    editor = LedgerEditor(ledger)
    lost = editor.replace(editor.cut([(0, horizon)], index, states), Range.as_settled, event)
    return editor.build(), lost


@dataclass(frozen=True, slots=True)
class SettleLost(Command[None]):
    """Settle messages that a trim dropped unread, or raise DataLossError with `fail`."""

    fail: bool

    name = "data_loss"
    needs = Needs(horizon="if lost")

    def apply(self, view: View) -> Change[None]:
        after, lost = without_lost(view, view.ledger, self.fail)
        return Change(after, None, {"operation": self.name}, alarm=lost)
