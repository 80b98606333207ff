"""What its owner does to a group's ledger: seeks, cuts what is gone, and decides about what blocks. Pure, part of the ledger's rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, ROUTING, SETTLED, UNREAD, WAITING, Ledger, Range

__all__ = ["DROP", "RETRY", "ROUTE", "cut", "seek", "set_aside", "unblock", "unsettled"]

REMEMBERED: Final = 100
"""Skipped intervals that a group remembers, for whoever still settles what they hold."""

RETRY: Final = "retry"
DROP: Final = "drop"
ROUTE: Final = "dead_letter"


def seek(ledger: Ledger, index: MessageIndex, target: int) -> Ledger:
    """All before `target` is settled (skipped), all from it on is unread; leases are fenced, ``routing`` is left alone."""
    routing = ledger.select(ledger.where(ledger.is_state(ROUTING)))
    ranges: list[Range] = []
    reach = min([target, *(r.first for r in routing)])
    floor, forgotten = reach - 1, index.count(0, reach - 1)
    for r in routing:
        ranges += _sought(reach, r.first - 1, target, index)
        ranges.append(r)
        reach = r.last + 1
    # Past the last routing range only what is skipped needs a range: the rest is unread by being past the frontier.
    ranges += _sought(reach, target - 1, target, index)
    skipped = list(unsettled(ledger, index, target - 1))
    draft = LedgerEditor(ledger)  # for its events and counts
    for r in skipped:
        draft.note("skipped", r._replace(state=SETTLED))
    for r in ledger.select(ledger.where(ledger.is_state(LEASED))):
        if r.last >= target:
            draft.note("fenced", r.part(target, r.last, index)._replace(state=UNREAD))
    if (again := index.count(target, ledger.frontier)) > 0:
        draft.note("sought", Range(index.cut(target, 1), ledger.frontier, UNREAD, again))
    noted = draft.finish()
    remembered = subtract(normalise([*ledger.head.skipped, *((r.first, r.last) for r in skipped)]), [(target, 2**63 - 1)])
    head = replace(noted.head, floor=floor, forgotten=forgotten, skipped=tuple(remembered[-REMEMBERED:]))
    return Ledger.of(head, ranges, noted.events)


def _sought(first: int, last: int, target: int, index: MessageIndex) -> list[Range]:
    pieces = [(first, min(last, target - 1), SETTLED), (max(first, target), last, WAITING)]
    return [
        Range(index.cut(low, 1), index.cut(low, count), state, count, available_at=0 if state == WAITING else None)
        for low, high, state in pieces
        if (count := index.count(low, high))
    ]


def unsettled(ledger: Ledger, index: MessageIndex, last: int, but: Sequence[str] = (SETTLED, ROUTING)) -> Iterable[Range]:
    """The pieces up to `last` that are in none of some states, unread ones too."""
    for r in ledger.select(list(ledger.overlapping(0, last))):
        if r.state not in but and (piece := r.part(r.first, min(r.last, last), index)).message_count:
            yield piece
    first = ledger.frontier + 1
    if unread := index.count(first, last):
        yield Range(index.cut(first, 1), index.cut(first, unread), UNREAD, unread)


def cut(ledger: Ledger, index: MessageIndex, horizon: int) -> tuple[Ledger, int]:
    """Settles as lost what lies at or below a trim horizon, for its payload may be gone. Returns how many messages that were.

    Below the floor there is nothing to lose. What is leased stays so, for its holder may have read it; it is lost if it fails.
    """
    if horizon <= ledger.head.floor:
        return ledger, 0
    draft, total = LedgerEditor(ledger), 0
    for piece in list(unsettled(ledger, index, horizon, but=(SETTLED, ROUTING, LEASED))):
        for row in ledger.overlapping(piece.first, piece.first):
            r = draft.take([row])[0]
            draft.put(r.part(piece.last + 1, r.last, index))
        draft.put(piece.settled(), "lost", of=piece)
        total += piece.message_count
    return draft.finish(), total


def set_aside(ledger: Ledger, index: MessageIndex, routing_id: str, intervals: Sequence[Interval]) -> tuple[Ledger, int]:
    """Sets those messages of some intervals aside under a routing id that wait or are unread. Returns how many.

    What is unread below the last of them is written down as waiting.
    """
    draft, total = LedgerEditor(ledger), 0
    wanted = normalise(intervals)
    rows = sorted({row for first, last in wanted for row in ledger.overlapping(first, last)})
    open_ones = [(row, r) for row, r in zip(rows, ledger.select(rows), strict=True) if r.state == WAITING]
    draft.take([row for row, _ in open_ones])
    pieces = [r for _, r in open_ones]
    first, last = ledger.frontier + 1, max((last for _, last in wanted), default=-1)
    if unread := index.count(first, last):
        pieces.append(Range(index.cut(first, 1), index.cut(first, unread), WAITING, unread, available_at=0))
    for r in pieces:
        rest = subtract([(r.first, r.last)], wanted)
        for low, high in rest:
            if index.count(low, high):
                draft.put(r.part(low, high, index))
        for low, high in subtract([(r.first, r.last)], rest):
            if index.count(low, high):
                piece = r.part(low, high, index)
                draft.put(piece._replace(state=ROUTING, lease_id=routing_id, available_at=None), "set_aside")
                total += piece.message_count
    return (draft.finish(), total) if total else (ledger, 0)


def unblock(ledger: Ledger, index: MessageIndex, now: int, how: str, intervals: Sequence[Interval] | None = None) -> tuple[Ledger, int]:
    """Decides about blocked messages, all or those in some intervals: tried again with counts from zero, to the DLQ, or dropped.

    Returns how many.
    """
    draft, total = LedgerEditor(ledger), 0
    rows = ledger.where(ledger.is_state(BLOCKED))
    for row, r in zip(rows, ledger.select(rows), strict=True):
        wanted = [(r.first, r.last)] if intervals is None else subtract([(r.first, r.last)], subtract([(r.first, r.last)], intervals))
        pieces = [piece for first, last in wanted if (piece := r.part(first, last, index)).message_count]
        if not pieces:
            continue
        draft.take([row])
        for piece in pieces:
            draft.put(_unblocked(piece, now, how), "unblocked", of=piece)
            total += piece.message_count
        for first, last in subtract([(r.first, r.last)], [(piece.first, piece.last) for piece in pieces]):
            if index.count(first, last):
                draft.put(r.part(first, last, index))
    return draft.finish(), total


def _unblocked(r: Range, now: int, how: str) -> Range:
    if how == ROUTE:
        return r._replace(state=DEAD)
    if how == DROP:
        return r.settled()
    return Range(r.first, r.last, WAITING, r.message_count, available_at=now, first_leased_at=r.first_leased_at, error=r.error)
