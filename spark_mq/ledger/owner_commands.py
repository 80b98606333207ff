"""The commands of a group's owner, such as create, configure, seek, pause and drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from spark_mq.ledger import admin
from spark_mq.ledger.acquire import without_lost
from spark_mq.ledger.commands import (
    DROP_GROUP,
    TRACKED,
    Change,
    Command,
    Needs,
    Priority,
    View,
)
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger, LedgerHeader
from spark_mq.ledger.schedule import settle_expired_unread
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import expire_leases
from spark_mq.util.clock import to_micros
from spark_mq.util.show import show_position

__all__ = [
    "CREATE_GROUP",
    "Configure",
    "Create",
    "Drop",
    "Expire",
    "GroupStart",
    "HeldBack",
    "NoteChange",
    "Pause",
    "Resume",
    "Seek",
    "SettleLost",
    "StartPosition",
    "Unblock",
    "advance_horizon",
    "counting_groups",
    "held_back",
    "lowest_start",
    "seek_position",
]

CREATE_GROUP = "create group"
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
    alone = True
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
        )
        return Change(Ledger(head), True, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class Configure(Command[GroupSettings]):
    """Change settings of the group. Return all of them."""

    changes: Mapping[str, Any]

    name = "configure"

    def apply(self, view: View) -> Change[GroupSettings]:
        before, after = view.settings, view.settings.changed(**self.changes)
        if after == before:
            return Change(None, after)
        stored = after.encoded()
        note = {
            "operation": self.name,
            "settings": {name: stored[name] for name in self.changes},
            "detail": before.changes(after),
        }
        head = replace(view.ledger.head, settings=stored)
        return Change(view.ledger.replaced(head, view.ledger.events), after, note)


@dataclass(frozen=True, slots=True)
class Seek(Command[None]):
    """Skip all messages before a target, and make all others unread."""

    target: StartPosition

    name = "seek"
    alone = True
    needs = Needs(None, horizon="always")

    def apply(self, view: View) -> Change[None]:
        position = seek_position(view.log, self.target, view.horizon)
        after = admin.seek(view.ledger, view.log, position)
        detail = f"to {show_position(self.target)}"
        return Change(
            after, None, {"operation": self.name, "ranges": f"{position}-", "detail": detail}
        )


@dataclass(frozen=True, slots=True)
class Pause(Command[None]):
    """Stop new leases until a resume."""

    reason: str | None

    name = "pause"

    def apply(self, view: View) -> Change[None]:
        after = admin.pause(view.ledger, self.reason, view.now)
        return Change(after, None, _with_reason(self.name, self.reason))


@dataclass(frozen=True, slots=True)
class Resume(Command[None]):
    """End a pause, and close the breaker."""

    name = "resume"

    def apply(self, view: View) -> Change[None]:
        after = admin.resume(view.ledger)
        changed = after.head != view.ledger.head
        return Change(after if changed else None, None, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class Unblock(Command[int]):
    """Decide about messages that block the group, and count them."""

    how: str  # RETRY, ROUTE or DROP
    intervals: Sequence[Interval] | None  # None for all

    name = "unblock"
    needs = Needs(TRACKED)

    def apply(self, view: View) -> Change[int]:
        ledger = expire_leases(view.ledger, view.now, view.settings)
        after, messages = admin.unblock(ledger, view.log, view.now, self.how, self.intervals)
        note = {"operation": f"{self.name}: {self.how}", "messages": messages}
        return Change(after if messages else None, messages, note)


@dataclass(frozen=True, slots=True)
class Expire(Command[int]):
    """Expire leases now, and count the messages that they held."""

    name = "expire"
    priority = Priority.LEASE
    needs = Needs(None)

    def apply(self, view: View) -> Change[int]:
        after = expire_leases(view.ledger, view.now, view.settings)
        after = settle_expired_unread(after, view.log, view.now)
        before, left = (one.count((LEASED,)) for one in (view.ledger, after))
        return Change(after, before - left, {"operation": self.name, "messages": before - left})


@dataclass(frozen=True, slots=True)
class SettleLost(Command[None]):
    """Settle messages that a trim dropped unread, or raise DataLossError with `fail`."""

    fail: bool

    name = "data_loss"
    needs = Needs(horizon="if lost")

    def apply(self, view: View) -> Change[None]:
        after, lost = without_lost(view, view.ledger, self.fail)
        return Change(after, None, {"operation": self.name}, alarm=lost)


@dataclass(frozen=True, slots=True)
class Drop(Command[None]):
    """Drop the group, even if its ledger is unreadable."""

    name = "drop group"
    alone = True
    whole_table = True
    without_ledger = True
    adds_fingerprint = False

    def apply(self, view: View) -> Change[None]:
        return Change(DROP_GROUP, None, {"operation": self.name})


@dataclass(frozen=True, slots=True)
class GroupStart:
    """How far a group has settled all messages."""

    start_sequence: int  # all messages up to this sequence are settled
    last_change: int | None = None  # its last commit, microseconds since 1970, or None if unknown


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The messages that groups hold back from a trim."""

    groups: tuple[str, ...]  # those with the lowest start
    start_sequence: int
    messages: int  # old enough, but kept because of these groups


def advance_horizon(view: View, to: int) -> Change[int]:
    """Move the horizon up to a sequence, and return it. A higher horizon stays."""
    before = view.ledger.head.start_sequence if view.exists else -1
    horizon = max(before, to)
    if horizon == before:
        return Change(None, horizon)
    ledger = Ledger(LedgerHeader(start_sequence=horizon))
    return Change(ledger, horizon, {"operation": "trim", "ranges": f"-{horizon}"})


@dataclass(frozen=True, slots=True)
class NoteChange(Command[None]):
    """Note a change of the queue beside the horizon, from where the history gets it."""

    detail: str

    name = "configure queue"
    creates = True
    alone = True

    def apply(self, view: View) -> Change[None]:
        ledger = view.ledger if view.exists else Ledger(LedgerHeader(start_sequence=-1))
        note = {"operation": self.name, "detail": self.detail}
        return Change(ledger.replaced(ledger.head, ledger.events), None, note)


def counting_groups(
    groups: Mapping[str, GroupStart], latest: int, now: int, expiry: int | None
) -> dict[str, GroupStart]:
    """Return the groups that a trim must wait for.

    A group with unsettled messages expires if it made no commit for longer than `expiry`. If all
    groups have expired, the one that has settled most still counts, so that no message goes that no
    group has settled.
    """
    live = {name: one for name, one in groups.items() if not _has_expired(one, latest, now, expiry)}
    if live or not groups:
        return live
    most = max(one.start_sequence for one in groups.values())
    return {name: one for name, one in groups.items() if one.start_sequence == most}


def _has_expired(one: GroupStart, latest: int, now: int, expiry: int | None) -> bool:
    idle_since = one.last_change
    return (
        expiry is not None
        and one.start_sequence < latest
        and idle_since is not None
        and idle_since < now - expiry
    )


def lowest_start(groups: Mapping[str, GroupStart]) -> int:
    """Return the sequence up to which a trim may go. -1 without groups."""
    return min((one.start_sequence for one in groups.values()), default=-1)


def held_back(
    groups: Mapping[str, GroupStart], index: MessageIndex, horizon: int, old: int
) -> HeldBack | None:
    """Return the messages up to `old` that groups hold back from a trim, or None."""
    start = lowest_start(groups)
    waiting = index.first_at_or_after(max(start, horizon) + 1)
    if not groups or waiting is None or waiting > old:
        return None
    names = tuple(sorted(name for name, one in groups.items() if one.start_sequence == start))
    # A file stays as a whole.
    return HeldBack(names, start, index.count(index.file_at(waiting).first, old))
