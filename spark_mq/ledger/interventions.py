"""Change messages without a lease: for the group's owner, or for a copy to another queue.

The owner discards, retries or makes dead single messages. A sweep or a redrive freezes ranges under
a transfer id, copies them, and settles them. Only that id gives the right to settle its ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_mq.ledger.commands import TRACKED, Change, Command, Needs, Priority, View, counted_change
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, format_intervals, normalise
from spark_mq.ledger.key_order import is_ordered, return_behind
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    TRANSFERRING,
    UNREAD,
    Ledger,
    Range,
)
from spark_mq.ledger.schedule import EXPIRED, LATER, split_by_time
from spark_mq.ledger.states import UNSETTLED
from spark_mq.ledger.transitions import (
    REQUESTED,
    counted_from_zero,
    expire_leases,
    to_available,
    to_dead,
)
from spark_mq.util.validation import truncate_error

DISCARD: Final = "discard"
RETRY_NOW: Final = "retry now"
DEAD_LETTER: Final = "dead letter"
_IN_LEDGER: Final = (LEASED, AVAILABLE, DEAD, BLOCKED)
_EVENTS: Final = {DISCARD: "discarded", RETRY_NOW: "retried", DEAD_LETTER: "made_dead"}


@dataclass(slots=True)
class Intervention:
    """The outcome of an owner's change."""

    changed: int = 0  # messages in another state now, or due earlier
    ranges: list[Interval] = field(default_factory=list)  # their sequences
    held: list[tuple[int, int, str]] = field(default_factory=list)
    """``(first, last, who)`` of messages that must not change. With any, nothing was changed."""
    expired: list[Interval] = field(default_factory=list)
    """Messages to retry that no worker may lease. With any, nothing was changed."""


@dataclass(frozen=True, slots=True)
class Intervene(Command[Intervention]):
    """Change unsettled messages without a lease, for the group's owner, leased ones too.

    Nothing changes if a lease holds any of them, unless `force` takes them from it, if any is in
    transfer, or if any that has expired is to be retried. RETRY_NOW makes messages due now. Those
    that are dead, blocked or leased for the last time count from zero. In an ordered group, a lease
    then also loses the messages after one that is due again.
    """

    how: str  # DISCARD, RETRY_NOW or DEAD_LETTER
    intervals: Sequence[Interval]
    reason: str | None = None
    force: bool = False

    name = "intervene"
    exclusive = True  # the whole commit names the person

    @property
    def needs(self) -> Needs:
        return Needs(max(last for _, last in self.intervals))

    def apply(self, view: View) -> Change[Intervention]:
        ledger, reason = expire_leases(view.ledger, view.now, view.settings), self.reason
        after, done = self._changed(ledger, view)
        note = {
            "operation": self.how, "messages": done.changed,
            "ranges": format_intervals(done.ranges),
            **({"reason": reason, "detail": reason} if reason else {}),
        }  # fmt: skip
        return Change(after if done.changed else None, done, note)

    def _changed(self, ledger: Ledger, view: View) -> tuple[Ledger, Intervention]:
        index, now, how, wanted = view.log, view.now, self.how, normalise(self.intervals)
        pieces = list(LedgerEditor(ledger).cut(wanted, index, (UNREAD, *UNSETTLED)))
        if held := [(r.first, r.last, _holder(r)) for r in pieces if self._is_held(r)]:
            return ledger, Intervention(held=held)
        unread = wanted
        if how == RETRY_NOW:
            unread, expired = _not_due(pieces, index, now)
            if expired:
                return ledger, Intervention(expired=expired)
        change = _Change(self, view, ledger)
        for piece in change.editor.cut(wanted, index, _IN_LEDGER):
            change.apply(piece)
        for piece in change.editor.cut(unread, index, (UNREAD,)):
            change.apply(piece)
        if not change.done.changed:
            return ledger, change.done
        after = change.editor.build()
        if how == RETRY_NOW and is_ordered(index, view.settings):
            for lease_id in sorted(change.fenced):
                after, _ = return_behind(after, index, now, lease_id)
        return after, change.done

    def _is_held(self, r: Range) -> bool:
        return r.state == TRANSFERRING or (r.state == LEASED and not self.force)


def _holder(r: Range) -> str:
    if r.state == TRANSFERRING:
        return "a sweep or redrive copies it"
    return f"lease {r.lease_id} of {r.worker} holds it"


def _not_due(
    pieces: Sequence[Range], index: MessageIndex, now: int
) -> tuple[list[Interval], list[Interval]]:
    """Return the unread messages that are due later, and the others that would expire at once."""
    later, expired = list[Interval](), list[Interval]()
    for r in pieces:
        if r.state == AVAILABLE and (r.available_at or 0) <= now:
            continue
        for when, part in split_by_time(r, index, now, now):
            if when == LATER and r.state == UNREAD:
                later.append((part.first, part.last))
            elif when == EXPIRED and r.state != UNREAD:
                expired.append((part.first, part.last))
    return later, expired


class _Change:
    def __init__(self, command: Intervene, view: View, ledger: Ledger) -> None:
        self.index, self.now, self.how = view.log, view.now, command.how
        self.attempts = view.settings.max_delivery_attempts
        self.error = None if command.reason is None else truncate_error(command.reason)
        self.editor = LedgerEditor(ledger)
        self.done = Intervention()
        self.fenced: set[str] = set()  # the leases that messages were taken from

    def apply(self, r: Range) -> None:
        """Change a range. A retry leaves the messages of it that are due already."""
        if self.how != RETRY_NOW or r.state != AVAILABLE or (r.available_at or 0) > self.now:
            self._apply(r)
            return
        for when, part in split_by_time(r, self.index, self.now, self.now):
            piece = r.at(part.first, part.last, part.message_count)
            if when == LATER:
                self._apply(piece)
            else:
                self.editor.add(piece, piece)

    def _apply(self, r: Range) -> None:
        after = self._after(r)
        if after == r:
            self.editor.add(r, r)
            return
        if r.state == LEASED:
            self.editor.record_event("fenced", r._replace(state=AVAILABLE))
            self.fenced.add(r.lease_id or "")
        self.editor.add(after, self._shown_before(r), _EVENTS[self.how])
        self.done.changed += r.message_count
        self.done.ranges.append((r.first, r.last))

    def _shown_before(self, r: Range) -> Range:
        """Return the range as its event shows it, because a settled range keeps no reason."""
        if self.how != DISCARD:
            return r
        return r._replace(reason=REQUESTED, error=self.error or r.error)

    def _after(self, r: Range) -> Range:
        if self.how == DISCARD:
            return r.as_settled()
        if self.how == DEAD_LETTER:
            return r if r.state == DEAD else to_dead(r, REQUESTED, self.error or r.error)
        if r.state in (DEAD, BLOCKED) or self._is_spent(r):
            return counted_from_zero(r, self.now)._replace(reason=REQUESTED)
        size = r.lease_size if r.suspect and r.state == AVAILABLE else None
        return to_available(r, self.now, r.error)._replace(
            lease_size=size, reason=REQUESTED if r.delivery_count == 0 else r.reason
        )

    def _is_spent(self, r: Range) -> bool:
        """Return whether a leased message would be dead, not due, after this delivery."""
        return r.state == LEASED and self.attempts is not None and r.delivery_count >= self.attempts


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
            return r._replace(
                state=TRANSFERRING, lease_id=self.transfer_id, reason=self.reason, available_at=None
            )

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
        return counted_change(
            self.event, editor.build(), messages, lease_id=self.transfer_id, detail=self.detail
        )


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
