"""Find the bands of messages, and remember them, because files never change."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, cast

from spark_mq.ledger.bands import BandLayout, FileBands, decode_bands
from spark_mq.ledger.data_files import FileList
from spark_mq.ledger.intervals import Interval

__all__ = ["BandIndex"]

_REMEMBERED_SETS: Final = 50_000
_REMEMBERED_FILES: Final = 1_000


class BandIndex:
    """The bands of files in sequence order. The list of files may grow."""

    def __init__(self, files: FileList, layout: BandLayout) -> None:
        self.files, self.layout = files, layout
        self._last_band = FileBands([layout.number(0, None)], [sys.maxsize])
        self._decoded: dict[int, FileBands] = {}  # by the first sequence of a file
        self._sets: dict[Interval, int] = {}  # of bands, by the messages of a range

    def band_runs(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(band, first, last)`` of the messages in ``first..last``, in order."""
        for at, begins, low, high in self._pieces(first, last):
            for number, start, end in self._bands_at(at).between(low, high):
                yield number, begins + start, begins + end

    def bands_in(self, first: int, last: int) -> int:
        """Return the set of the bands of the messages in ``first..last``."""
        # Each lease needs the same ranges again.
        found = self._sets.get((first, last))
        if found is None:
            found = 0
            for at, _, low, high in self._pieces(first, last):
                found |= self._bands_at(at).mask_of(low, high)
            if (count := len(self.files)) and last <= self.files.last_at(count - 1):
                if len(self._sets) >= _REMEMBERED_SETS:
                    self._sets.clear()
                self._sets[first, last] = found
        return found

    def bands_of(
        self, firsts: Sequence[int], lasts: Sequence[int], rows: Sequence[int]
    ) -> list[int]:
        """Return the set of bands of each row; `firsts` and `lasts` cover the whole ledger."""
        known, places = self._sets.get, [(firsts[row], lasts[row]) for row in rows]
        found = [known(place) for place in places]
        if None in found:
            return [self.bands_in(*place) for place in places]
        return cast(list[int], found)

    def banded_pieces(self, first: int, last: int) -> Iterator[tuple[int, FileBands, int, int]]:
        """Yield each file's first sequence, bands, and its first and last row in the range."""
        for at, begins, low, high in self._pieces(first, last):
            yield begins, self._bands_at(at), low, high

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each file's place, first sequence, and its first and last row in the range."""
        firsts, rows = self.files.firsts, self.files.rows
        low = max(0, bisect_right(firsts, first) - 1)
        for at in range(low, bisect_left(firsts, last + 1)):
            begins = firsts[at]
            start, end = max(first - begins, 0), min(last - begins, rows[at] - 1)
            if start <= end:
                yield at, begins, start, end

    def _bands_at(self, at: int) -> FileBands:
        first = self.files.firsts[at]
        if (known := self._decoded.get(first)) is not None:
            return known
        text = self.files.bands_of(first) if self.files.banded else ""
        if not text:
            return self._last_band
        if len(self._decoded) >= _REMEMBERED_FILES:
            self._decoded.clear()
        self._decoded[first] = found = decode_bands(text)
        return found

    def priorities_after(self, seq: int) -> int:
        """Return the priorities of the files that end after a sequence, and always 0."""
        found = 1
        for at in range(max(0, bisect_right(self.files.prioritised, seq) - 1), self._prioritised()):
            if self.files.last_of(self.files.prioritised[at]) > seq:
                found |= self.files.priorities[at]
        return found

    def _prioritised(self) -> int:
        return len(self.files.prioritised)

    def files_with(self, priority: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of files in ``first..last`` with a priority, of all files for 0."""
        if priority:
            files = self.files
            begin = max(0, bisect_right(files.prioritised, first) - 1)
            for at in range(begin, bisect_left(files.prioritised, last + 1)):
                start = files.prioritised[at]
                if files.priorities[at] >> priority & 1 and self.files.last_of(start) >= first:
                    yield max(first, start), min(last, self.files.last_of(start))
            return
        for _, begins, low, high in self._pieces(first, last):
            yield begins + low, begins + high
