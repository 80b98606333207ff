"""Changes on the way from one ledger to the next: ranges are taken out, cut, put back, and joined with their neighbours."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from spark_mq.ledger.ranges import SETTLED, Event, Ledger, Range, to_table

__all__ = ["OUTCOMES", "LedgerEditor", "outcome_of"]

OUTCOMES: Final = {name: name for name in ("acked", "skipped", "expired", "lost", "redriven")} | {"routed": "dead_lettered"}
"""How messages ended, by the event that settled them. By any other they were dropped, as their group wants it at the attempt limit."""

_Span = tuple[int, int, int]
"""First and last sequence, and how many messages."""


def outcome_of(event: str) -> str:
    """How messages ended that the event settled."""
    return OUTCOMES.get(event, "dropped")


class LedgerEditor:
    """Changes on the way from one ledger to the next: rows are taken out, changed ranges put in.

    Leases of thousands of ranges are normal in a ledger of many holes, so nothing here may cost a table operation a range.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.head = ledger.head
        self._taken: set[int] = set()
        self._put: list[Range] = []
        self._events: list[Event] = []

    @property
    def changed(self) -> bool:
        return bool(self._taken or self._put or self._events) or self.head != self.ledger.head

    def take(self, rows: Sequence[int]) -> list[Range]:
        """Takes ranges out. What of them is to stay must be put back."""
        self._taken.update(rows)
        return self.ledger.select(rows)

    def put(self, piece: Range, event: str = "", of: Range | None = None) -> None:
        """Puts a range in; one without messages is left out. Of one that is settled all else is forgotten.

        ``event``: what happened to it, if anything did; ``of``: the range as it was, where the new one does not tell whose it was.
        """
        if piece.message_count <= 0:
            return
        self._put.append(piece.settled() if piece.state == SETTLED else piece)
        if event:
            self.note(event, _as_event(piece, of or piece))

    def note(self, event: str, r: Range) -> None:
        """Notes an event of some messages."""
        self._events.append((event, r))

    def finish(self) -> Ledger:
        """The next ledger: sorted, neighbours merged, what is settled at its start below the floor."""
        if not self.changed:
            return self.ledger
        merged = self._merge()
        ended: Counter[str] = Counter()
        for event, r in self._events:
            if r.state == SETTLED:
                ended[outcome_of(event)] += r.message_count
        head = self.head.counted(ended)
        first_left = next((row for row in range(len(self.ledger)) if row not in self._taken), None)
        if first_left is not None and (not merged or self.ledger.firsts[first_left] < merged[0].first):
            lowest = self.ledger.at(first_left)
            if lowest.state == SETTLED:
                self._taken.add(first_left)
                head = replace(head, floor=lowest.last, forgotten=head.forgotten + lowest.message_count)
        elif merged and merged[0].state == SETTLED:
            lowest = merged.pop(0)
            head = replace(head, floor=lowest.last, forgotten=head.forgotten + lowest.message_count)
        return Ledger(head, self._table(merged), [*self.ledger.events, *self._events])

    def _merge(self) -> list[Range]:
        """The ranges put in, joined with each other and with untouched neighbours that are alike."""
        firsts = self.ledger.firsts
        out: list[tuple[Range, _Span]] = []  # what it is, and where: joined ranges are made once, at the end
        puts = sorted(self._put, key=lambda r: r.first)
        for at, piece in enumerate(puts):
            span: _Span = (piece.first, piece.last, piece.message_count)
            lowest = out[-1][1][1] if out else -1
            before = self._untouched(range(bisect_left(firsts, piece.first) - 1, bisect_right(firsts, lowest) - 1, -1))
            if before is not None:
                span = self._join_row(before, piece, span)
            elif out and out[-1][0].alike(piece):
                span = _join(out.pop()[1], span)
            stop = bisect_left(firsts, puts[at + 1].first) if at + 1 < len(puts) else len(firsts)
            after = self._untouched(range(bisect_left(firsts, piece.last + 1), stop))
            if after is not None:
                span = self._join_row(after, piece, span)
            out.append((piece, span))
        return [
            piece if span[2] == piece.message_count else piece._replace(first=span[0], last=span[1], message_count=span[2])
            for piece, span in out
        ]

    def _untouched(self, rows: range) -> int | None:
        for row in rows:  # no generator: it is asked twice for each range that is put
            if row not in self._taken:
                return row
        return None

    def _join_row(self, row: int, piece: Range, span: _Span) -> _Span:
        """The piece's span, with that of the untouched range of the row if it is alike."""
        ledger = self.ledger
        # Neighbours mostly differ in state, and settled ranges in nothing: both are told without making a Range.
        if ledger.state_at(row) != piece.state or (piece.state != SETTLED and not ledger.at(row).alike(piece)):
            return span
        self._taken.add(row)
        return _join((ledger.firsts[row], ledger.lasts[row], ledger.counts[row]), span)

    def _table(self, merged: list[Range]) -> pa.Table:
        """The ledger's ranges without what was taken, with what was put. Only rows between the first and last of these change."""
        table, firsts = self.ledger.ranges, self.ledger.firsts
        places = [*self._taken, *(bisect_left(firsts, r.first) for r in (*merged[:1], *merged[-1:]))]
        if not places:
            return table
        start, stop = min(places), min(max(places) + 1, table.num_rows)
        between = table.slice(start, stop - start).filter(_all_but((row - start for row in self._taken), stop - start))
        if merged:
            between = pa.concat_tables([between, to_table(merged)]).sort_by("first")
        return pa.concat_tables([table.slice(0, start), between, table.slice(stop)])


def _as_event(piece: Range, was: Range) -> Range:
    """What is told of a range: what it is now, and whose it was."""
    if piece.state == SETTLED and piece.reason is None:
        return was._replace(state=SETTLED)
    if piece.lease_id == was.lease_id and piece.worker_id == was.worker_id:
        return piece
    return piece._replace(lease_id=was.lease_id, worker_id=was.worker_id, leased_at=was.leased_at, expires_at=was.expires_at)


def _join(one: _Span, other: _Span) -> _Span:
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2]


def _all_but(rows: Iterable[int], length: int) -> pa.Array:
    """A mask of `length` that holds for all but some rows."""
    keep = bytearray(b"\x01") * length
    for row in rows:
        keep[row] = 0
    return pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(keep)]).cast(pa.bool_())
