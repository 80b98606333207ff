"""What the owner of a queue does to its groups: changing settings, deciding about what blocks, dropping a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from spark_mq.errors import GroupNotFound
from spark_mq.ledger import admin as moving
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settings import GroupSettings
from spark_mq.storage.ledger_store import Dropped, LedgerSnapshot, change
from spark_mq.util.validation import check_choice

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup

__all__ = ["configure", "drop", "unblock"]


def configure(group: ConsumerGroup, given: Mapping[str, Any]) -> GroupSettings:
    """Changes settings of a group: see :meth:`spark_mq.ConsumerGroup.configure`."""
    GroupSettings.checked(**given)  # before anything is made
    group.ensure()

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, GroupSettings, Mapping[str, Any]]:
        ledger, before = group.found(stored), group.rules(stored)
        after = GroupSettings.checked(before, **given)
        note = {"operation": "configure", "settings": {name: getattr(after, name) for name in given}}
        return Ledger(replace(ledger.head, settings=asdict(after)), ledger.ranges) if after != before else None, after, note

    return change(group.queue.leases, group.name, step)


def unblock(group: ConsumerGroup, to: str, sequences: Iterable[int] | None) -> int:
    """Decides about the messages that block a group: see :meth:`spark_mq.ConsumerGroup.unblock`."""
    how = check_choice("to", to, (moving.RETRY, moving.ROUTE, moving.DROP))
    intervals = None if sequences is None else from_sequences(sequences)

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        now = group.queue.now()
        ledger = rules_of.fold(group.found(stored), now, group.rules(stored))
        after, messages = moving.unblock(ledger, group.queue.log.index(ledger.frontier), now, how, intervals)
        return after if messages else None, messages, {"operation": f"unblock: {how}", "messages": messages}

    return change(group.queue.leases, group.name, step)


def drop(group: ConsumerGroup) -> None:
    """Drops a group: see :meth:`spark_mq.Queue.drop_group`."""

    def step(stored: LedgerSnapshot) -> tuple[type[Dropped], None, Mapping[str, Any]]:
        if group.name not in group.queue.leases.groups():
            raise GroupNotFound(f"there is no consumer group {group.name!r} to drop", group=group.name)
        return Dropped, None, {"operation": "drop group"}

    change(group.queue.leases, group.name, step, whole_table=True, blind=True)  # one that cannot be read, too
