"""Excludes a batch's unsettled messages from the automatic ack on commit.

The foreachBatch function and the source run in different processes and share only the ledger. So
the function commits an application transaction with the batch number before it returns. Spark
commits the batch after that, and the source looks for the transaction before it acks. It stands
for all batches up to its number: what was left before had been acked when the batch was leased.
A transaction too many, of a zombie or a replay, costs a second delivery and no message.
"""

from __future__ import annotations

from spark_mq.errors import GroupNotFound
from spark_mq.ledger.transitions import rows_held_by_batch
from spark_mq.operations.group_ledger import GroupLedger, GroupView
from spark_mq.storage.ledger_store import LedgerSnapshot, LedgerStore
from spark_mq.storage.update import Update
from spark_mq.streaming.offset import auto_ack_app_id

__all__ = ["auto_ack_excluded_up_to", "exclude_from_auto_ack"]


def exclude_from_auto_ack(group: GroupLedger, stream: str, n: int) -> int:
    """Exclude what batch n of a stream still holds from the ack on commit.

    One commit, and none if nothing is held or the batch is excluded already. It changes the
    group's ledger, so an ack that has not seen it conflicts. Returns the number of messages.
    """
    app = auto_ack_app_id(stream)

    def compute(view: GroupView) -> Update[tuple[int, bool]]:
        ledger = view.ledger
        held = ledger.ranges_at(rows_held_by_batch(ledger, f"{stream}/{n}/"))
        messages = sum(r.message_count for r in held)
        lease_ids = ",".join(sorted({r.lease_id or "" for r in held}))
        wanted = bool(held) and auto_ack_excluded_up_to(group.ledgers, view.snapshot, stream) < n
        info = {"operation": "leave", "lease_id": lease_ids, "messages": messages}
        return ledger if wanted else None, (messages, wanted), info

    try:
        messages, _ = group.update(compute, txn=lambda got: (app, n) if got[1] else None)
    except GroupNotFound:  # somebody dropped the group, so nothing is held
        return 0
    return messages


def auto_ack_excluded_up_to(ledgers: LedgerStore, snapshot: LedgerSnapshot, stream: str) -> int:
    """Return the last excluded batch of a stream, or 0. Raises CommitConflict."""
    return ledgers.mark(snapshot, auto_ack_app_id(stream)) or 0
