"""Extend a lease."""

from __future__ import annotations

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.ranges import LEASED, WAITING, Ledger, Range
from spark_mq.ledger.settle import SettleOutcome

__all__ = ["extend"]


def extend(ledger: Ledger, lease_id: str, expires_at: int) -> tuple[Ledger, SettleOutcome]:
    """Move the deadline of a lease, never to an earlier time.

    Expired messages that no other lease took are leased again.

    Parameters
    ----------
    ledger
        The group's ledger.
    lease_id
        The lease.
    expires_at
        The new deadline in microseconds.

    Returns
    -------
    tuple of Ledger and SettleOutcome
        The next ledger. ``settled`` counts the messages that the lease holds.
    """
    editor, outcome = LedgerEditor(ledger), SettleOutcome()
    for before in editor.remove(ledger.rows_held(lease_id)):
        r = before
        if r.state == WAITING:
            r = _revived(r, expires_at)
            editor.record_event("extended", r)
        editor.add(r._replace(expires_at=max(expires_at, r.expires_at or 0)), before)
        outcome.settled += r.message_count
        outcome.ranges.append((r.first, r.last))
    return editor.build(), outcome


def _revived(r: Range, expires_at: int) -> Range:
    """Return an expired range as leased, without the failure of the expiry."""
    failures = r.failure_count - 1
    return r._replace(
        state=LEASED,
        failure_count=failures,
        first_failed_at=r.first_failed_at if failures else None,
        available_at=None,
        expires_at=expires_at,
    )
