"""Freeze ranges for a copy to another queue, and settle them. Drop dead and discarded ranges.

A transfer id identifies one copy, and only that id gives the right to settle its ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View, counted_change
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.ranges import AVAILABLE, DEAD, TRANSFERRING, UNREAD, Ledger, Range
from spark_mq.ledger.transitions import expire_leases


class _Transfer(Command[int]):
    """A step of a sweep or a redrive, which workers need not wait for."""

    priority = Priority.LEASE
    creates = True  # without a group there is nothing to do
    exclusive = True
    needs = Needs()


@dataclass(frozen=True, slots=True)
class FreezeDead(_Transfer):
    """Freeze dead messages under a transfer id, and count them."""

    transfer_id: str
    max_ranges: int
    max_messages: int

    name = "freeze dead"
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
class Freeze(_Transfer):
    """Freeze messages of some intervals under a transfer id, and count them."""

    transfer_id: str
    intervals: Sequence[Interval]
    reason: str | None = None  # the place of another queue that they go to

    name = "freeze redrive"
    needs = Needs(None, horizon="always")  # a new group begins above the horizon

    def apply(self, view: View) -> Change[int]:
        def frozen(r: Range) -> Range:
            moved = r._replace(state=TRANSFERRING, lease_id=self.transfer_id, reason=self.reason)
            return moved._replace(available_at=None)

        editor = LedgerEditor(view.ledger)
        waiting = editor.cut(self.intervals, view.log, (AVAILABLE, UNREAD))
        messages = editor.replace(waiting, frozen, "set_aside")
        return counted_change(self.name, editor.build(), messages, lease_id=self.transfer_id)


@dataclass(frozen=True, slots=True)
class SettleRouted(_Transfer):
    """Settle the messages under a transfer id, and count them."""

    transfer_id: str
    event: str  # "routed" or "redriven"
    detail: str | None = None  # a person's request

    name = "settle routed"

    def apply(self, view: View) -> Change[int]:
        editor = LedgerEditor(view.ledger)
        frozen = editor.remove(_frozen(view.ledger, self.transfer_id))
        messages = editor.replace(frozen, Range.as_settled, self.event)
        note: dict[str, Any] = {"lease_id": self.transfer_id}
        note |= {"detail": self.detail} if self.detail else {}
        note |= {"operation": self.event, "messages": messages}
        return Change(editor.build() if messages else None, messages, note)


@dataclass(frozen=True, slots=True)
class Unfreeze(_Transfer):
    """Give the messages under a transfer id back, and count them."""

    transfer_id: str

    name = "undo redrive"

    def apply(self, view: View) -> Change[int]:
        editor = LedgerEditor(view.ledger)
        messages = editor.replace(
            editor.remove(_frozen(view.ledger, self.transfer_id)),
            lambda r: r._replace(state=AVAILABLE, lease_id=None, reason=None),
            "put_back",
        )
        return counted_change(self.name, editor.build(), messages, lease_id=self.transfer_id)


@dataclass(frozen=True, slots=True)
class Discard(_Transfer):
    """Settle messages of some intervals that nothing is to copy, and count them."""

    intervals: Sequence[Interval]
    detail: str  # a person's request

    name = "discard"
    needs = Needs(None, horizon="always")  # a new group begins above the horizon

    def apply(self, view: View) -> Change[int]:
        editor = LedgerEditor(view.ledger)
        waiting = editor.cut(self.intervals, view.log, (AVAILABLE, UNREAD))
        messages = editor.replace(waiting, Range.as_settled, "discarded")
        return counted_change(self.name, editor.build(), messages, detail=self.detail)


@dataclass(frozen=True, slots=True)
class DropDead(Command[int]):
    """Settle the dead messages of a group without a dead-letter queue, and count them."""

    name = "drop dead"
    priority = Priority.LEASE

    def apply(self, view: View) -> Change[int]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        editor = LedgerEditor(ledger)
        dead = editor.remove(ledger.find((DEAD,)))
        messages = editor.replace(dead, Range.as_settled, "dropped")
        return counted_change(self.name, editor.build(), messages)


def _frozen(ledger: Ledger, transfer_id: str) -> list[int]:
    return ledger.find((TRANSFERRING,), ("lease_id", "=", transfer_id))
