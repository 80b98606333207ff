"""Walk over a group's messages, each piece with its state as views show it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.ranges import AVAILABLE, SETTLED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import split_by_time
from spark_mq.ledger.states import DELAYED, READY, UNSETTLED

__all__ = ["Piece", "range_of", "walk", "walk_unread"]


class Piece(NamedTuple):
    """Messages ``first..last`` in one of STATE_NAMES. Unread ones are ready or delayed."""

    state: str
    first: int
    last: int
    row: int | None  # of their range in the ledger; None if they are unread, or before its start
    due_at: int | None = None  # when they are due, if the range of delayed ones does not say it
    expired: bool = False  # past their ``expires_at``, which no commit has recorded yet

    @property
    def unread(self) -> bool:
        return self.row is None and self.state != SETTLED

    def has_state(self, state: str | None) -> bool:
        """Return whether the messages are in a state of STATE_NAMES. None matches all."""
        if state == UNREAD:
            return self.unread and self.state == READY
        return state in (None, self.state)


def walk(ledger: Ledger, index: MessageIndex, now: int, first: int = 0) -> Iterator[Piece]:
    """Yield a group's messages from a sequence on, in order.

    The caller has expired leases already. No range is read here, so a walk over a large ledger is
    cheap. :func:`range_of` reads the range of one piece.
    """
    start = ledger.head.start_sequence
    if settled := range_between(index, first, start, SETTLED):
        yield Piece(SETTLED, settled.first, settled.last, None)
    timed = index.has_times_after(start)
    states, firsts, lasts = _states(ledger, now), ledger.first_sequences, ledger.last_sequences
    for row in range(bisect_left(lasts, first), len(ledger)):
        state, low, high = states[row], firsts[row], lasts[row]
        if low < first:
            low = index.first_at_or_after(first) or high + 1
        if low > high:
            continue
        if timed and state == READY and index.has_times(low, high):
            yield from _split(ledger.range_at(row).slice(low, high, index), index, now, row)
        else:
            yield Piece(state, low, high, row)
    yield from walk_unread(index, max(first, ledger.end_sequence + 1), now)


def walk_unread(index: MessageIndex, first: int, now: int) -> Iterator[Piece]:
    """Yield the messages from a sequence on, none of which a group has leased, in order."""
    unread = range_between(index, first, index.last_sequence, UNREAD)
    if unread and index.has_times_after(first - 1):
        yield from _split(unread, index, now, None)
    elif unread:
        yield Piece(READY, unread.first, unread.last, None)


def _states(ledger: Ledger, now: int) -> list[str]:
    """Return the state of each range, with available ones as ready or delayed."""
    states = [str(SETTLED)] * len(ledger)
    shown = {state: ledger.find((state,)) for state in UNSETTLED}
    shown[DELAYED] = shown.pop(AVAILABLE)
    shown[READY] = ledger.find((AVAILABLE,), ("available_at", "<=", now))
    for state, rows in shown.items():
        name = str(state)
        for row in rows:
            states[row] = name
    return states


def _split(r: Range, index: MessageIndex, now: int, row: int | None) -> Iterator[Piece]:
    """Split a range that is unread or due, by the times of its messages."""
    found = split_by_time(r, index, now, now)
    pieces = [Piece(READY, one.first, one.last, row) for one in found.due]
    pieces += [Piece(DELAYED, one.first, one.last, row, one.available_at) for one in found.later]
    pieces += [Piece(SETTLED, one.first, one.last, row, expired=True) for one in found.expired]
    yield from sorted(pieces, key=lambda one: one.first)


def range_of(piece: Piece, ledger: Ledger, index: MessageIndex) -> Range:
    """Return the messages of a piece as a range with all that the ledger knows about them."""
    count = index.count(piece.first, piece.last)
    if piece.row is None:
        state = UNREAD if piece.unread else SETTLED
        return Range(piece.first, piece.last, state, count, available_at=piece.due_at)
    r = ledger.range_at(piece.row)._replace(first=piece.first, last=piece.last, message_count=count)
    return r if piece.due_at is None else r._replace(available_at=piece.due_at)
