"""Take the messages of a lease from available and unread ranges."""

from __future__ import annotations

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import UNREAD, Ledger, Range
from spark_mq.ledger.schedule import TimeSplit, split_by_time

__all__ = ["fitting_bytes", "limit_bytes", "take_available", "take_unread"]


def take_available(
    editor: LedgerEditor, rows: list[int], limit: int, upto: int | None, index: MessageIndex
) -> list[Range]:
    """Take up to `limit` messages from rows that begin by `upto`. The rest stays."""
    counts, enough = editor.ledger.message_counts, 0
    for size, row in enumerate(rows):
        if enough >= limit:
            rows = rows[:size]
            break
        enough += counts[row]
    taken = editor.remove(rows)
    if taken:
        r = taken.pop()
        end = index.nth_from(r.first, r.message_count - max(0, enough - limit))
        if upto is not None:
            end = min(end, upto)
        editor.add(r.slice(end + 1, r.last, index), r)
        taken.append(r.slice(r.first, end, index))
    return taken


def take_unread(
    ledger: Ledger, index: MessageIndex, *, limit: int, end: int, now: int, cutoff: int
) -> tuple[TimeSplit, int]:
    """Return the first unread messages up to `end`, of which up to `limit` are due.

    The second value is the last sequence of the search. No other message up to it is due.
    """
    out, first, reach = TimeSplit(), index.first_at_or_after(ledger.tracked_up_to + 1), -1
    while limit > 0 and first is not None and first <= end:
        if not index.has_times_after(first - 1):  # all unread messages are one range
            count = min(limit, index.count(first, end))
            out.due.append(Range(first, index.nth_from(first, count), UNREAD, count))
            return out, end
        last = min(end, index.file_at(first).last)
        unread = Range(first, last, UNREAD, index.count(first, last))
        found = split_by_time(unread, index, now, cutoff)
        reach = last
        for r in found.due:
            if limit < r.message_count:
                reach = min(reach, r.first - 1 if limit == 0 else index.nth_from(r.first, limit))
            if limit > 0:
                stop = index.nth_from(r.first, min(limit, r.message_count))
                out.due.append(r.slice(r.first, stop, index))
                limit -= out.due[-1].message_count
        out.later += found.later
        out.expired += found.expired
        first = index.first_at_or_after(last + 1)
    return out, reach


def limit_bytes(
    editor: LedgerEditor, taken: list[Range], index: MessageIndex, max_bytes: int
) -> list[Range]:
    """Return the first messages of estimated `max_bytes`, and put the others back."""
    kept = fitting_bytes(taken, index, max_bytes)
    last = taken[len(kept) - 1]
    rest = last.slice(kept[-1].last + 1, last.last, index) if kept[-1].last < last.last else None
    for back in ([rest] if rest else []) + taken[len(kept) :]:
        if back.state != UNREAD:  # unread messages need no range
            editor.add(back, back)
    return kept


def fitting_bytes(taken: list[Range], index: MessageIndex, max_bytes: int) -> list[Range]:
    """Return the first messages of estimated `max_bytes`, and one at least."""
    kept: list[Range] = []
    for r in taken:
        fits, max_bytes = _fit_bytes(r, index, max_bytes)
        if fits == r.message_count:
            kept.append(r)
            continue
        if fits or not kept:
            kept.append(r.slice(r.first, index.nth_from(r.first, max(1, fits)), index))
        break
    return kept


def _fit_bytes(r: Range, index: MessageIndex, max_bytes: int) -> tuple[int, int]:
    """Return how many of the first messages fit, and the bytes that remain.

    It goes by file, because their message sizes differ.
    """
    fits = 0
    for piece in index.slices(r.first, r.last):
        if piece.size > max_bytes:
            return fits + piece.rows * max_bytes // piece.size, 0
        fits += piece.rows
        max_bytes -= piece.size
    return fits, max_bytes
