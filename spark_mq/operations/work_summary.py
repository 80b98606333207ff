"""What a worker loop did."""

from __future__ import annotations

from dataclasses import dataclass

from spark_mq.ledger.settle import NACK, REJECT
from spark_mq.util.records import Record

__all__ = ["WorkSummary"]


@dataclass(slots=True)
class WorkSummary(Record):
    """What a worker loop did. Messages that a handler settled itself are not counted.

    Attributes
    ----------
    leases
        Leases handed to the handler.
    failed
        Those of them whose handler failed.
    settled
        Messages settled.
    nacked
        Messages of these given back. They are redelivered, except after their last attempt.
    rejected
        Messages of these made dead. The rest was acked.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    nacked: int = 0
    rejected: int = 0

    def count(self, verb: str, messages: int) -> None:
        """Add messages that a verb settled. The caller holds the lock."""
        self.settled += messages
        self.nacked += messages if verb == NACK else 0
        self.rejected += messages if verb == REJECT else 0
