"""Set aside messages whose payload cannot be read.

A damaged file never becomes readable by itself, so its messages are dead. A file that is out of
reach may be sound, so its messages only wait and no delivery is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_mq.errors import SparkMQError
from spark_mq.ledger.data_files import DataFile
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.ranges import AVAILABLE, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import add_scheduled, split_by_time
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import rejected

__all__ = ["UNREADABLE", "FileProblems", "postpone_due", "reject_unreadable"]

UNREADABLE: Final = "payload unreadable"
"""The reason of messages that are dead because their file is damaged or missing."""


@dataclass(frozen=True, slots=True)
class FileProblems:
    """What is known about the payload files of a queue, by path."""

    readable: Collection[str] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)  # and why
    out_of_reach: Mapping[str, SparkMQError] = field(default_factory=dict)
    unfinished: Collection[str] = ()  # no check has ended yet

    def unsure(self, index: MessageIndex, ranges: Sequence[Range]) -> list[DataFile]:
        """Return the files of some messages that no check found readable."""
        found = dict[str, int]()
        for r in ranges:
            for path, first in index.paths_in(r.first, r.last):
                if path not in self.readable:
                    found[path] = first
        return [index.file_at(first) for first in found.values()]


def reject_unreadable(
    ledger: Ledger,
    index: MessageIndex,
    interval: Interval,
    *,
    now: int,
    rules: GroupSettings,
    error: str,
) -> tuple[Ledger, int]:
    """Make a damaged file's due messages dead, without a delivery, and count them."""

    def dead(r: Range) -> Range:
        return rejected(r, rules, UNREADABLE, error)

    return _replace_due(ledger, index, interval, now, dead, event="rejected")


def postpone_due(
    ledger: Ledger, index: MessageIndex, interval: Interval, *, now: int, until: int
) -> Ledger:
    """Let the due messages of a file wait until a time, with their counts and claims."""

    def later(r: Range) -> Range:
        return r._replace(state=AVAILABLE, available_at=until)

    return _replace_due(ledger, index, interval, now, later)[0]


def _replace_due(
    ledger: Ledger,
    index: MessageIndex,
    interval: Interval,
    now: int,
    become: Callable[[Range], Range],
    *,
    event: str = "",
) -> tuple[Ledger, int]:
    """Replace the due messages of an interval, and count them."""
    editor, total = LedgerEditor(ledger), 0
    for r in _due_or_unread(editor, index, now, interval):
        for low, high in subtract([(r.first, r.last)], [interval]):
            editor.add(_outside(r.slice(low, high, index)), r)
        inside = r.slice(*interval, index)
        if not inside.message_count:
            continue
        parts = split_by_time(inside, index, now, now)
        for piece in (*parts.later, *parts.expired):
            add_scheduled(editor, piece, r)
        for piece in parts.due:
            editor.add(become(piece), r, event)
            total += piece.message_count
    return (editor.build(), total) if total else (ledger, 0)


def _outside(piece: Range) -> Range:
    """Return a piece before the interval. The ledger has no unread range before another range."""
    return piece if piece.state == AVAILABLE else piece._replace(state=AVAILABLE, available_at=0)


def _due_or_unread(
    editor: LedgerEditor, index: MessageIndex, now: int, interval: Interval
) -> list[Range]:
    """Remove due ranges in an interval. Return them with the unread range."""
    ledger = editor.ledger
    near = list(ledger.overlapping(*interval))
    found = editor.remove(
        [
            row
            for row, r in zip(near, ledger.ranges_at(near), strict=True)
            if r.state == AVAILABLE and (r.available_at or 0) <= now
        ]
    )
    if unread := range_between(index, ledger.end_sequence + 1, interval[1], UNREAD):
        found.append(unread)
    return found
