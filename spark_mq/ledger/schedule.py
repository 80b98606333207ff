"""Messages with a time of their own: not before ``deliver_at``, not after ``expires_at``. Pure, part of the ledger's rules.

Delayed messages cost nothing where there are none. Until due, a run of them in one file is one range, due at the least of their times;
then it is looked at again and split. What has expired is settled, with the outcome "expired", when it would be leased.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import DeliveryTimes, MessageIndex
from spark_mq.ledger.ranges import LEASED, SETTLED, UNREAD, WAITING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings

__all__ = ["Sorted", "next_due", "put_aside", "ripen", "sort_out"]


@dataclass(slots=True)
class Sorted:
    """Messages by what their times say now, each list in the order of sequence."""

    due: list[Range] = field(default_factory=list)
    later: list[Range] = field(default_factory=list)
    expired: list[Range] = field(default_factory=list)


def sort_out(r: Range, index: MessageIndex, now: int, by: int) -> Sorted:
    """The messages of a waiting or unread range: due by `by`, later, or expired at `now` (microseconds)."""
    out = Sorted()
    if not index.is_timed(r.first, r.last):
        out.due.append(r)
        return out
    for piece in index.slices(r.first, r.last):
        file = index.file_at(piece.first)
        part = r._replace(first=piece.first, last=piece.first + piece.rows - 1, message_count=piece.rows)
        waits = r.delivery_count == 0  # what has been delivered was due
        if file.times is None or (_none_expired(file.times, now) and (not waits or file.times.due_to <= by)):
            _add(out.due, part, index)
        elif _none_expired(file.times, now) and file.times.due_from > by:
            _add(out.later, part._replace(available_at=file.times.due_from), index)
        else:
            _look_closer(out, part, index, now, by)
    return out


def _none_expired(times: DeliveryTimes, now: int) -> bool:
    return times.expires_from is None or times.expires_from > now


def _look_closer(out: Sorted, part: Range, index: MessageIndex, now: int, by: int) -> None:
    """Sorts out the messages of a piece of one file, run by run."""
    file = index.file_at(part.first)
    assert file.times is not None
    spans: list[tuple[str, int, int, int | None]] = []  # kind, first and last row, least deliver_at
    for low, high, deliver_at, expires_at in file.times.between(part.first - file.first, part.last - file.first):
        late = deliver_at is not None and deliver_at > by and part.delivery_count == 0
        kind, at = ("expired", None) if expires_at is not None and expires_at <= now else ("later", deliver_at) if late else ("due", None)
        if spans and spans[-1][0] == kind:
            _, first, _, least = spans[-1]
            spans[-1] = (kind, first, high, None if least is None or at is None else min(least, at))
        else:
            spans.append((kind, low, high, at))
    for kind, low, high, at in spans:
        piece = part._replace(first=file.first + low, last=file.first + high, message_count=high - low + 1)
        if kind == "expired":
            _add(out.expired, piece._replace(state=SETTLED, available_at=None), index)
        elif kind == "later":
            _add(out.later, piece._replace(available_at=at), index)
        else:
            _add(out.due, piece, index)


def put_aside(draft: LedgerEditor, piece: Range) -> None:
    """Puts in a sorted out piece, with the event if it has expired."""
    draft.put(piece, "expired" if piece.state == SETTLED else "")


def _add(pieces: list[Range], piece: Range, index: MessageIndex) -> None:
    """Adds a piece, as part of its neighbour if nothing lies between them and both are due at the same time."""
    if pieces and pieces[-1].available_at == piece.available_at and index.count(pieces[-1].last + 1, piece.first - 1) == 0:
        before = pieces.pop()
        piece = before._replace(last=piece.last, message_count=before.message_count + piece.message_count)
    pieces.append(piece)


def ripen(ledger: Ledger, index: MessageIndex, now: int, by: int) -> Ledger:
    """Splits waiting ranges that are due by their least time into what really is, what is not yet, and what has expired."""
    if not index.timed_after(ledger.head.floor):
        return ledger
    due = pc.and_(ledger.is_state(WAITING), pc.less_equal(ledger.column("available_at").cast(pa.int64()), by))
    rows = ledger.where(due)
    if not rows:
        return ledger
    files = index.timed_files(ledger.head.floor)
    if len(files) < len(rows):
        near = {row for file in files for row in ledger.overlapping(file.first, file.last)}
        timed = [row for row in rows if row in near]
    else:
        timed = [row for row in rows if index.is_timed(ledger.firsts[row], ledger.lasts[row])]
    draft = LedgerEditor(ledger)
    for row, r in zip(timed, ledger.select(timed), strict=True):
        pieces = sort_out(r, index, now, by)
        if pieces.later or pieces.expired:
            draft.take([row])
            for piece in (*pieces.due, *pieces.later, *pieces.expired):
                put_aside(draft, piece)
    return draft.finish()


def next_due(ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int) -> int | None:
    """When time alone may next make something due: a lease runs out, a delay ends. Microseconds; None if nothing is on its way."""
    deadlines = ledger.ranges.filter(ledger.is_state(LEASED))["expires_at"].cast("int64")
    delays = ledger.ranges.filter(ledger.is_state(WAITING))["available_at"].cast("int64")
    ends = [pc.min(delays.filter(pc.greater(delays, now))).as_py()]
    if len(deadlines):
        ends.append(pc.min(deadlines).as_py() + rules.clock_skew + 1)
    if index.timed_after(ledger.frontier):
        first = index.at_or_after(ledger.frontier + 1)
        if first is not None:
            unread = Range(first, index.tail, UNREAD, index.count(first, index.tail))
            ends += [r.available_at for r in sort_out(unread, index, now, now).later]
    return min((end for end in ends if end is not None), default=None)
