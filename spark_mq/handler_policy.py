"""What a worker loop and a foreachBatch function do about a lease: when to ack, and what a failure means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_mq.util.validation import check_choice

__all__ = ["HandlerPolicy"]

ON_ERROR: Final = ("nack", "reject", "raise")
ACK: Final = ("after", "first", "manual")


@dataclass(frozen=True, slots=True)
class HandlerPolicy:
    """How a handler's lease is settled. What the handler settled itself stands; the policy covers the rest.

    ``on_error``, for an exception and for the failures that a handler returns: "nack" (again after the group's backoff), "reject" (to the
    dead letters), "raise" (the loop or the query ends; the lease is left to expire, or to its replay).
    ``ack``: "after" the handler has returned (at-least-once); "first", before it is called (at-most-once: a worker that dies loses
    messages, and a failure has nothing left to settle); "manual": of a handler that returns only what it settles itself counts, and the
    rest expires; one that fails is settled by ``on_error`` all the same.
    """

    on_error: str = "nack"
    ack: str = "after"

    @classmethod
    def checked(cls, on_error: object = "nack", ack: object = "after") -> HandlerPolicy:
        """From what a user gave. Raises InvalidOption."""
        return cls(check_choice("on_error", on_error, ON_ERROR), check_choice("ack", ack, ACK))
