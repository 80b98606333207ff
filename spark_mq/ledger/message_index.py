"""Define the message index, from sequences to files of commits.

A message's sequence is ``version << 32 | ordinal``. The version is the Delta commit that added it.
The ordinal is its row over the commit's ``add`` actions in file order. The ledger needs the index
to count the messages of a range and to split it.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final, cast

from spark_mq.ledger.data_files import DataFile, FileColumns, FileList
from spark_mq.ledger.delivery_times import DeliveryTimes, TimedRun
from spark_mq.ledger.intervals import Interval, intersect, normalise
from spark_mq.ledger.replaced import decode_replaced
from spark_mq.ledger.slots import FileSlots, SlotLayout, decode_slots

__all__ = [
    "DataFile",
    "DeliveryTimes",
    "FileColumns",
    "FileSlice",
    "MessageIndex",
    "TimedRun",
    "sequence",
]

_REMEMBERED_SETS: Final = 50_000
_REMEMBERED_FILES: Final = 1_000
_BLOCK: Final = 64  # neighbouring files whose slots are looked at together

ORDINAL_BITS: Final = 32


def sequence(version: int, ordinal: int) -> int:
    return version << ORDINAL_BITS | ordinal


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Some consecutive rows of a data file."""

    path: str  # relative to ``messages/``
    offset: int  # the first row, from 0
    rows: int
    first: int  # the sequence of the first row
    committed_at: int  # microseconds since 1970
    size: int  # estimated bytes, by the rows' share of the file's size

    def part(self, start: int, rows: int) -> FileSlice:
        """Return some rows of the slice. `start` counts from its first row."""
        size = self.size * rows // max(1, self.rows)
        return replace(
            self, offset=self.offset + start, rows=rows, first=self.first + start, size=size
        )


class MessageIndex:
    """All published files of the commits up to `version`, in sequence order.

    Files that every group has settled and that were trimmed may be forgotten, up to `forgotten_to`.
    Their messages count as messages at sequence 0.
    """

    def __init__(
        self,
        files: Iterable[DataFile] = (),
        version: int = -1,
        *,
        forgotten_to: int = -1,
        forgotten: int = 0,
        lanes: int = 0,
    ) -> None:
        self.files = FileList(forgotten)
        self.layout = SlotLayout(lanes)
        self._last_slot = FileSlots([self.layout.number(0, None)], [sys.maxsize])
        self._decoded: dict[int, FileSlots] = {}  # by the first sequence of a file
        self._sets: dict[Interval, int] = {}  # of slots, by the messages of a range
        self._blocks: dict[int, int] = {}  # sets of slots, by the number of a whole block
        # The number of files of batches, and the messages of each batch.
        self._batches: tuple[int, dict[str, list[Interval]]] = (0, {})
        # What later messages replace, by the first sequence of its file, and the last of it.
        self._replaced: dict[int, list[Interval]] = {}
        self._last_replaced = -1
        self._replacing = 0  # the files that were looked at for it
        self._lock = threading.Lock()  # of these
        self.version = version
        self.forgotten_to = forgotten_to
        self.forgotten = forgotten
        self.extend(files, version)

    def extend(self, files: Iterable[DataFile], version: int) -> None:
        """Add the files of commits up to `version`, in order, all or none."""
        new, last = [file for file in files if file.rows], self.last_sequence
        for file in new:
            if file.first <= last:
                raise ValueError(f"files out of order: {file.first} after {last}")
            last = file.last
        self.files.extend(new)
        self.version = max(self.version, version)

    def extend_columns(self, columns: FileColumns, version: int) -> None:
        firsts, rows = columns.firsts, columns.rows
        if firsts and firsts[0] <= self.last_sequence:
            raise ValueError(f"files out of order: {firsts[0]} after {self.last_sequence}")
        for at in range(1, len(firsts)):
            if firsts[at] < firsts[at - 1] + rows[at - 1]:
                raise ValueError(f"files out of order: {firsts[at]} after {firsts[at - 1]}")
        self.files.extend_columns(columns)
        self.version = max(self.version, version)

    def without_settled(self, up_to: int) -> MessageIndex:
        """Return an index without commits up to a sequence, but with the last one of messages."""
        start = self._forgettable(up_to)
        if not start:
            return self
        kept = MessageIndex(version=self.version, lanes=self.layout.lanes)
        kept.forgotten_to, kept.forgotten = self._last_at(start - 1), self.files.before[start]
        kept.files = self.files.tail(start)
        return kept

    def _forgettable(self, up_to: int) -> int:
        files = self.files
        if not files:
            return 0
        newest = bisect_left(files.firsts, sequence(files.firsts[-1] >> ORDINAL_BITS, 0))
        return min(newest, self.count_whole_commits(up_to))

    def count_whole_commits(self, up_to: int) -> int:
        """Return the number of files of commits that end at or below a sequence."""
        files = self.files
        at = bisect_right(files.firsts, up_to)
        if at and self._last_at(at - 1) > up_to:
            at -= 1
        if at == len(files.firsts):
            return at
        return bisect_left(files.firsts, sequence(files.firsts[at] >> ORDINAL_BITS, 0))

    def _last_at(self, at: int) -> int:
        files = self.files
        return files.firsts[at] + files.rows[at] - 1

    @property
    def last_sequence(self) -> int:
        """Return the last published sequence, or -1."""
        files = self.files
        return self._last_at(len(files.firsts) - 1) if len(files.firsts) else self.forgotten_to

    @property
    def total(self) -> int:
        """Return the number of messages, with the forgotten ones."""
        return self.files.total

    def _messages_up_to(self, seq: int) -> int:
        files = self.files
        at = bisect_right(files.firsts, seq) - 1
        if at < 0:
            return self.forgotten if seq >= 0 else 0
        return files.before[at] + min(seq - files.firsts[at] + 1, files.rows[at])

    def count(self, first: int, last: int) -> int:
        """Count the messages in ``first..last``, inclusive."""
        at = bisect_right(self.files.firsts, first) - 1
        if at >= 0 and first <= last <= self._last_at(at):
            return last - first + 1
        if last < first:
            return 0
        return max(0, self._messages_up_to(last) - self._messages_up_to(first - 1))

    def nth_from(self, first: int, count: int) -> int:
        """Return the `count`-th message, from 1, at or after `first`, or raise IndexError."""
        rank = self._messages_up_to(first - 1) + count - 1
        if count < 1 or not self.forgotten <= rank < self.total:
            raise IndexError(f"no {count} messages from {first} on")
        at = bisect_right(self.files.before, rank) - 1
        return self.files.firsts[at] + rank - self.files.before[at]

    def first_at_or_after(self, seq: int) -> int | None:
        firsts = self.files.firsts
        at = bisect_right(firsts, seq) - 1
        if at >= 0 and seq <= self._last_at(at):
            return seq
        return firsts[at + 1] if at + 1 < len(firsts) else None

    def last_at_or_before(self, seq: int) -> int | None:
        at = bisect_right(self.files.firsts, seq) - 1
        return min(seq, self._last_at(at)) if at >= 0 else None

    def first_published_since(self, instant: int) -> int:
        """Return the first sequence published at or after an instant, or that after the last."""
        # No bisect, because commit times may step back if clocks differ.
        pairs = zip(self.files.firsts, self.files.committed_at, strict=False)
        later = (first for first, committed_at in pairs if committed_at >= instant)
        return next(later, self.last_sequence + 1)

    def last_of_older(self, instant: int) -> int:
        """Return the last sequence before the first commit after an instant, or -1."""
        times = self.files.committed_at
        at = next((at for at, committed_at in enumerate(times) if committed_at > instant), None)
        count = len(self.files.firsts) if at is None else at
        return self._last_at(count - 1) if count else self.forgotten_to

    def slices(self, first: int, last: int) -> Iterator[FileSlice]:
        """Yield the file slices with the messages of ``first..last``, in order."""
        files = self.files
        for at, begins, low, high in self._pieces(first, last):
            rows = high - low + 1
            size = files.sizes[at] * rows // files.rows[at]
            path, committed_at = files.paths[at], files.committed_at[at]
            yield FileSlice(path, low, rows, begins + low, committed_at, size)

    def paths_in(self, first: int, last: int) -> Iterator[tuple[str, int]]:
        """Yield each file's path in ``first..last``, and its first sequence there."""
        for at, begins, low, _ in self._pieces(first, last):
            yield self.files.paths[at], begins + low

    def has_times(self, first: int, last: int) -> bool:
        """Return whether a file in ``first..last`` has a deliver_at or expires_at."""
        timed = self.files.timed
        at = max(0, bisect_right(timed, first) - 1)  # one file before and one file after
        return any(seq <= last and self.files.last_of(seq) >= first for seq in timed[at : at + 2])

    def has_times_after(self, seq: int) -> bool:
        """Return whether a file with times ends after `seq`."""
        timed = self.files.timed
        return bool(timed) and self.files.last_of(timed[-1]) > seq

    def timed_files(self, after: int) -> list[DataFile]:
        """Return the files with times that end after a sequence."""
        timed = self.files.timed
        start = max(0, bisect_right(timed, after) - 1)
        files = (self.file_at(seq) for seq in timed[start:] if self.files.last_of(seq) > after)
        return [file for file in files if file.times is not None]

    def file_at(self, seq: int) -> DataFile:
        """Return the file with a message, or the one before a gap. Raise IndexError if none is."""
        file = self.last_file_from(seq)
        if file is None:
            raise IndexError(f"no file begins at or before {seq}")
        return file

    def last_file_from(self, seq: int) -> DataFile | None:
        """Return the last file that begins at or before a sequence, or None."""
        at = bisect_right(self.files.firsts, seq) - 1
        return self.files[at] if at >= 0 else None

    def may_have(self, first: int, path: str) -> bool:
        """Return whether a file has this first sequence and path, or may be forgotten."""
        file = self.last_file_from(first)
        if file is None:
            return first <= self.forgotten_to
        return file.first == first and file.path == path

    def batches(self) -> dict[str, list[Interval]]:
        """Return the messages of each message batch as intervals, neighbouring files as one.

        Callers share the result, so they do not change it.
        """
        count = len(self.files.batches.firsts)
        if self._batches[0] == count:
            return self._batches[1]
        found: dict[str, list[Interval]] = {}
        before: dict[str, int] = {}  # the place of the last file of each
        for first, name in self.files.batches.items():
            at = bisect_left(self.files.firsts, first)
            if at == len(self.files.firsts):
                return found  # another thread is about to add it
            intervals, last = found.setdefault(name, []), self._last_at(at)
            if before.get(name) == at - 1:
                intervals[-1] = (intervals[-1][0], last)
            else:
                intervals.append((first, last))
            before[name] = at
        self._batches = count, found
        return found

    def replaced_after(self, seq: int) -> Mapping[int, Sequence[Interval]]:
        """Return the messages that later ones replace, by the first sequence of their file.

        It is empty if none of them lies after a sequence.
        """
        if self._replacing < len(self.files.replacing.firsts):
            with self._lock:
                self._find_replaced()
        return self._replaced if self._last_replaced > seq else {}

    def _find_replaced(self) -> None:
        """Add what the files replace that nobody has looked at yet."""
        for first, text in self.files.replacing.items(self._replacing):
            if first > self.last_sequence:
                return  # another thread is about to add it
            for low, high in decode_replaced(text):
                for _, begins, start, end in self._pieces(low, high):
                    known = self._replaced.get(begins, ())
                    # A new list, because another thread may read the old one.
                    self._replaced[begins] = normalise([*known, (begins + start, begins + end)])
                    self._last_replaced = max(self._last_replaced, begins + end)
            self._replacing += 1

    def is_addressed_after(self, seq: int) -> bool:
        """Return whether a file for one group alone ends after `seq`."""
        addressed = self.files.addressed.firsts
        return bool(addressed) and self.files.last_of(addressed[-1]) > seq

    def for_others(self, first: int, last: int, group: str) -> list[Interval]:
        """Return the messages in ``first..last`` that only groups other than `group` get."""
        if not self.is_addressed_after(first - 1):
            return []
        others = (seq for seq, name in self.files.addressed.items() if name != group)
        files = ((seq, self.files.last_of(seq)) for seq in others)
        return intersect(normalise(files), [(first, last)])

    def size(self, first: int, last: int) -> int:
        """Estimate the bytes of the messages in ``first..last`` in their files."""
        return sum(piece.size for piece in self.slices(first, last))

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
            found = reduce(or_, (slots for *_, slots in self.blocks(first, last)), 0)
            if (count := len(self.files)) and last <= self._last_at(count - 1):
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

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield the bounds of neighbouring files in ``first..last``, and the set of their slots."""
        firsts = self.files.firsts
        at, end = max(0, bisect_right(firsts, first) - 1), bisect_left(firsts, last + 1)
        while at < end:
            stop = min(end, (at // _BLOCK + 1) * _BLOCK)
            start, final = max(first, firsts[at]), min(last, self._last_at(stop - 1))
            whole = (start, final) == (firsts[at], self._last_at(stop - 1))
            # The files after the last one belong to a call that has not ended.
            whole = whole and stop - at == _BLOCK and stop <= len(self.files)
            slots = self._blocks.get(at) if whole else None
            if slots is None:
                slots = self._slots_from(start, final)
            if whole:
                self._blocks[at] = slots
            if start <= final:
                yield start, final, slots
            at = stop

    def _slots_from(self, first: int, last: int) -> int:
        pieces = self._pieces(first, last)
        masks = (self._slots_at(at).mask_of(low, high) for at, _, low, high in pieces)
        return reduce(or_, masks, 0)

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
        found, files = 1, self.files
        begin = max(0, bisect_right(files.prioritised, seq) - 1)
        for at in range(begin, len(files.prioritised)):
            if files.last_of(files.prioritised[at]) > seq:
                found |= files.priorities[at]
        return found

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
