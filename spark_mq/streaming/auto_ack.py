"""Ack the batches of a stream that Spark has committed, unless they left messages on purpose.

The foreachBatch function and the source run in different processes and share only the ledger. So
the function commits an application transaction with the batch number before it returns, and Spark
commits the batch after that. The source looks for the transaction before it acks. It counts for all
batches up to its number, because older leases were acked when the batch was leased. A superfluous
transaction, of a zombie or a replay, costs a second delivery and no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_mq.errors import GroupNotFound
from spark_mq.ledger.commit_info import settle_info
from spark_mq.ledger.ranges import AVAILABLE, LEASED, Ledger
from spark_mq.ledger.replay import rows_held_by_batch
from spark_mq.ledger.settle import ACK, SettleCommand
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.group_ledger import GroupLedger, GroupView
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.update import Update
from spark_mq.streaming.offset import auto_ack_app_id, parse_lease_id

__all__ = ["ack_committed_leases", "auto_ack_excluded_up_to", "exclude_from_auto_ack"]


def ack_committed_leases(
    group: GroupLedger,
    view: GroupView,
    stream: str,
    up_to: int,
    *,
    runner: str | None,
    keep: Sequence[str] = (),
) -> tuple[Ledger, dict[str, Any]]:
    """Expire leases except `keep`, and ack those of a stream's batches up to `up_to`, if any.

    Only leases of `runner` are acked, because another runner's is a successor's. At the runner's
    start it is None, which also acks those of dead runners. Return the ledger, and the commit's
    note about the acks, which is empty without any.
    """
    done = _committed_leases(group, view, stream, up_to, runner)
    ledger = expire_leases(view.ledger, view.now, view.settings, [*done, *keep])
    if not done:
        return ledger, {}
    commands = [SettleCommand(ACK, lease_id) for lease_id in done]
    ledger, outcomes = group.settle_all(ledger, view, commands)
    return ledger, settle_info(commands, outcomes)


def _committed_leases(
    group: GroupLedger, view: GroupView, stream: str, up_to: int, runner: str | None
) -> list[str]:
    """Return the leases to ack, without those of batches that left messages on purpose."""
    if up_to == 0:
        return []
    ledger = view.ledger
    rows = ledger.find((LEASED, AVAILABLE), ("lease_id", "starts with", stream + "/"))
    if not rows:
        return []
    ids = {r.lease_id for r in ledger.ranges_at(rows) if r.lease_id}
    parts = {lease_id: parse_lease_id(lease_id) for lease_id in ids}
    done = sorted(
        (i, p[1]) for i, p in parts.items()
        if p and p[1] <= up_to and (runner is None or p[2] == runner)
    )  # fmt: skip
    if not done:
        return []
    left = auto_ack_excluded_up_to(group.ledgers, view.snapshot, stream)
    return [lease_id for lease_id, n in done if n > left]


def exclude_from_auto_ack(group: GroupLedger, stream: str, n: int) -> int:
    """Exclude the leased messages of batch n from the ack on commit. Return their number.

    The commit changes the group's ledger, so an ack that has not seen it conflicts.
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


def auto_ack_excluded_up_to(ledgers: LedgerTable, snapshot: LedgerSnapshot, stream: str) -> int:
    """Return the last excluded batch of a stream, or 0. Raise CommitConflict."""
    return ledgers.txn_number(snapshot, auto_ack_app_id(stream)) or 0
