"""Freeze ranges for a copy to another queue, and settle them. Drop dead and discarded ranges.

A transfer id identifies one copy, and only that id gives the right to settle its ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View, counted_change
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, DEAD, TRANSFERRING, UNREAD, Ledger, Range
from spark_mq.ledger.transitions import expire_leases

__all__ = [
    "Discard",
    "DropDead",
    "Freeze",
    "FreezeDead",
    "SettleRouted",
    "Unfreeze",
    "discard",
    "drop_dead",
    "freeze",
    "freeze_dead",
    "settle_routed",
    "unfreeze",
]


@dataclass(frozen=True, slots=True)
class FreezeDead(Command[int]):
    """Freeze dead messages under a transfer id, and count them."""

    transfer_id: str
    max_ranges: int
    max_messages: int

    name = "freeze dead"
    priority = Priority.LEASE
    creates = True  # without a group there is nothing to freeze
    exclusive = True
    needs = Needs(TRACKED)

    def apply(self, view: View) -> Change[int]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        after, ranges = freeze_dead(
            ledger, self.transfer_id, self.max_ranges, view.log, self.max_messages
        )
        messages = sum(r.message_count for r in ranges)
        return counted_change(self.name, after, messages, lease_id=self.transfer_id)


@dataclass(frozen=True, slots=True)
class Freeze(Command[int]):
    """Freeze messages of some intervals under a transfer id, and count them."""

    transfer_id: str
    intervals: Sequence[Interval]
    reason: str | None = None  # the place of another queue that they go to

    name = "freeze redrive"
    priority = Priority.LEASE
    creates = True
    exclusive = True
    needs = Needs(None, horizon="always")  # a new group begins above the horizon

    def apply(self, view: View) -> Change[int]:
        after, messages = freeze(
            view.ledger, view.log, self.transfer_id, self.intervals, self.reason
        )
        return counted_change(self.name, after, messages, lease_id=self.transfer_id)


@dataclass(frozen=True, slots=True)
class SettleRouted(Command[int]):
    """Settle the messages under a transfer id, and count them."""

    transfer_id: str
    event: str  # "routed" or "redriven"
    detail: str | None = None  # a person's request

    name = "settle routed"
    priority = Priority.LEASE
    needs = Needs()
    creates = True
    exclusive = True

    def apply(self, view: View) -> Change[int]:
        after, messages = settle_routed(view.ledger, self.transfer_id, self.event)
        detail = self.detail or None
        return counted_change(self.event, after, messages, lease_id=self.transfer_id, detail=detail)


@dataclass(frozen=True, slots=True)
class Unfreeze(Command[int]):
    """Give the messages under a transfer id back, and count them."""

    transfer_id: str

    name = "undo redrive"
    priority = Priority.LEASE
    needs = Needs()
    creates = True
    exclusive = True

    def apply(self, view: View) -> Change[int]:
        after, messages = unfreeze(view.ledger, self.transfer_id)
        return counted_change(self.name, after, messages, lease_id=self.transfer_id)


@dataclass(frozen=True, slots=True)
class Discard(Command[int]):
    """Settle messages of some intervals that nothing is to copy, and count them."""

    intervals: Sequence[Interval]
    detail: str  # a person's request

    name = "discard"
    priority = Priority.LEASE
    creates = True
    exclusive = True
    needs = Needs(None, horizon="always")  # a new group begins above the horizon

    def apply(self, view: View) -> Change[int]:
        after, messages = discard(view.ledger, view.log, self.intervals)
        return counted_change(self.name, after, messages, detail=self.detail)


@dataclass(frozen=True, slots=True)
class DropDead(Command[int]):
    """Settle the dead messages of a group without a dead-letter queue, and count them."""

    name = "drop dead"
    priority = Priority.LEASE

    def apply(self, view: View) -> Change[int]:
        after, messages = drop_dead(expire_leases(view.ledger, view.now, view.settings))
        return counted_change(self.name, after, messages)


def freeze_dead(
    ledger: Ledger,
    transfer_id: str,
    limit: int,
    index: MessageIndex | None = None,
    max_messages: int | None = None,
) -> tuple[Ledger, list[Range]]:
    """Freeze up to `limit` dead ranges, of `max_messages` at most, under a transfer id."""
    editor = LedgerEditor(ledger)
    frozen: list[Range] = []
    left = sys.maxsize if max_messages is None or index is None else max_messages
    for r in editor.remove(ledger.find((DEAD,))[:limit]):
        piece = r
        if r.message_count > left and index is not None:
            last = index.nth_from(r.first, left) if left else r.first - 1
            piece = r.slice(r.first, last, index)
            editor.add(r.slice(last + 1, r.last, index), r)
        left -= piece.message_count
        if piece.message_count:
            frozen.append(piece._replace(state=TRANSFERRING, lease_id=transfer_id))
            editor.add(frozen[-1], r)
    return editor.build(), frozen


def freeze(
    ledger: Ledger,
    index: MessageIndex,
    transfer_id: str,
    intervals: Sequence[Interval],
    reason: str | None = None,
) -> tuple[Ledger, int]:
    """Freeze available and unread messages of intervals under a transfer id, and count them."""
    editor, total = LedgerEditor(ledger), 0
    for piece in editor.cut(intervals, index, (AVAILABLE, UNREAD)):
        frozen = piece._replace(
            state=TRANSFERRING, lease_id=transfer_id, available_at=None, reason=reason
        )
        editor.add(frozen, piece, "set_aside")
        total += piece.message_count
    return (editor.build(), total) if total else (ledger, 0)


def settle_routed(ledger: Ledger, transfer_id: str, event: str = "routed") -> tuple[Ledger, int]:
    """Settle the ranges under a transfer id, the last step of a transfer. Count the messages."""
    return _settled(ledger, ledger.find((TRANSFERRING,), ("lease_id", "=", transfer_id)), event)


def unfreeze(ledger: Ledger, transfer_id: str) -> tuple[Ledger, int]:
    """Make the ranges under a transfer id available again. Count the messages."""
    editor, total = LedgerEditor(ledger), 0
    rows = ledger.find((TRANSFERRING,), ("lease_id", "=", transfer_id))
    for r in editor.remove(rows):
        editor.add(r._replace(state=AVAILABLE, lease_id=None, reason=None), r, "put_back")
        total += r.message_count
    return editor.build(), total


def discard(
    ledger: Ledger, index: MessageIndex, intervals: Sequence[Interval]
) -> tuple[Ledger, int]:
    """Settle available and unread messages of intervals, and count them."""
    editor, total = LedgerEditor(ledger), 0
    for piece in editor.cut(intervals, index, (AVAILABLE, UNREAD)):
        editor.add(piece.as_settled(), piece, "discarded")
        total += piece.message_count
    return editor.build(), total


def drop_dead(ledger: Ledger) -> tuple[Ledger, int]:
    """Settle the dead ranges of a group without a dead-letter queue. Count the messages."""
    return _settled(ledger, ledger.find((DEAD,)), "dropped")


def _settled(ledger: Ledger, rows: Sequence[int], event: str) -> tuple[Ledger, int]:
    editor, total = LedgerEditor(ledger), 0
    for r in editor.remove(rows):
        editor.add(r.as_settled(), r, event)
        total += r.message_count
    return editor.build(), total
