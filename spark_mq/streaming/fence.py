"""Fence drivers that still run after another driver has taken over their checkpoint."""

from __future__ import annotations

from spark_mq.errors import StreamFenced
from spark_mq.operations.group_ledger import GroupLedger, GroupView

__all__ = ["check_fence"]


def check_fence(
    group: GroupLedger, view: GroupView, app: str, stream: str, n: int, *, highest: int
) -> int | None:
    """Return the number of a stream's transactions `app`, or None without any.

    Raise StreamFenced if it is above `highest`, because then another driver has leased or replayed
    batch n or a later one.
    """
    number = group.ledgers.txn_number(view.snapshot, app)
    if number is not None and number > highest:
        raise StreamFenced(
            f"batch {n} of stream {stream} is fenced: another driver has leased batch "
            f"{(number - 1) // 2} of this checkpoint. Stop this query if the other one still "
            f"runs. Start with a new checkpoint if this one was copied or rolled back",
            stream=stream,
            batch=n,
            mark=number,
        )
    return number
