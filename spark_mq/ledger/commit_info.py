"""What a commit of a ledger says it did: the notes that make DESCRIBE HISTORY an audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from spark_mq.ledger import acquire as selection
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import SettleCommand, SettleOutcome

__all__ = ["lease_note", "settle_note"]

LONGEST: Final = 200
"""Intervals that a note tells in full."""


def lease_note(wanted: selection.AcquireRequest, ranges: Sequence[Range]) -> dict[str, Any]:
    """What a lease's commit says it did."""
    return {
        "operation": "lease",
        "lease_id": wanted.lease_id,
        "worker_id": wanted.worker_id,
        "messages": sum(r.message_count for r in ranges),
        "ranges": _told([(r.first, r.last) for r in ranges]),
    }


def settle_note(wanted: Sequence[SettleCommand], outcomes: Sequence[SettleOutcome]) -> dict[str, Any]:
    """What the commit of some settles says it did."""
    done = [(w, o) for w, o in zip(wanted, outcomes, strict=True) if o.settled]
    return {
        "operation": "+".join(dict.fromkeys(w.verb for w, _ in done)),
        "lease_id": ",".join(dict.fromkeys(w.lease_id for w, _ in done)),
        "messages": sum(o.settled for _, o in done),
        "ranges": " ".join(f"{w.verb} {_told(o.ranges)}" for w, o in done),
    }


def _told(ranges: Sequence[Interval]) -> str:
    told = ",".join(f"{first}-{last}" for first, last in ranges[:LONGEST])
    return told + (f",... {len(ranges) - LONGEST} more" if len(ranges) > LONGEST else "")
