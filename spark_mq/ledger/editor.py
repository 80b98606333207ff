"""Edit a ledger by removing ranges and adding their pieces."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Final

import pyarrow as pa

from spark_mq.ledger.intervals import Interval, normalise, split_at
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    AVAILABLE,
    FIELDS,
    SETTLED,
    UNREAD,
    Event,
    Ledger,
    LedgerHeader,
    Range,
    range_between,
    to_table,
)
from spark_mq.ledger.states import LEGAL_TRANSITIONS, illegal_transition
from spark_mq.util.columns import sort_rows

_OWN_NAMES: Final = ("acked", "skipped", "expired", "lost", "redriven")
END_REASONS: Final = {name: name for name in _OWN_NAMES} | {
    "routed": "dead_lettered",
    "filtered": "skipped",
    "replaced": "skipped",
    "other_group": "skipped",
}
"""The outcome of messages, by the event that settled them. Any other event dropped them."""

COUNTED: Final = ("leased", "replayed", "nacked", "rejected", "lease_expired", "released")
"""The events whose messages the header counts, for rates of deliveries and failures."""

# The places of the fields of the lease in a range, from its id up to its size.
_LEASE: Final = FIELDS.index("lease_id")
_SIZE: Final = FIELDS.index("lease_size")
_first_of: Final = attrgetter("first")
_Span = tuple[int, int, int]  # first sequence, last sequence, number of messages


def end_reason_of(event: str) -> str:
    return END_REASONS.get(event, "dropped")


class LedgerEditor:
    """Collect changes of a ledger and build the next one.

    A lease may take thousands of ranges, so no method runs a table operation for each of them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.head = ledger.head
        self._removed: set[int] = set()
        self._added: list[Range] = []
        self._events: list[Event] = []

    @property
    def changed(self) -> bool:
        edited = self._removed or self._added or self._events
        return bool(edited) or self.head != self.ledger.head

    def remove(self, rows: Sequence[int]) -> list[Range]:
        self._removed.update(rows)
        return self.ledger.ranges_at(rows)

    def mark_removed(self, row: int) -> None:
        """Remove the range in a row that the caller has read already."""
        self._removed.add(row)

    def cut(
        self,
        intervals: Iterable[Interval],
        index: MessageIndex,
        states: Collection[str],
        takes: Callable[[Range], bool] | None = None,
    ) -> Iterator[Range]:
        """Remove the messages of some intervals in some states, and yield their pieces of ranges.

        The others of each range stay, and so does a range that `takes` refuses. Unread messages
        before a piece become available.
        """
        wanted, ledger = normalise(intervals), self.ledger
        rows = sorted({row for first, last in wanted for row in ledger.overlapping(first, last)})
        before = ledger.values_at("state", rows)
        rows = [row for row, state in zip(rows, before, strict=True) if state in states]
        for row, r in zip(rows, ledger.ranges_at(rows), strict=True):
            if takes is not None and not takes(r):
                continue
            parts = _parts(r, wanted, index)
            if any(inside for inside, _ in parts):
                self._removed.add(row)
                for inside, piece in parts:
                    if inside:
                        yield piece
                    else:
                        self.add(piece, r)
        if UNREAD not in states or not wanted:
            return
        if unread := range_between(index, ledger.end_sequence + 1, wanted[-1][1], UNREAD):
            parts = _parts(unread, wanted, index)
            while parts and not parts[-1][0]:  # it stays unread
                parts.pop()
            for inside, piece in parts:
                if inside:
                    yield piece
                else:
                    self.add(piece._replace(state=AVAILABLE, available_at=0), unread)

    def add(self, piece: Range, before: Range, event: str = "", *, of_lease: bool = False) -> None:
        """Add a range made from `before`, with its event, unless empty. Raise IllegalTransition."""
        if piece.message_count <= 0:
            return
        if (before.state, piece.state) not in LEGAL_TRANSITIONS:
            raise illegal_transition(before.state, piece.state)
        if piece.state == SETTLED:
            self._added.append(Range(piece.first, piece.last, SETTLED, piece.message_count))
        else:
            self._added.append(piece)
        if event:
            happened = _as_event(piece, before)
            if of_lease and before.lease_size != 1:
                happened = happened._replace(suspect=True, lease_size=before.lease_size)
            self.record_event(event, happened)

    def replace(
        self, removed: Iterable[Range], become: Callable[[Range], Range], event: str = ""
    ) -> int:
        """Add what removed ranges become, with its event. Return the number of messages."""
        messages = 0
        for r in removed:
            self.add(become(r), r, event)
            messages += r.message_count
        return messages

    def record_event(self, event: str, r: Range) -> None:
        self._events.append((event, r))

    def build(self) -> Ledger:
        """Return the next ledger, sorted, with equal neighbours joined."""
        if not self.changed:
            return self.ledger
        merged = self._merge()
        head = self._raise_start(self._counted(), merged)
        ranges = self._table(merged) if self.ledger.rows is None else self._list(merged)
        return Ledger(head, ranges, [*self.ledger.events, *self._events])

    def _counted(self) -> LedgerHeader:
        """Return the header with the messages of the events, by outcome and by COUNTED event."""
        counters, happened = dict(self.head.counters), dict(self.head.happened)
        leases = happened.get("leases", 0)
        for event, r in self._events:
            if r.state == SETTLED:
                reason = end_reason_of(event)
                counters[reason] = counters.get(reason, 0) + r.message_count
            if event in COUNTED:
                happened[event] = happened.get(event, 0) + r.message_count
                if event == "leased":
                    happened["leases"] = leases + 1  # no build makes two
        if (counters, happened) == (self.head.counters, self.head.happened):
            return self.head
        return replace(self.head, counters=counters, happened=happened)

    def _raise_start(self, head: LedgerHeader, merged: list[Range]) -> LedgerHeader:
        """Drop a settled first range by raising the start."""
        ledger, lowest = self.ledger, None
        kept = next((row for row in range(ledger.size) if row not in self._removed), None)
        if kept is not None and (not merged or ledger.first_sequences[kept] < merged[0].first):
            if ledger.state_at(kept) == SETTLED:
                self._removed.add(kept)
                lowest = ledger.range_at(kept)
        elif merged and merged[0].state == SETTLED:
            lowest = merged.pop(0)
        if lowest is None:
            return head
        return replace(
            head,
            start_sequence=lowest.last,
            settled_count=head.settled_count + lowest.message_count,
        )

    def _merge(self) -> list[Range]:
        """Join the added ranges and equal neighbours in the ledger."""
        added = sorted(self._added, key=_first_of)
        near, apart = self._take_neighbours(added)
        of_ledger = {r.first for r in near}
        out: list[tuple[Range, _Span]] = []  # each range is made once, after its span is known
        for r in sorted([*added, *near], key=_first_of):
            span: _Span = (r.first, r.last, r.message_count)
            if out and out[-1][0].same_state_as(r):
                before = out[-1][0].first
                # Others may lie between two ranges of the ledger.
                others = of_ledger.issuperset((before, r.first))
                if not (others or bisect_left(apart, before) < bisect_left(apart, r.first)):
                    span = _join(out.pop()[1], span)
            out.append((r, span))
        return [_with_span(r, span) for r, span in out]

    def _take_neighbours(self, added: Sequence[Range]) -> tuple[list[Range], list[int]]:
        """Take out the ranges that may join sorted ones. Return them, and where others begin."""
        firsts = self.ledger.first_sequences
        starts = [bisect_left(firsts, r.first) for r in added]
        stops = [bisect_left(firsts, r.last + 1) for r in added]
        before = (range(*rows)[::-1] for rows in zip([0, *stops], starts, strict=False))
        after = (range(*rows) for rows in zip(stops, [*starts[1:], len(firsts)], strict=False))
        kept = {self._first_kept(rows) for rows in chain(before, after)}
        rows = sorted(row for row in kept if row is not None)
        if not rows:
            return [], []
        # Most have another state, so that nothing else of them need be read.
        states, found = {r.state for r in added}, self.ledger.values_at("state", rows)
        alike = [row for row, state in zip(rows, found, strict=True) if state in states]
        apart = [firsts[row] for row, state in zip(rows, found, strict=True) if state not in states]
        self._removed.update(alike)
        return self.ledger.ranges_at(alike), apart

    def _first_kept(self, rows: range) -> int | None:
        for row in rows:  # A plain loop, because it runs twice for each added range.
            if row not in self._removed:
                return row
        return None

    def _list(self, merged: list[Range]) -> list[Range]:
        removed, before = self._removed, self.ledger.rows or ()
        kept = [r for row, r in enumerate(before) if row not in removed]
        return sorted([*kept, *merged], key=_first_of)

    def _table(self, merged: list[Range]) -> pa.Table:
        """Return the ranges of the next ledger. Only the rows between the changes are rebuilt."""
        table, firsts = self.ledger.ranges, self.ledger.first_sequences
        ends = (*merged[:1], *merged[-1:])  # all others lie between
        places = [*self._removed, *(bisect_left(firsts, r.first) for r in ends)]
        if not places:
            return table
        start, stop = min(places), min(max(places) + 1, table.num_rows)
        kept = _all_but((row - start for row in self._removed), stop - start)
        between = table.slice(start, stop - start).filter(kept)
        if merged:
            between = pa.concat_tables([between, to_table(merged)]).combine_chunks()
            between = sort_rows(between, "first")
        return pa.concat_tables([table.slice(0, start), between, table.slice(stop)])


def _parts(r: Range, wanted: Sequence[Interval], index: MessageIndex) -> list[tuple[bool, Range]]:
    """Return the parts of a range inside and outside of wanted intervals, without empty ones."""
    runs = split_at(wanted, r.first, r.last)
    parts = [(inside, r.slice(first, last, index)) for inside, first, last in runs]
    return [part for part in parts if part[1].message_count]


def _as_event(piece: Range, before: Range) -> Range:
    """Return a range with its new state, and the lease that it had or has."""
    if piece.state == SETTLED and piece.reason is None:
        return Range._make((*piece[:_LEASE], *before[_LEASE:]))
    if piece.lease_id is not None or before.lease_id is None:
        return piece
    return Range._make((*piece[:_LEASE], *before[_LEASE:_SIZE], *piece[_SIZE:]))


def _with_span(piece: Range, span: _Span) -> Range:
    if span[2] == piece.message_count:
        return piece
    return piece.at(*span)


def _join(span: _Span, other: _Span) -> _Span:
    return min(span[0], other[0]), max(span[1], other[1]), span[2] + other[2]


def _all_but(rows: Iterable[int], length: int) -> pa.Array:
    """Return a mask of `length` that is false for some rows."""
    keep = bytearray(b"\x01") * length
    for row in rows:
        keep[row] = 0
    return pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(keep)]).cast(pa.bool_())
