"""Change a ledger for its owner: seek, unblock, pause and resume, and settle lost messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
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
)

__all__ = [
    "DROP",
    "RETRY",
    "ROUTE",
    "pause",
    "resume",
    "seek",
    "settle_lost",
    "unblock",
    "unsettled_ranges",
]

MAX_SKIPPED_INTERVALS: Final = 100
"""Skipped intervals that a group remembers, so that a later settle of them is refused."""

RETRY: Final = "retry"
DROP: Final = "drop"
ROUTE: Final = "dead_letter"

_MAX_SEQUENCE: Final = 2**63 - 1


def pause(ledger: Ledger, reason: str | None, now: int) -> Ledger:
    return _with_breaker(ledger, ledger.head.breaker.paused(reason, now))


def resume(ledger: Ledger) -> Ledger:
    """Allow new leases: end a pause, and close the breaker."""
    return _with_breaker(ledger, Breaker())


def _with_breaker(ledger: Ledger, breaker: Breaker) -> Ledger:
    return ledger.replaced(replace(ledger.head, breaker=breaker), ledger.events)


def seek(ledger: Ledger, index: MessageIndex, target: int) -> Ledger:
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
    before = subtract(known, [(target, _MAX_SEQUENCE)])
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


def unsettled_ranges(
    ledger: Ledger, index: MessageIndex, last: int, but: Sequence[str] = (SETTLED, TRANSFERRING)
) -> Iterable[Range]:
    """Yield the ranges up to `last` in no state of `but`, the unread messages as one range."""
    for r in ledger.ranges_at(list(ledger.overlapping(0, last))):
        if r.state not in but:
            piece = r.slice(r.first, min(r.last, last), index)
            if piece.message_count:
                yield piece
    if unread := range_between(index, ledger.end_sequence + 1, last, UNREAD):
        yield unread


def settle_lost(
    ledger: Ledger,
    index: MessageIndex,
    horizon: int,
    event: str = "lost",
    but: Sequence[str] = (SETTLED, TRANSFERRING, LEASED),  # a holder may have read its messages
) -> tuple[Ledger, int]:
    """Settle messages up to a trim horizon as lost, except in some states, and count them."""
    if horizon <= ledger.head.start_sequence:
        return ledger, 0
    editor, total = LedgerEditor(ledger), 0
    for piece in list(unsettled_ranges(ledger, index, horizon, but)):
        for row in ledger.overlapping(piece.first, piece.first):
            r = editor.remove([row])[0]
            editor.add(r.slice(piece.last + 1, r.last, index), r)
        editor.add(piece.as_settled(), piece, event)
        total += piece.message_count
    return editor.build(), total


def unblock(
    ledger: Ledger,
    index: MessageIndex,
    now: int,
    how: str,
    intervals: Sequence[Interval] | None = None,
) -> tuple[Ledger, int]:
    """Retry, drop or route blocked messages, or all with None. Return how many there were."""
    editor, total = LedgerEditor(ledger), 0
    rows = ledger.find((BLOCKED,))
    for row, r in zip(rows, ledger.ranges_at(rows), strict=True):
        whole = [(r.first, r.last)]
        wanted = whole if intervals is None else subtract(whole, subtract(whole, intervals))
        sliced = [r.slice(first, last, index) for first, last in wanted]
        pieces = [piece for piece in sliced if piece.message_count]
        if not pieces:
            continue
        editor.remove([row])
        for piece in pieces:
            editor.add(_unblocked(piece, now, how), piece, "unblocked")
            total += piece.message_count
        for first, last in subtract(whole, [(piece.first, piece.last) for piece in pieces]):
            editor.add(r.slice(first, last, index), r)
    return editor.build(), total


def _unblocked(r: Range, now: int, how: str) -> Range:
    if how == ROUTE:
        return r._replace(state=DEAD)
    if how == DROP:
        return r.as_settled()
    return Range(
        r.first,
        r.last,
        AVAILABLE,
        r.message_count,
        available_at=now,
        first_leased_at=r.first_leased_at,
        error=r.error,
    )
