"""Apply the times ``deliver_at`` and ``expires_at`` of messages.

Files without such times cost nothing. A run of delayed messages in one file is one range. It is due
at the least of their times, and the next operation then splits it. Expired messages are settled or
dead when a lease would take them.
"""

from __future__ import annotations

from typing import Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.message_index import DeliveryTimes, MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, LEASED, SETTLED, UNREAD, Ledger, Range, range_between
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import expire, expired, is_late, record_expired_leases
from spark_mq.util.clock import MICROSECOND

DUE: Final = "due"
LATER: Final = "later"
EXPIRED: Final = "expired"
TimedPiece = tuple[str, Range]
"""A piece of a range: DUE as it is there, LATER available at its time, or EXPIRED as settled."""


def unread_range(ledger: Ledger, index: MessageIndex) -> Range | None:
    return range_between(index, ledger.end_sequence + 1, index.last_sequence, UNREAD)


def split_by_time(r: Range, index: MessageIndex, now: int, cutoff: int) -> list[TimedPiece]:
    """Split a range by its messages' times: expired at `now`, due at `cutoff`, or later."""
    if not index.has_times(r.first, r.last):
        return [(DUE, r)]
    pieces: list[TimedPiece] = []
    for part in index.slices(r.first, r.last):
        rows = part.offset, part.offset + part.rows - 1
        begins = part.first - part.offset
        times = index.file_at(part.first).times
        for when, low, high, at in _spans(times, rows, now, cutoff, delivered=was_due(r)):
            piece = r.at(begins + low, begins + high, high - low + 1)
            if when == EXPIRED:
                piece = piece._replace(state=SETTLED, available_at=None)
            elif when == LATER:
                piece = piece._replace(state=AVAILABLE, available_at=at)
            _append(pieces, when, piece)
    return pieces


def was_due(r: Range) -> bool:
    return r.delivery_count > 0 or r.reason is not None


def _none_expired(times: DeliveryTimes, now: int) -> bool:
    return times.expires_from is None or times.expires_from > now


_TimeSpan = tuple[str, int, int, int | None]
"""DUE, LATER or EXPIRED, the first and last row in the file, and the least deliver_at."""


def _spans(
    times: DeliveryTimes | None, rows: Interval, now: int, cutoff: int, *, delivered: bool
) -> list[_TimeSpan]:
    """Return spans of some rows of a file that are due, later or expired."""
    if times is None:
        return [(DUE, *rows, None)]
    if _none_expired(times, now):
        if delivered or times.due_to <= cutoff:
            return [(DUE, *rows, None)]
        if times.due_from > cutoff:
            return [(LATER, *rows, times.due_from)]
    spans: list[_TimeSpan] = []
    for low, high, deliver_at, expires_at in times.between(*rows):
        when, at = DUE, None
        if expires_at is not None and expires_at <= now:
            when = EXPIRED
        elif deliver_at is not None and deliver_at > cutoff and not delivered:
            when, at = LATER, deliver_at
        if spans and spans[-1][0] == when:
            _, first, _, least = spans[-1]
            spans[-1] = (when, first, high, None if least is None or at is None else min(least, at))
        else:
            spans.append((when, low, high, at))
    return spans


def add_scheduled(editor: LedgerEditor, piece: Range, before: Range, rules: GroupSettings) -> None:
    """Add a piece that is not due by its times. An expired one ends by the rules, with an event."""
    if piece.state == SETTLED:
        editor.add(expire(piece, rules), before, "expired")
    else:
        editor.add(piece, before)


def _append(pieces: list[TimedPiece], when: str, piece: Range) -> None:
    """Append a piece, or extend the last one if they are due at the same time."""
    if pieces and (pieces[-1][0], pieces[-1][1].available_at) == (when, piece.available_at):
        _, last = pieces.pop()
        count = last.message_count + piece.message_count
        piece = last._replace(last=piece.last, message_count=count)
    pieces.append((when, piece))


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
        if any(when != DUE for when, _ in pieces):
            editor.mark_removed(row)
            for _, piece in pieces:
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
    for part in index.slices(ledger.end_sequence + 1, index.last_sequence):
        unread = Range(part.first, part.last, UNREAD, part.rows)
        for when, r in split_by_time(unread, index, now, now):
            if when == DUE:
                return editor.build()
            add_scheduled(editor, r, unread, rules)
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
        if back.state != AVAILABLE:
            continue
        split = split_by_time(back, index, now, now)
        ended = [piece for when, piece in split if when == EXPIRED]
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
        split = split_by_time(unread, index, now, now)
        ends += [r.available_at for when, r in split if when == LATER]
    return min((end for end in ends if end is not None), default=None)
