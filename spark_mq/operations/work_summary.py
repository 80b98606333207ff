"""Count the results of a worker loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.util.records import Record

__all__ = ["WorkSummary", "why_left"]

_log = logging.getLogger("spark_mq.worker")

_COUNTED_AS: Final = {ACK: "acked", REJECT: "rejected", NACK: "nacked", RELEASE: "released"}


@dataclass(slots=True)
class WorkSummary(Record):
    """The results of a worker loop.

    Messages that a handler settled itself are not counted.

    Attributes
    ----------
    leases
        Leases handed to the handler.
    failed
        Those of them whose handler failed. With ``mode="message"``: messages.
    settled
        Messages that ended: acked or rejected. They are not delivered again.
    acked
        Messages of these that were acked.
    rejected
        Messages of these that were made dead.
    nacked
        Messages given back after a failure. They are redelivered, except after their last attempt.
    released
        Messages given back uncounted, for later.
    blocked_because
        Why the loop ended by ``until="empty"`` although messages are due: a pause, the breaker, a
        cap or a blocking message. Otherwise an empty string.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    acked: int = 0
    rejected: int = 0
    nacked: int = 0
    released: int = 0
    blocked_because: str = ""

    def count(self, verb: str, messages: int) -> None:
        """Add messages that a verb settled or gave back. The caller holds the lock."""
        name = _COUNTED_AS[verb]
        setattr(self, name, getattr(self, name) + messages)
        self.settled = self.acked + self.rejected


def why_left(ledgers: Sequence[GroupLedger]) -> str:
    """Return why groups keep due messages after the end, and log it. Empty if none does."""
    found = []
    for ledger in ledgers:
        try:
            stats = ledger.stats()
        except OUTAGES as error:
            _log.warning("group %s: its counts cannot be read at the end: %s", ledger.name, error)
            continue
        if (why := stats.blocked_because) and (stats.ready or stats.blocked):
            text = "group %s leases nothing, so the work ends: %s. Ready: %d messages, blocked: %d"
            _log.warning(text, ledger.name, why, stats.ready, stats.blocked)
            found.append(why if len(ledgers) == 1 else f"group {ledger.name}: {why}")
    return "; ".join(found)
