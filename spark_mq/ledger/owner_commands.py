"""The commands of a group's owner, such as create, configure, seek, pause and drop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from spark_mq.errors import InvalidOption
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.commands import (
    DROP_GROUP,
    TRACKED,
    Change,
    Command,
    Needs,
    Priority,
    View,
    counted_change,
)
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    SETTLED,
    TRANSFERRING,
    UNREAD,
    Ledger,
    LedgerHeader,
    Range,
    range_between,
)
from spark_mq.ledger.schedule import settle_expired_unread
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import WRITTEN
from spark_mq.ledger.states import CHANGEABLE, UNSETTLED
from spark_mq.ledger.transitions import counted_from_zero, expire_leases
from spark_mq.util.clock import to_micros
from spark_mq.util.show import show_position

MAX_SKIPPED_INTERVALS: Final = 100
"""Skipped intervals that a group remembers, so that a later settle of them is refused."""

RETRY: Final = "retry"
DROP: Final = "drop"
ROUTE: Final = "dead_letter"

CREATE_GROUP: Final = "create group"
StartPosition = str | int | datetime


def _position(index: MessageIndex, start: StartPosition) -> int:
    if isinstance(start, datetime):
        return index.first_published_since(to_micros(start))
    if isinstance(start, str):
        return {"earliest": 0, "latest": index.last_sequence + 1}[start]
    return start


def seek_position(index: MessageIndex, target: StartPosition, horizon: int) -> int:
    """Return the first sequence that a seek makes unread."""
    # Not past the last one. That would skip messages that are not published yet.
    return min(max(_position(index, target), horizon + 1), index.last_sequence + 1)


def _with_reason(operation: str, reason: str | None) -> Mapping[str, Any]:
    return {"operation": operation, **({"reason": reason, "detail": reason} if reason else {})}


@dataclass(frozen=True, slots=True)
class Create(Command[bool]):
    """Create the group unless it exists. Return whether it did."""

    start: StartPosition
    settings: GroupSettings

    name = CREATE_GROUP
    creates = True
    exclusive = True
    needs = Needs(None, damaged=True, horizon="always")

    def apply(self, view: View) -> Change[bool]:
        if view.exists:
            return Change(None, False)
        index = view.log
        if view.damage is not None and self.start != "earliest":
            raise view.damage  # only the whole log shows that place
        # Not past the last message. Later ones would count as settled unread.
        position = min(_position(index, self.start), index.last_sequence + 1)
        start = max(position - 1, view.horizon)
        head = LedgerHeader(
            start_sequence=start,
            settled_count=index.count(0, start),
            settings=self.settings.encoded(),
            group=view.group,
        )
        return Change(Ledger(head), True, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class Configure(Command[GroupSettings]):
    """Change settings of the group. Return all of them.

    With `forget_writes` the old sink is gone, so no message can be in it.
    """

    changes: Mapping[str, Any]
    forget_writes: bool = False

    name = "configure"

    def apply(self, view: View) -> Change[GroupSettings]:
        before, after = view.settings, view.settings.changed(**self.changes)
        after.check_together()
        stored = after.encoded()
        if stored == before.encoded():
            return Change(None, after)
        ledger = view.ledger
        if before.sink_key != after.sink_key:
            if self.forget_writes:
                ledger = _without_writes(ledger)
            _check_no_open_writes(ledger, before)
        note = {
            "operation": self.name,
            "settings": {name: stored[name] for name in self.changes},
            "detail": before.changes(after),
        }
        head = replace(ledger.head, settings=stored)
        if any(name.startswith(("rate_", "byte_rate_")) for name in self.changes):
            head = replace(head, rate_full_at=0, byte_rate_full_at=0)
        return Change(ledger.replaced(head, ledger.events), after, note)


def _without_writes(ledger: Ledger) -> Ledger:
    editor = LedgerEditor(ledger)
    for r in editor.remove(ledger.find(UNSETTLED, WRITTEN)):
        editor.add(r._replace(sink_writes=None), r)
    return editor.build()


def _check_no_open_writes(ledger: Ledger, rules: GroupSettings) -> None:
    """Raise InvalidOption for messages that the sink may have, because another one has not."""
    if messages := ledger.count(UNSETTLED, WRITTEN):
        raise InvalidOption(
            f"the sink cannot change: {messages} unsettled messages may be in {rules.sink}. Let "
            "the workers of the group settle them, without new messages meanwhile",
            option="sink",
            value=rules.sink,
        )


@dataclass(frozen=True, slots=True)
class Seek(Command[None]):
    """Skip all messages before a target, and make all others unread."""

    target: StartPosition

    name = "seek"
    exclusive = True
    needs = Needs(None, horizon="always")

    def apply(self, view: View) -> Change[None]:
        position = seek_position(view.log, self.target, view.horizon)
        after = _moved(view.ledger, view.log, position)
        detail = f"to {show_position(self.target)}"
        return Change(
            after, None, {"operation": self.name, "ranges": f"{position}-", "detail": detail}
        )


@dataclass(frozen=True, slots=True)
class Pause(Command[None]):
    """Stop new leases until a resume, or until an instant in microseconds."""

    reason: str | None
    until: int | None = None

    name = "pause"

    def apply(self, view: View) -> Change[None]:
        breaker = view.ledger.head.breaker.paused(self.reason, view.now, self.until)
        after = _with_breaker(view.ledger, breaker)
        return Change(after, None, _with_reason(self.name, self.reason))


@dataclass(frozen=True, slots=True)
class Resume(Command[None]):
    """End a pause, and close the breaker."""

    name = "resume"

    def apply(self, view: View) -> Change[None]:
        after = _with_breaker(view.ledger, Breaker())
        changed = after.head != view.ledger.head
        return Change(after if changed else None, None, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class Unblock(Command[int]):
    """Decide about messages that block the group, and count them."""

    WAYS: ClassVar = (RETRY, ROUTE, DROP)

    how: str  # one of WAYS
    intervals: Sequence[Interval] | None  # None for all

    name = "unblock"
    needs = Needs(TRACKED)

    def apply(self, view: View) -> Change[int]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        editor = LedgerEditor(ledger)
        wanted = [(0, MAX_SEQUENCE)] if self.intervals is None else self.intervals
        blocked = editor.cut(wanted, view.log, (BLOCKED,))
        messages = editor.replace(blocked, lambda r: _unblocked(r, view.now, self.how), "unblocked")
        return counted_change(f"{self.name}: {self.how}", editor.build(), messages)


@dataclass(frozen=True, slots=True)
class Expire(Command[int]):
    """Expire leases now, and count the messages that they held."""

    name = "expire"
    priority = Priority.LEASE
    needs = Needs(None)

    def apply(self, view: View) -> Change[int]:
        after = expire_leases(view.ledger, view.now, view.settings)
        after = settle_expired_unread(after, view.log, view.now, view.settings)
        before, left = view.ledger.count((LEASED,)), after.count((LEASED,))
        return Change(after, before - left, {"operation": self.name, "messages": before - left})


@dataclass(frozen=True, slots=True)
class Drop(Command[None]):
    """Drop the group, even if its ledger is unreadable."""

    name = "drop group"
    exclusive = True
    whole_table = True
    without_ledger = True
    adds_fingerprint = False

    def apply(self, view: View) -> Change[None]:
        return Change(DROP_GROUP, None, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class NoteChange(Command[None]):
    """Note a change of the queue beside the horizon, from where the history gets it."""

    detail: str

    name = "configure queue"
    creates = True
    exclusive = True

    def apply(self, view: View) -> Change[None]:
        ledger = view.ledger if view.exists else Ledger(LedgerHeader(start_sequence=-1))
        note = {"operation": self.name, "detail": self.detail}
        return Change(ledger.replaced(ledger.head, ledger.events), None, note)


def _with_breaker(ledger: Ledger, breaker: Breaker) -> Ledger:
    return ledger.replaced(replace(ledger.head, breaker=breaker), ledger.events)


def _moved(ledger: Ledger, index: MessageIndex, target: int) -> Ledger:
    """Move the group to a sequence. Messages before it are skipped, and no lease keeps others."""
    moving = ledger.ranges_at(ledger.find((TRANSFERRING,)))
    reach = min([target, *(r.first for r in moving)])
    start, below = reach - 1, index.count(0, reach - 1)
    ranges: list[Range] = []
    for r in moving:
        ranges += _ranges_after_seek(reach, r.first - 1, target, index)
        ranges.append(r)
        reach = r.last + 1
    # After the last range in transfer only skipped messages need a range. The others are unread.
    ranges += _ranges_after_seek(reach, target - 1, target, index)
    skipped = list(unsettled_ranges(ledger, index, target - 1))
    recorded = _record_seek(ledger, index, target, skipped)
    head = _with_skipped(recorded.head, skipped, target)
    head = replace(head, start_sequence=start, settled_count=below)
    return Ledger.from_ranges(head, ranges, recorded.events)


def _record_seek(
    ledger: Ledger, index: MessageIndex, target: int, skipped: Iterable[Range]
) -> Ledger:
    editor = LedgerEditor(ledger)
    for r in skipped:
        editor.record_event("skipped", r._replace(state=SETTLED))
    for r in ledger.ranges_at(ledger.find((LEASED,))):
        if r.last >= target:
            piece = r.slice(target, r.last, index)
            editor.record_event("fenced", piece._replace(state=UNREAD))
    if (again := index.count(target, ledger.end_sequence)) > 0:
        first = index.nth_from(target, 1)
        editor.record_event("seek", Range(first, ledger.end_sequence, UNREAD, again))
    return editor.build()


def _with_skipped(head: LedgerHeader, skipped: Iterable[Range], target: int) -> LedgerHeader:
    """Return the header with the newest skipped intervals before the target."""
    known = normalise([*head.skipped_intervals, *((r.first, r.last) for r in skipped)])
    before = subtract(known, [(target, MAX_SEQUENCE)])
    return replace(head, skipped_intervals=tuple(before[-MAX_SKIPPED_INTERVALS:]))


def _ranges_after_seek(first: int, last: int, target: int, index: MessageIndex) -> list[Range]:
    """Return ``first..last`` as settled before the target, and as available from it on."""
    pieces = [
        (first, min(last, target - 1), SETTLED, None),
        (max(first, target), last, AVAILABLE, 0),
    ]
    return [
        r._replace(available_at=available_at)
        for low, high, state, available_at in pieces
        if (r := range_between(index, low, high, state))
    ]


def unsettled_ranges(ledger: Ledger, index: MessageIndex, last: int) -> Iterable[Range]:
    """Yield what isn't settled or in transfer up to `last`, with unread messages as one range."""
    return LedgerEditor(ledger).cut([(0, last)], index, CHANGEABLE)


def _unblocked(r: Range, now: int, how: str) -> Range:
    if how == ROUTE:
        return r._replace(state=DEAD)
    if how == DROP:
        return r.as_settled()
    return counted_from_zero(r, now)
