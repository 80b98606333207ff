"""Apply the times ``deliver_at`` and ``expires_at`` of messages.

Files without such times cost nothing. A run of delayed messages in one file is one range. It is due
at the least of their times, and the next operation then splits it. Expired messages are settled or
dead when a lease would take them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.message_index import DeliveryTimes, MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, LEASED, SETTLED, UNREAD, Ledger, Range, range_between
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import expire, expired, is_late, record_expired_leases
from spark_mq.util.clock import MICROSECOND


@dataclass(slots=True)
class TimeSplit:
    """The pieces of a range by their times, each list in the order of sequence."""

    due: list[Range] = field(default_factory=list)  # as in the range, unread or available
    later: list[Range] = field(default_factory=list)  # available at their time
    expired: list[Range] = field(default_factory=list)  # settled, for :func:`add_scheduled`


def unread_range(ledger: Ledger, index: MessageIndex) -> Range | None:
    return range_between(index, ledger.end_sequence + 1, index.last_sequence, UNREAD)


def split_by_time(r: Range, index: MessageIndex, now: int, cutoff: int) -> TimeSplit:
    """Split a range by its messages' times: expired at `now`, due at `cutoff`, or delayed."""
    out = TimeSplit()
    if not index.has_times(r.first, r.last):
        out.due.append(r)
        return out
    for part in index.slices(r.first, r.last):
        rows = part.offset, part.offset + part.rows - 1
        begins = part.first - part.offset
        times = index.file_at(part.first).times
        for kind, low, high, at in _spans(times, rows, now, cutoff, delivered=was_due(r)):
            piece = r.at(begins + low, begins + high, high - low + 1)
            if kind == "expired":
                _append(out.expired, piece._replace(state=SETTLED, available_at=None), index)
            elif kind == "later":
                _append(out.later, piece._replace(state=AVAILABLE, available_at=at), index)
            else:
                _append(out.due, piece, index)
    return out


def was_due(r: Range) -> bool:
    return r.delivery_count > 0 or r.reason is not None


def _none_expired(times: DeliveryTimes, now: int) -> bool:
    return times.expires_from is None or times.expires_from > now


_TimeSpan = tuple[str, int, int, int | None]
"""A kind, the first and last row in the file, and the least deliver_at."""


def _spans(
    times: DeliveryTimes | None, rows: Interval, now: int, cutoff: int, *, delivered: bool
) -> list[_TimeSpan]:
    """Return spans of some rows of a file that are due, later or expired."""
    if times is None:
        return [("due", *rows, None)]
    if _none_expired(times, now):
        if delivered or times.due_to <= cutoff:
            return [("due", *rows, None)]
        if times.due_from > cutoff:
            return [("later", *rows, times.due_from)]
    spans: list[_TimeSpan] = []
    for low, high, deliver_at, expires_at in times.between(*rows):
        kind, at = "due", None
        if expires_at is not None and expires_at <= now:
            kind = "expired"
        elif deliver_at is not None and deliver_at > cutoff and not delivered:
            kind, at = "later", deliver_at
        if spans and spans[-1][0] == kind:
            _, first, _, least = spans[-1]
            spans[-1] = (kind, first, high, None if least is None or at is None else min(least, at))
        else:
            spans.append((kind, low, high, at))
    return spans


def add_scheduled(editor: LedgerEditor, piece: Range, before: Range, rules: GroupSettings) -> None:
    """Add a piece of a :class:`TimeSplit`. An expired one ends by the rules, with an event."""
    if piece.state == SETTLED:
        editor.add(expire(piece, rules), before, "expired")
    else:
        editor.add(piece, before)


def _append(pieces: list[Range], piece: Range, index: MessageIndex) -> None:
    """Append a piece, or extend the last one if they touch and are due at the same time."""
    last = pieces[-1] if pieces else None
    if (
        last is not None
        and last.available_at == piece.available_at
        and index.count(last.last + 1, piece.first - 1) == 0
    ):
        pieces.pop()
        count = last.message_count + piece.message_count
        piece = last._replace(last=piece.last, message_count=count)
    pieces.append(piece)


def split_due(
    ledger: Ledger, index: MessageIndex, now: int, cutoff: int, rules: GroupSettings
) -> Ledger:
    """Split the available ranges that are due by their least time, up to `cutoff`."""
    if not index.has_times_after(ledger.head.start_sequence):
        return ledger
    rows = ledger.find((AVAILABLE,), ("available_at", "<=", cutoff))
    if not rows:
        return ledger
    timed = _rows_with_times(ledger, index, rows)
    editor = LedgerEditor(ledger)
    for row, r in zip(timed, ledger.ranges_at(timed), strict=True):
        pieces = split_by_time(r, index, now, cutoff)
        if pieces.later or pieces.expired:
            editor.remove([row])
            for piece in (*pieces.due, *pieces.later, *pieces.expired):
                add_scheduled(editor, piece, r, rules)
    return editor.build()


def _rows_with_times(ledger: Ledger, index: MessageIndex, rows: list[int]) -> list[int]:
    """Return the rows with messages that have times, by a search of the shorter list."""
    files = index.timed_files(ledger.head.start_sequence)
    if len(files) < len(rows):
        near = {row for file in files for row in ledger.overlapping(file.first, file.last)}
        return [row for row in rows if row in near]
    firsts, lasts = ledger.first_sequences, ledger.last_sequences
    return [row for row in rows if index.has_times(firsts[row], lasts[row])]


def settle_expired_unread(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings
) -> Ledger:
    """End expired unread messages up to the first due one, for groups without leases."""
    editor = LedgerEditor(split_due(ledger, index, now, now, rules))
    first = index.first_at_or_after(ledger.end_sequence + 1)
    while first is not None and index.has_times(first, first):
        last = index.file_at(first).last
        unread = Range(first, last, UNREAD, last - first + 1)
        split = split_by_time(unread, index, now, now)
        for r in (*split.later, *split.expired):
            if not split.due or r.last < split.due[0].first:
                add_scheduled(editor, r, unread, rules)
        first = None if split.due else index.first_at_or_after(last + 1)
    return editor.build()


def settle_expired_held(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, lease_id: str
) -> Ledger:
    """End the expired messages of a lease whose deadline has passed."""
    if not index.has_times_after(ledger.head.start_sequence):
        return ledger
    editor, late = LedgerEditor(ledger), list[Range]()
    rows = _rows_with_times(ledger, index, ledger.rows_held(lease_id))
    for row, r in zip(rows, ledger.ranges_at(rows), strict=True):
        if r.state == LEASED and not is_late(r, now, rules):
            continue
        back = expired(r, rules) if r.state == LEASED else r
        if back.state != AVAILABLE or (back.available_at or 0) > now:
            continue
        ended = split_by_time(back, index, now, now).expired
        if not ended:
            continue
        editor.mark_removed(row)
        late += [r] if r.state == LEASED else []
        for piece in ended:
            add_scheduled(editor, piece, r, rules)
        for first, last in subtract(
            [(r.first, r.last)], [(part.first, part.last) for part in ended]
        ):
            editor.add(r.slice(first, last, index), r)
    record_expired_leases(editor, late, rules)
    return editor.build()


def next_due_at(ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int) -> int | None:
    """Return when time alone may make the next message due, in microseconds, or None."""
    ends = [ledger.minimum("available_at", (AVAILABLE,), ("available_at", ">", now))]
    deadline = ledger.minimum("expires_at", (LEASED,))
    if deadline is not None:
        ends.append(deadline + rules.clock_skew // MICROSECOND + 1)
    breaker = ledger.head.breaker
    if breaker.is_open(rules):
        ends.append(breaker.next_trial_at)
    if breaker.is_paused(now):
        ends.append(breaker.paused_until)
    if index.has_times_after(ledger.end_sequence) and (unread := unread_range(ledger, index)):
        ends += [r.available_at for r in split_by_time(unread, index, now, now).later]
    return min((end for end in ends if end is not None), default=None)
