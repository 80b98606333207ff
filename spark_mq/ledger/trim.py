"""Compute how far a queue may be trimmed, and which groups hold the trim back.

The trim horizon is the `start_sequence` of a reserved group. Messages up to it may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_mq.ledger.commands import Change, Command, View
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger, LedgerHeader

__all__ = [
    "GroupStart",
    "HeldBack",
    "NoteChange",
    "advance_horizon",
    "counting_groups",
    "held_back",
    "lowest_start",
]


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
    """Return the messages that groups hold back, or None.

    Messages up to `horizon` are trimmed, and those up to `old` are old enough.
    """
    start = lowest_start(groups)
    waiting = index.first_at_or_after(max(start, horizon) + 1)
    if not groups or waiting is None or waiting > old:
        return None
    names = tuple(sorted(name for name, one in groups.items() if one.start_sequence == start))
    # A file stays as a whole.
    return HeldBack(names, start, index.count(index.file_at(waiting).first, old))
