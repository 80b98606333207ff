"""Replay a batch with the messages that its dead runner still holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.replay import replay_batch, rows_held_by_batch
from spark_mq.ledger.settings import GroupSettings
from spark_mq.operations.acquire import Damage, find_damage
from spark_mq.operations.group_ledger import GroupLedger, GroupView
from spark_mq.operations.signals import ack_signals, lease_signals
from spark_mq.storage.update import Priority, Update
from spark_mq.streaming.fence import check_fence
from spark_mq.streaming.offset import fence_app_id
from spark_mq.telemetry.conventions import Signal

__all__ = ["find_batch_damage", "take_over_batch"]

_log = logging.getLogger(__name__)


def find_batch_damage(group: GroupLedger, stream: str, n: int) -> list[Damage]:
    """Read all messages that batch n holds, and return the damage. Raise StorageError."""
    # A page that no task can read may be why the batch died.
    ledger = group.ledger_in(group.snapshot())
    rows = rows_held_by_batch(ledger, f"{stream}/{n}/")
    return find_damage(group, ledger.ranges_at(rows))


def take_over_batch(
    group: GroupLedger,
    stream: str,
    n: int,
    *,
    runner: str,
    worker_id: str,
    expires_at: Callable[[GroupView], int],
    acked: Callable[[GroupView, Sequence[str]], tuple[Ledger, dict[str, Any]]],
) -> tuple[list[Range], int, GroupSettings]:
    """Give the messages of batch n to a runner, in one commit.

    `acked` gets the leases to keep. It returns the ledger with the batches before n acked and other
    leases expired, and the commit's note about the acks. Return the ranges, when their lease
    expires, and the group's settings. Raise StreamFenced if another driver has leased or replayed
    this batch, or a later one.
    """
    app, prefix = fence_app_id(stream), f"{stream}/{n}/"

    def compute(view: GroupView) -> Update[tuple[list[Range], int, bool, GroupSettings, int]]:
        number = check_fence(group, view, app, stream, n, highest=2 * n + 2)
        rows = rows_held_by_batch(view.ledger, prefix)
        held = {r.lease_id for r in view.ledger.ranges_at(rows) if r.lease_id}
        ordered = view.settings.order == "key"
        index = group.index_for(view.ledger, view.ledger.end_sequence) if ordered else None
        before, acks = acked(view, sorted(held))
        after, granted = replay_batch(
            before, view.now, view.settings, prefix, lease_id=prefix + runner,
            worker_id=worker_id, expires_at=expires_at(view),
            granted_before=number == 2 * n + 2, index=index,
        )  # fmt: skip
        info = {
            "operation": "replay",
            "lease_id": prefix + runner,
            "worker_id": worker_id,
            "messages": sum(r.message_count for r in granted),
        }
        done = acks.get("messages", 0)
        return after, (granted, expires_at(view), number != 2 * n + 2, view.settings, done), info

    def signals(result: Any) -> list[Signal]:
        if isinstance(result, Exception):
            return lease_signals(worker_id, result, "replay")
        return [*ack_signals(result[4]), *lease_signals(worker_id, result[0], "replay")]

    granted, until, _, settings, _ = group.update(
        compute,
        txn=lambda got: (app, 2 * n + 2) if got[2] else None,
        priority=Priority.LEASE,
        watch=signals,
    )
    messages = sum(r.message_count for r in granted)
    _log.warning("stream %s: batch %d runs again with %d messages", stream, n, messages)
    return granted, until, settings
