"""Find how far a queue may be trimmed, and what prevents more."""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.trim import (
    GroupFloor,
    HeldBack,
    counting_groups,
    held_back,
    trim_floor,
)
from spark_mq.operations.context import QueueContext

__all__ = ["find_held_back", "groups_that_count", "read_floors"]


def read_floors(context: QueueContext) -> dict[str, int]:
    """Return the sequence up to which each group has settled all."""
    ledgers = ((name, context.ledgers.read(name).ledger) for name in context.ledgers.groups())
    return {name: ledger.head.ack_floor for name, ledger in ledgers if ledger is not None}


def groups_that_count(
    context: QueueContext, index: MessageIndex, floors: Mapping[str, int]
) -> dict[str, GroupFloor]:
    """Return the groups that a trim must wait for. Groups past ``group_expiry`` are left out."""
    expiry = context.settings.group_expiry
    groups = {
        name: GroupFloor(floor, None if expiry is None else context.ledgers.last_change(name))
        for name, floor in floors.items()
    }
    return counting_groups(groups, index.last_sequence, context.now(), expiry)


def find_held_back(
    context: QueueContext, index: MessageIndex, floors: Mapping[str, int]
) -> HeldBack | None:
    """Return the messages that groups hold back from a trim, or None."""
    counting = groups_that_count(context, index, floors)
    horizon = context.horizon()
    if not counting or index.last_sequence <= max(trim_floor(counting), horizon):
        return None  # all is settled, so the ages of files do not matter
    old = index.last_of_older(context.now() - context.settings.retention)
    return held_back(counting, index, horizon, old)
