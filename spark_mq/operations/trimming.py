"""Find how far a queue may be trimmed, and what prevents more."""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.trim import (
    GroupStart,
    HeldBack,
    counting_groups,
    held_back,
    lowest_start,
)
from spark_mq.operations.context import QueueContext

__all__ = ["find_held_back", "groups_that_count", "read_starts"]


def read_starts(context: QueueContext) -> dict[str, int]:
    """Return the start sequence of each group."""
    ledgers = ((name, context.ledgers.read(name).ledger) for name in context.ledgers.groups())
    return {name: ledger.head.start_sequence for name, ledger in ledgers if ledger is not None}


def groups_that_count(
    context: QueueContext, index: MessageIndex, starts: Mapping[str, int]
) -> dict[str, GroupStart]:
    """Return the groups that a trim must wait for. Groups past ``group_expiry`` are left out."""
    expiry = context.settings.group_expiry
    groups = {
        name: GroupStart(start, None if expiry is None else context.ledgers.last_change(name))
        for name, start in starts.items()
    }
    return counting_groups(groups, index.last_sequence, context.now(), expiry)


def find_held_back(
    context: QueueContext, index: MessageIndex, starts: Mapping[str, int]
) -> HeldBack | None:
    """Return the messages that groups hold back from a trim, or None."""
    counting = groups_that_count(context, index, starts)
    horizon = context.horizon()
    if not counting or index.last_sequence <= max(lowest_start(counting), horizon):
        return None  # all is settled, so the ages of files do not matter
    old = index.last_of_older(context.now() - context.settings.retention)
    return held_back(counting, index, horizon, old)
