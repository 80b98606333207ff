"""Find the slots of messages, and remember them, because files never change."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, cast

from spark_mq.ledger.data_files import FileList
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.slots import FileSlots, SlotLayout, decode_slots

__all__ = ["SlotIndex"]

_REMEMBERED_SETS: Final = 50_000
_REMEMBERED_FILES: Final = 1_000


class SlotIndex:
    """The slots of files in sequence order. The list of files may grow."""

    def __init__(self, files: FileList, layout: SlotLayout) -> None:
        self.files, self.layout = files, layout
        self._last_slot = FileSlots([layout.number(0, None)], [sys.maxsize])
        self._decoded: dict[int, FileSlots] = {}  # by the first sequence of a file
        self._sets: dict[Interval, int] = {}  # of slots, by the messages of a range

    def slot_runs(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(slot, first, last)`` of the messages in ``first..last``, in order."""
        for at, begins, low, high in self._pieces(first, last):
            for number, start, end in self._slots_at(at).between(low, high):
                yield number, begins + start, begins + end

    def slots_in(self, first: int, last: int) -> int:
        """Return the set of the slots of the messages in ``first..last``."""
        # Each lease needs the same ranges again.
        found = self._sets.get((first, last))
        if found is None:
            found = 0
            for at, _, low, high in self._pieces(first, last):
                found |= self._slots_at(at).mask_of(low, high)
            if (count := len(self.files)) and last <= self.files.last_at(count - 1):
                if len(self._sets) >= _REMEMBERED_SETS:
                    self._sets.clear()
                self._sets[first, last] = found
        return found

    def slots_of(
        self, firsts: Sequence[int], lasts: Sequence[int], rows: Sequence[int]
    ) -> list[int]:
        """Return the set of slots of each row; `firsts` and `lasts` cover the whole ledger."""
        known, places = self._sets.get, [(firsts[row], lasts[row]) for row in rows]
        found = [known(place) for place in places]
        if None in found:
            return [self.slots_in(*place) for place in places]
        return cast(list[int], found)

    def pieces_with_slots(self, first: int, last: int) -> Iterator[tuple[int, FileSlots, int, int]]:
        """Yield each file's first sequence, slots, and its first and last row in the range."""
        for at, begins, low, high in self._pieces(first, last):
            yield begins, self._slots_at(at), low, high

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each file's place, first sequence, and its first and last row in the range."""
        firsts, rows = self.files.firsts, self.files.rows
        low = max(0, bisect_right(firsts, first) - 1)
        for at in range(low, bisect_left(firsts, last + 1)):
            begins = firsts[at]
            start, end = max(first - begins, 0), min(last - begins, rows[at] - 1)
            if start <= end:
                yield at, begins, start, end

    def _slots_at(self, at: int) -> FileSlots:
        first = self.files.firsts[at]
        if (known := self._decoded.get(first)) is not None:
            return known
        text = self.files.slots_of(first) if self.files.with_slots else ""
        if not text:
            return self._last_slot
        if len(self._decoded) >= _REMEMBERED_FILES:
            self._decoded.clear()
        self._decoded[first] = found = decode_slots(text)
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
