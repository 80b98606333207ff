"""What a batch of a stream leaves unsettled on purpose, so that Spark's commit of the batch does not ack it.

The function that leaves it and the source that acks on commit run in different processes and share only the ledger. So the function puts
down a mark, ``Transaction(stream, n)`` under a name of its own, before it returns; Spark commits the batch after that, and the source looks
for the mark before it acks. The mark only ever keeps from acking: one too many (of a zombie, of a replay) costs a second delivery, and no
message. It stands for all batches up to n, for what was left before had been acked by the time that n was leased.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_mq.group import ConsumerGroup
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.transitions import held_by_batch
from spark_mq.operations.settle import SETTLE_PAUSE
from spark_mq.storage.ledger_store import LedgerSnapshot, LedgerStore, change
from spark_mq.streaming.offset import left_mark_of

__all__ = ["leave", "left_upto"]


def leave(group: ConsumerGroup, stream: str, n: int) -> int:
    """Puts down that what batch n of a stream still holds is not to be acked by its commit. Returns how many messages that is.

    One commit, and none where nothing is held or the mark is there. It changes the group's ledger, so an ack that has not seen it is
    refused.
    """
    app = left_mark_of(stream)

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, tuple[int, bool], Mapping[str, Any]]:
        ledger = stored.ledger
        held = [] if ledger is None else ledger.select(held_by_batch(ledger, f"{stream}/{n}/"))
        messages = sum(r.message_count for r in held)
        wanted = bool(held) and left_upto(group.queue.leases, stored, stream) < n
        note = {"operation": "leave", "lease_id": ",".join(sorted({r.lease_id or "" for r in held})), "messages": messages}
        return ledger if wanted else None, (messages, wanted), note

    messages, _ = change(group.queue.leases, group.name, step, mark=lambda got: (app, n) if got[1] else None, pause=SETTLE_PAUSE)
    return messages


def left_upto(leases: LedgerStore, stored: LedgerSnapshot, stream: str) -> int:
    """The last batch of a stream that has left something unsettled on purpose, or 0. Raises CommitConflict."""
    return leases.mark(stored, left_mark_of(stream)) or 0
