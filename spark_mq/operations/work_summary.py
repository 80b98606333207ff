"""What a worker loop did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE
from spark_mq.util.records import Record

__all__ = ["WorkSummary"]

_COUNTED_AS: Final = {ACK: "acked", REJECT: "rejected", NACK: "nacked", RELEASE: "released"}


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
        Messages that ended: acked or rejected. They are not delivered again.
    acked
        Messages of these that were acked.
    rejected
        Messages of these that were made dead.
    nacked
        Messages given back after a failure. They are redelivered, except after their last attempt.
    released
        Messages given back uncounted, for later.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    acked: int = 0
    rejected: int = 0
    nacked: int = 0
    released: int = 0

    def count(self, verb: str, messages: int) -> None:
        """Add messages that a verb settled or gave back. The caller holds the lock."""
        name = _COUNTED_AS[verb]
        setattr(self, name, getattr(self, name) + messages)
        self.settled = self.acked + self.rejected
