"""List the candidates of a lease in order: the ranges that wait, then the unread messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import attrgetter, or_
from typing import Final

from spark_mq.ledger.intervals import Interval, split_at
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import split_by_time

__all__ = ["Candidates", "Part"]

Part = tuple[int, int, int]
"""The first and last sequence of messages, and the slots that they close.

No slots stand for messages that a lease may take. Only those that it may not take close slots.
"""

_CHUNK: Final = 500  # rows whose slots are looked up at once
_first_of: Final = attrgetter("first")


class Candidates:
    """The messages up to `end` that a lease may take, of `named` intervals alone if it is given.

    In an `ordered` group, all others that wait close their slots. Instants are microseconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        *,
        now: int,
        cutoff: int,
        end: int,
        ordered: bool,
        named: Sequence[Interval] | None = None,
    ) -> None:
        self.ledger, self.index, self.end = ledger, index, end
        self._now, self._cutoff, self.named = now, cutoff, named
        self.unread_from = ledger.end_sequence + 1
        self._closing = ledger.find((AVAILABLE, BLOCKED)) if ordered else None
        self._slots: dict[int, int] = {}  # by row, once they were needed

    def with_slots(self, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield rows and their slots. In an ordered group, these are all rows that close slots."""
        known, ledger = self._slots, self.ledger
        firsts, lasts = ledger.first_sequences, ledger.last_sequences
        rows = rows if self._closing is None else self._closing
        for at in range(0, len(rows), _CHUNK):
            some = rows[at : at + _CHUNK]
            if new := [row for row in some if row not in known]:
                known.update(zip(new, self.index.slots_of(firsts, lasts, new), strict=True))
            yield from ((row, known[row]) for row in some)

    def slots_in(self, rows: Sequence[int]) -> int:
        """Return the set of the slots of some rows."""
        ledger = self.ledger
        slots = self.index.slots_of(ledger.first_sequences, ledger.last_sequences, rows)
        return reduce(or_, slots, 0)

    def open_in(self, row: int, slots: int, is_open: int) -> int:
        """Return the open slots of a row from which a lease may take messages."""
        if self.named is None:
            return slots & is_open
        open_slots, ledger = 0, self.ledger
        no_lane = self.index.layout.without_lane
        for low, high, closed in self.of_row(row, ledger.first_sequences[row]):
            if closed:
                is_open &= ~closed | no_lane
            else:
                open_slots |= self.index.slots_in(low, high) & is_open
        return open_slots

    def of_row(self, row: int, first: int) -> Iterable[Part]:
        """Return the parts of a row from a sequence on."""
        return self._parts(first, self.ledger.last_sequences[row])

    def of_unread(self, first: int, last: int) -> Iterable[Part]:
        """Return the parts of unread messages, which lie in one file if some of them have times."""
        timed = self.index.has_times(first, last)
        return self._by_time(first, last) if timed else self._parts(first, last)

    def _by_time(self, first: int, last: int) -> Iterator[Part]:
        unread = Range(first, last, UNREAD, last - first + 1)
        split = split_by_time(unread, self.index, self._now, self._cutoff)
        later = {r.first for r in split.later}
        for r in sorted((*split.due, *split.later), key=_first_of):
            parts = self._closed if r.first in later else self._parts
            yield from parts(r.first, r.last)

    def _parts(self, first: int, last: int) -> Iterable[Part]:
        if self.named is None and last <= self.end:
            return ((first, last, 0),)
        return self._split(first, last)

    def _split(self, first: int, last: int) -> Iterator[Part]:
        """Split messages into those that a lease may take, and those that only close slots."""
        end = min(last, self.end)
        named = ((first, end),) if self.named is None else self.named
        for is_named, low, high in split_at(named, first, end):
            if is_named:
                yield low, high, 0
            else:
                yield from self._closed(low, high)
        if last > end:
            yield from self._closed(end + 1, last)

    def _closed(self, first: int, last: int) -> Iterator[Part]:
        """Yield messages that a lease may not take, if that closes their slots."""
        if self._closing is not None and (slots := self.index.slots_in(first, last)):
            yield first, last, slots
