"""Freeze ranges for a copy to another queue, and settle them. Drop dead and discarded ranges.

A transfer id identifies one copy, and only that id gives the right to settle its ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View, counted_change
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.ranges import AVAILABLE, DEAD, TRANSFERRING, UNREAD, Ledger
from spark_mq.ledger.transitions import expire_leases

__all__ = [
    "Discard",
    "DropDead",
    "Freeze",
    "FreezeDead",
    "SettleRouted",
    "Unfreeze",
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
        editor, left = LedgerEditor(ledger), self.max_messages
        for r in editor.remove(ledger.find((DEAD,))[: self.max_ranges]):
            piece = r
            if r.message_count > left:
                last = view.log.nth_from(r.first, left) if left else r.first - 1
                piece = r.slice(r.first, last, view.log)
                editor.add(r.slice(last + 1, r.last, view.log), r)
            left -= piece.message_count
            editor.add(piece._replace(state=TRANSFERRING, lease_id=self.transfer_id), r)
        messages = self.max_messages - left
        return counted_change(self.name, editor.build(), messages, lease_id=self.transfer_id)


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
        editor, messages = LedgerEditor(view.ledger), 0
        for piece in editor.cut(self.intervals, view.log, (AVAILABLE, UNREAD)):
            frozen = piece._replace(
                state=TRANSFERRING,
                lease_id=self.transfer_id,
                available_at=None,
                reason=self.reason,
            )
            editor.add(frozen, piece, "set_aside")
            messages += piece.message_count
        return counted_change(self.name, editor.build(), messages, lease_id=self.transfer_id)


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
        rows, note = _frozen(view.ledger, self.transfer_id), {"lease_id": self.transfer_id}
        if self.detail:
            note["detail"] = self.detail
        return _settle(view.ledger, rows, self.event, note)


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
        editor, messages = LedgerEditor(view.ledger), 0
        for r in editor.remove(_frozen(view.ledger, self.transfer_id)):
            editor.add(r._replace(state=AVAILABLE, lease_id=None, reason=None), r, "put_back")
            messages += r.message_count
        return counted_change(self.name, editor.build(), messages, lease_id=self.transfer_id)


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
        editor, messages = LedgerEditor(view.ledger), 0
        for piece in editor.cut(self.intervals, view.log, (AVAILABLE, UNREAD)):
            editor.add(piece.as_settled(), piece, "discarded")
            messages += piece.message_count
        return counted_change(self.name, editor.build(), messages, detail=self.detail)


@dataclass(frozen=True, slots=True)
class DropDead(Command[int]):
    """Settle the dead messages of a group without a dead-letter queue, and count them."""

    name = "drop dead"
    priority = Priority.LEASE

    def apply(self, view: View) -> Change[int]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        return _settle(ledger, ledger.find((DEAD,)), "dropped", {"operation": self.name})


def _frozen(ledger: Ledger, transfer_id: str) -> list[int]:
    return ledger.find((TRANSFERRING,), ("lease_id", "=", transfer_id))


def _settle(
    ledger: Ledger, rows: Sequence[int], event: str, note: Mapping[str, str]
) -> Change[int]:
    editor, messages = LedgerEditor(ledger), 0
    for r in editor.remove(rows):
        editor.add(r.as_settled(), r, event)
        messages += r.message_count
    given = {"operation": event, "messages": messages, **note}
    return Change(editor.build() if messages else None, messages, given)
