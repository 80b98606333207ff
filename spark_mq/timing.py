"""Messages with a time of their own: not before ``deliver_at``, not after ``expires_at``. Pure, part of the ledger's rules.

Delayed messages cost nothing where there are none. Until due, a run of them in one file is one range, due at the least of their times;
then it is looked at again and split. What has expired is settled, with the outcome "expired", when it would be leased.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.draft import Draft
from spark_mq.index import CommitIndex
from spark_mq.ranges import WAITING, Ledger, Range

__all__ = ["Sorted", "ripen", "sort_out"]


@dataclass(slots=True)
class Sorted:
    """Messages by what their times say now, each list in the order of sequence."""

    due: list[Range] = field(default_factory=list)
    later: list[Range] = field(default_factory=list)
    expired: list[Range] = field(default_factory=list)


def sort_out(r: Range, index: CommitIndex, now: int, by: int) -> Sorted:
    """The messages of a waiting or unread range: due by `by`, later, or expired at `now` (microseconds)."""
    out = Sorted()
    for first, last, deliver_at, expires_at in index.runs(r.first, r.last):
        piece = replace(r, first=first, last=last, message_count=last - first + 1)
        if expires_at is not None and expires_at <= now:
            _add(out.expired, piece.settled(), index)
        elif deliver_at is not None and deliver_at > by and r.delivery_count == 0:
            _add(out.later, replace(piece, available_at=deliver_at), index)
        else:
            _add(out.due, piece, index)
    return out


def _add(pieces: list[Range], piece: Range, index: CommitIndex) -> None:
    """Adds a piece, as part of its neighbour if nothing lies between them and both are due at one time, or later in one file."""
    if pieces and index.count(pieces[-1].last + 1, piece.first - 1) == 0:
        before, first, second = pieces[-1], pieces[-1].available_at, piece.available_at
        if first == second or (first is not None and second is not None and index.file_at(before.first) is index.file_at(piece.first)):
            at = None if first is None or second is None else min(first, second)
            pieces[-1] = replace(before, last=piece.last, message_count=before.message_count + piece.message_count, available_at=at)
            return
    pieces.append(piece)


def ripen(ledger: Ledger, index: CommitIndex, now: int, by: int) -> Ledger:
    """Splits waiting ranges that are due by their least time into what really is, what is not yet, and what has expired."""
    if not index.timed_after(ledger.head.floor):
        return ledger
    due = pc.and_(ledger.is_state(WAITING), pc.less_equal(ledger.column("available_at").cast(pa.int64()), by))
    rows = ledger.where(due)
    timed = [row for row, r in zip(rows, ledger.select(rows), strict=True) if index.is_timed(r.first, r.last)]
    if not timed:
        return ledger
    draft = Draft(ledger)
    for r in draft.take(timed):
        pieces = sort_out(r, index, now, by)
        for piece in (*pieces.due, *pieces.later, *pieces.expired):
            draft.put(piece)
        draft.head = draft.head.counted("expired", sum(piece.message_count for piece in pieces.expired))
    return draft.finish()
