"""Walk over the unsettled messages of a group in order, and take those of open bands.

A band is open if no earlier message of it must be delivered first, and if no other lease holds its
lane.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, UNREAD, WAITING, Ledger, Range
from spark_mq.ledger.schedule import split_by_time

__all__ = ["MAX_PIECES", "BandWalk"]

MAX_PIECES: Final = 1_000
"""Pieces that a lease may take. More would make its commit large."""

_READ_ROWS: Final = 200


class BandWalk:
    """Takes the messages of a lease, one priority after the other.

    Parameters
    ----------
    ledger
        The group's ledger.
    index
        The message index.
    now, cutoff
        The current time, and until when a message must be due. Microseconds.
    end
        The last sequence that may be taken.
    limit
        The most messages.
    is_open
        The set of the bands that are open at the start.
    ordered
        Whether a message that is not taken closes its band.
    max_lanes
        The most lanes to take from.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        *,
        now: int,
        cutoff: int,
        end: int,
        limit: int,
        is_open: int,
        ordered: bool,
        max_lanes: int,
    ) -> None:
        self._ledger, self._index, self._now, self._cutoff = ledger, index, now, cutoff
        self._end, self.limit, self._is_open = end, limit, is_open
        self._ordered, self._max_lanes = ordered, max_lanes
        self._no_lane = index.layout.without_lane
        self.taken: list[tuple[int | None, Range]] = []
        """The pieces, each with the row that it lies in. None for an unread one."""
        self.lanes = 0
        """The set of the lanes that were taken from."""
        self._own = self._no_lane  # the bands of the lanes that were taken from
        self._bands: dict[int, int] = {}  # of rows
        self._unsettled = ledger.find((WAITING, BLOCKED)) if ordered else []

    @property
    def full(self) -> bool:
        """Return whether the walk may take no more."""
        return self.limit < 1 or len(self.taken) >= MAX_PIECES

    def take(self, bands: int, rows: Sequence[int], *, reads: bool, all_lanes: bool) -> None:
        """Take the messages of some bands, as far as they are open.

        Parameters
        ----------
        bands
            The set of the bands, all of one priority.
        rows
            The waiting rows to take from, in order.
        reads
            Whether to go on with unread messages.
        all_lanes
            Whether to take from any number of lanes.
        """
        lanes = self._max_lanes
        if all_lanes:
            self._max_lanes = self._index.layout.lanes
        is_open = self._visit_rows(self._is_open & bands, rows, to_end=reads)
        if reads and not self.full and is_open:
            self._visit_unread(is_open, self._index.layout.priorities_in(bands).bit_length() - 1)
        self._max_lanes = lanes

    def _visit_rows(self, is_open: int, rows: Sequence[int], *, to_end: bool) -> int:
        """Take from some rows. The others close their bands. Return what is open."""
        chosen = set(rows)
        last = rows[-1] if rows else -1
        ranges = _Ranges(self._ledger, rows)
        for row in self._unsettled if self._ordered else rows:
            if self.full or not is_open or (row > last and not to_end):
                break
            if row in chosen:
                is_open = self._take_range(row, ranges.at(row), is_open)
            elif is_open & ~self._no_lane:
                is_open = self._closed(is_open, self.bands_of_row(row))
        return is_open

    def bands_of_row(self, row: int) -> int:
        """Return the set of the bands of a row."""
        if row not in self._bands:
            first, last = self._ledger.first_sequences[row], self._ledger.last_sequences[row]
            self._bands[row] = self._index.bands_in(first, last)
        return self._bands[row]

    def _closed(self, is_open: int, bands: int) -> int:
        """Return what is open after messages of some bands that are not taken."""
        return is_open & ~(bands & ~self._no_lane) if self._ordered else is_open

    def _take_range(self, row: int | None, r: Range, is_open: int) -> int:
        """Take the runs of a range that are open. Return what is open after it."""
        end = min(r.last, self._end)
        for begins, bands, low, high in self._index.banded_pieces(r.first, end):
            if self.full or not is_open:
                return is_open
            found = bands.mask_of(low, high)
            wanted = found & is_open
            if bands.is_sorted and self._admits_all(wanted):
                for first, last in bands.stretches(low, high, wanted):
                    if self.full:
                        return is_open
                    last = min(last, first + self.limit - 1)
                    self._add(row, r, begins + first, begins + last)
                is_open = self._closed(is_open, found & ~wanted)
            else:
                place = (begins + low, begins + high)
                is_open = self._take_runs(row, r, place, is_open)
        if r.last > end:
            is_open = self._closed(is_open, self._index.bands_in(end + 1, r.last))
        return is_open

    def _admits_all(self, wanted: int) -> bool:
        """Return whether the lease may take from all lanes of some bands, and note that it does."""
        if not self._ordered:
            return True
        if not wanted & ~self._own:
            return True
        lanes = self.lanes | self._index.layout.lanes_in(wanted)
        if lanes.bit_count() > self._max_lanes:
            return False
        self._set_lanes(lanes)
        return True

    def _set_lanes(self, lanes: int) -> None:
        self.lanes = lanes
        self._own = self._index.layout.of_lanes(lanes) | self._no_lane

    def _take_runs(self, row: int | None, r: Range, place: Interval, is_open: int) -> int:
        """Take the runs of a piece of one file, one by one. Return what is open after it."""
        for number, first, last in self._index.band_runs(*place):
            if self.full or not is_open:
                return is_open
            bit = 1 << number
            if not is_open & bit or not self._admits(number):
                is_open = self._closed(is_open, bit)
                continue
            last = min(last, first + self.limit - 1)
            self._add(row, r, first, last)
        return is_open

    def _admits(self, number: int) -> bool:
        """Return whether the lease may take from the lane of a band, and note that it does."""
        lane = self._index.layout.lane_of(number)
        if lane is None or not self._ordered or self.lanes >> lane & 1:
            return True
        if self.lanes.bit_count() >= self._max_lanes:
            return False
        self._set_lanes(self.lanes | 1 << lane)
        return True

    def _add(self, row: int | None, r: Range, first: int, last: int) -> None:
        """Add a run, joined with the last piece if nothing lies between them."""
        count = last - first + 1
        self.limit -= count
        if self.taken and self.taken[-1][0] == row:
            before = self.taken[-1][1]
            if before.last < first and not self._index.count(before.last + 1, first - 1):
                first, count = before.first, before.message_count + count
                self.taken.pop()
        self.taken.append((row, r._replace(first=first, last=last, message_count=count)))

    def _visit_unread(self, is_open: int, priority: int) -> None:
        index = self._index
        start, end = self._ledger.tracked_up_to + 1, min(self._end, index.last_sequence)
        for first, last in index.files_with(priority, start, end):
            if self.full or not is_open:
                return
            unread = Range(first, last, UNREAD, last - first + 1)
            if index.has_times(first, last):
                is_open = self._visit_timed(unread, is_open)
            elif is_open & index.bands_in(first, last):
                is_open = self._take_range(None, unread, is_open)

    def _visit_timed(self, unread: Range, is_open: int) -> int:
        """Take from an unread file with times. Messages that are due later close their bands."""
        found = split_by_time(unread, self._index, self._now, self._cutoff)
        later = {r.first for r in found.later}
        for r in sorted((*found.due, *found.later), key=_first_of):
            if r.first in later:
                is_open = self._closed(is_open, self._index.bands_in(r.first, r.last))
            else:
                is_open = self._take_range(None, r, is_open)
        return is_open

    def pieces_by_row(self) -> dict[int, list[Interval]]:
        """Return what was taken from each row of the ledger."""
        found: dict[int, list[Interval]] = {}
        for row, piece in self.taken:
            if row is not None:
                found.setdefault(row, []).append((piece.first, piece.last))
        return found

    def unread_pieces(self) -> Iterable[Interval]:
        """Yield what was taken of unread messages."""
        return ((piece.first, piece.last) for row, piece in self.taken if row is None)


class _Ranges:
    """Reads some rows of a ledger, many at once."""

    def __init__(self, ledger: Ledger, rows: Sequence[int]) -> None:
        self._ledger, self._rows = ledger, rows
        self._known: dict[int, Range] = {}

    def at(self, row: int) -> Range:
        """Return the range in a row."""
        if row not in self._known:
            start = bisect_left(self._rows, row)
            some = self._rows[start : start + _READ_ROWS]
            self._known = dict(zip(some, self._ledger.ranges_at(some), strict=True))
        return self._known[row]


def _first_of(r: Range) -> int:
    return r.first
