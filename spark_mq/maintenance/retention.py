"""How long messages stay: trimming what is settled and old, or beyond a hard limit; purging. Groups are told what they lose."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_mq.errors import DataLossError, InvalidOption
from spark_mq.ledger import admin as moving
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.storage.ledger_table import HORIZON

if TYPE_CHECKING:
    from spark_mq.group import ConsumerGroup
    from spark_mq.queue import Queue

__all__ = ["purge", "trim", "without_lost"]

_log = logging.getLogger(__name__)


def trim(queue: Queue) -> int:
    """Drops files whose messages every group has settled and that are older than the retention. Returns how many files.

    Where the queue has a hard limit, files beyond it go whoever has not read them. The horizon is written first, by a compare-and-swap
    of the whole of ``leases/``; a queue without groups has settled nothing.
    """

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        index = queue.log.index()
        hard = queue.settings.hard_retention
        settled = min(_oldest_floor(queue), _older_than(queue, index, queue.settings.retention))
        return _raised(stored, max(settled, -1 if hard is None else _older_than(queue, index, hard)))

    return queue.log.drop(change(queue.leases, HORIZON, step, whole_table=True))


def purge(queue: Queue, name: str) -> int:
    """Drops all that has been published up to now, for all groups: see :meth:`spark_mq.Queue.purge`. Returns how many files went."""
    if name != queue.name:
        raise InvalidOption(
            f"name={name!r}: a purge drops every message; to confirm it, give the queue's name, {queue.name!r}", option="name", value=name
        )
    tail = queue.log.index().tail

    def step(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        return _raised(stored, min(tail, _oldest_floor(queue) if queue.groups() else tail))

    while tail >= 0:
        for group in map(queue.group, queue.groups()):
            if group.ledger().head.floor < tail:
                group.seek(tail + 1)
        horizon = change(queue.leases, HORIZON, step, whole_table=True)
        # What is being copied to the DLQ just now is not skipped by a seek, and stays until the next trim.
        if horizon >= tail or all(group.stats().routing for group in map(queue.group, queue.groups()) if group.ledger().head.floor < tail):
            return queue.log.drop(horizon)
    return 0


def without_lost(group: ConsumerGroup, ledger: Ledger, fail: bool) -> Ledger:
    """A folded ledger without what a hard limit has cut off unread, which ends as "lost".

    With `fail`, DataLossError is raised instead, at each call until the group's owner acts: by a seek, or by accepting the loss.
    """
    if group.queue.settings.hard_retention is None:
        return ledger
    horizon = group.queue.horizon()
    after, lost = moving.cut(ledger, group.queue.log.index(), horizon)
    if lost and fail:
        raise DataLossError(
            f"group {group.name!r}: {lost} messages up to {horizon} were dropped by the queue's hard limit before it had settled them. "
            "Accept the loss with fail_on_data_loss=False (failOnDataLoss in a stream), or seek('earliest')",
            group=group.name, lost=lost, horizon=horizon,
        )  # fmt: skip
    if lost:
        _log.error("group %s: %d messages up to %d are lost, dropped by the queue's hard limit", group.name, lost, horizon)
    return after


def _raised(stored: LedgerSnapshot, to: int) -> tuple[Ledger | None, int, Mapping[str, Any]]:
    """The horizon's ledger with the horizon at `to`, if that is higher."""
    before = -1 if stored.ledger is None else stored.ledger.head.floor
    horizon = max(before, to)
    return Ledger(LedgerHeader(floor=horizon)) if horizon > before else None, horizon, {"operation": "trim", "ranges": f"-{horizon}"}


def _oldest_floor(queue: Queue) -> int:
    """Every group has settled all up to here; -1 without groups."""
    ledgers = [queue.leases.read(name).ledger for name in queue.groups()]
    return min((ledger.head.floor for ledger in ledgers if ledger is not None), default=-1)


def _older_than(queue: Queue, index: MessageIndex, age: int) -> int:
    """The highest sequence of the files that are older, with all before them, or -1."""
    limit = queue.now() - age
    old = -1
    for file in index.files:
        if file.committed_at > limit:
            break
        old = file.last
    return old
