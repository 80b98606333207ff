"""Replay a stream's batch by moving the messages of a dead runner to a new lease."""

from __future__ import annotations

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, LEASED, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import (
    exhaust,
    exhausted_limit,
    record_failure,
    to_available,
    with_failure,
)

__all__ = ["replay_batch", "return_to_group", "rows_held_by_batch"]


def rows_held_by_batch(ledger: Ledger, prefix: str) -> list[int]:
    """Return the rows that a stream's batch holds.

    Each runner has another lease id, ``stream/n/runner``, so a batch's ids share ``stream/n/``.
    """
    return ledger.find((LEASED, AVAILABLE), ("lease_id", "starts with", prefix))


def replay_batch(
    ledger: Ledger,
    now: int,
    rules: GroupSettings,
    prefix: str,
    *,
    lease_id: str,
    worker_id: str,
    expires_at: int,
    granted_before: bool,
    index: MessageIndex | None = None,
) -> tuple[Ledger, list[Range]]:
    """Replay a batch as a new lease, counted as a delivery.

    Some messages return to the group instead: all of a batch that was replayed before
    (`granted_before`), and messages without attempts. A message on its last attempt returns too if
    it has company, unless it failed by itself. A group that delivers keys in order needs the index.
    """
    editor = LedgerEditor(ledger)
    held = editor.remove(rows_held_by_batch(ledger, prefix))
    several = sum(r.message_count for r in held) > 1
    kept: list[Range] = []
    failed: Range | None = None
    for r in held:
        in_company = several and _is_last(r, rules, 1) and not _failed_by_itself(r)
        if granted_before or _is_last(r, rules, 0) or in_company:
            editor.add(return_to_group(r, now, rules), r, "given_back", of_lease=True)
            failed = failed or (r if r.state == LEASED else None)
        else:
            kept.append(r)
    if failed is not None and not kept:
        record_failure(editor, failed, _death_error(failed), now, rules)
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
    for before, r in zip(kept, granted, strict=True):
        editor.add(r, before, "replayed")
    after = editor.build()
    if index is not None and is_ordered(index, rules):
        after, lost = return_behind(after, index, now, lease_id)
        granted = after.held(lease_id) if lost else granted
    return after, granted


def _is_last(r: Range, rules: GroupSettings, more: int) -> bool:
    """Return whether the range reaches a limit if `more` deliveries fail."""
    attempts, failures = rules.max_delivery_attempts, rules.failure_limit(own=False)
    if attempts is not None and r.delivery_count + more >= attempts:
        return True
    return failures is not None and r.failure_count + more >= failures


def _failed_by_itself(r: Range) -> bool:
    """Return whether its last failure was its own. A lease keeps ``suspect`` from before it."""
    return r.failure_count > 0 and not r.suspect


def return_to_group(r: Range, now: int, rules: GroupSettings) -> Range:
    """Return a dead batch's range to its group, or apply its limit.

    It is due immediately, and suspect unless its message was alone in the batch.
    """
    r = with_failure(r, now) if r.state == LEASED else r
    error = r.error or _death_error(r)
    if reason := exhausted_limit(r, rules, now, own=r.lease_size == 1):
        return exhaust(r, rules, reason, error)
    if r.lease_size == 1:
        return to_available(r, now, error)._replace(suspect=False)
    return to_available(r, now, error)._replace(suspect=True, lease_size=r.lease_size)


def _death_error(r: Range) -> str:
    return f"batch {r.lease_id} died"
