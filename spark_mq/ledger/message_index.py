"""Define the message index, from sequences to files of commits.

A message's sequence is ``version << 32 | ordinal``. The version is the Delta commit that added it.
The ordinal is its row over the commit's ``add`` actions in file order. The ledger needs the index
to count the messages of a range and to split it.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Final, cast

from spark_mq.ledger.data_files import DataFile, DeliveryTimes, FileColumns, FileList, TimedRun
from spark_mq.ledger.intervals import Interval, decode_replaced, intersect, normalise
from spark_mq.ledger.slots import FileSlots, SlotLayout, decode_slots

__all__ = ["DataFile", "DeliveryTimes", "FileColumns", "TimedRun"]

_REMEMBERED_SETS: Final = 50_000
_BLOCK: Final = 64  # neighbouring files whose slots are looked at together
_SMALL_MAP: Final = 64  # a map with fewer entries is copied when others follow

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

    @property
    def last(self) -> int:
        return self.first + self.rows - 1

    def part(self, start: int, rows: int) -> FileSlice:
        """Return some rows of the slice. `start` counts from its first row."""
        size = self.size * rows // self.rows
        return replace(
            self, offset=self.offset + start, rows=rows, first=self.first + start, size=size
        )


_ReplacedByFile = dict[int, Sequence[Interval]]
"""The replaced messages of files, by the first sequence of a file."""


@dataclass(frozen=True, slots=True)
class _SlotCache:
    """Sets of slots that successive indexes look up again. The slot of a message never changes."""

    ranges: dict[Interval, int] = field(default_factory=dict)  # the sets of the ranges of ledgers
    blocks: dict[Interval, int] = field(default_factory=dict)  # the sets of neighbouring files


class MessageIndex:
    """All published files of the commits up to `version`, in sequence order. It never changes.

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
        self.layout = SlotLayout(lanes)
        self._last_slot = FileSlots([self.layout.number(0, None)], [sys.maxsize])
        columns = FileColumns.of([file for file in files if file.rows])
        _check_order(columns, forgotten_to)
        self._set(FileList((), forgotten).followed_by(columns), version, forgotten_to)
        self._forget_lookups()

    def _set(self, files: FileList, version: int, forgotten_to: int) -> None:
        self.files, self.version, self.forgotten_to = files, version, forgotten_to
        self.last_sequence = files.parts[-1].last_at(-1) if files.parts else forgotten_to
        """The last published sequence, or -1."""

    def _copy(self) -> MessageIndex:
        index = object.__new__(MessageIndex)
        vars(index).update(vars(self))
        return index

    def _forget_lookups(self) -> None:
        self._slots = _SlotCache()
        # What is known of the files up to a sequence. The next index begins with it.
        self._batches: tuple[int, dict[str, list[Interval]]] = (-1, {})
        # Also the last replaced message. A map has all replaced messages of a file, and hides
        # those of the maps after it.
        self._replaced: tuple[int, int, tuple[_ReplacedByFile, ...]] = (-1, -1, ())

    def extended(self, files: Iterable[DataFile], version: int) -> MessageIndex:
        """Return an index with the files of commits up to `version`, in order."""
        columns = FileColumns.of([file for file in files if file.rows])
        return self.extended_columns(columns, version)

    def extended_columns(self, columns: FileColumns, version: int) -> MessageIndex:
        _check_order(columns, self.last_sequence)
        index = self._copy()
        index._set(self.files.followed_by(columns), max(self.version, version), self.forgotten_to)
        return index

    def without_settled(self, up_to: int) -> MessageIndex:
        """Return an index without commits up to a sequence, but with the last one of messages."""
        start = self._forgettable(up_to)
        if not start:
            return self
        index = self._copy()
        index._set(self.files.after(start), self.version, self.files.last_at(start - 1))
        index._forget_lookups()
        return index

    def _forgettable(self, up_to: int) -> int:
        if not len(self.files):
            return 0
        newest = self.files.first_at(len(self.files) - 1) >> ORDINAL_BITS
        return min(self.files.begun_at(sequence(newest, 0) - 1), self.count_whole_commits(up_to))

    def count_whole_commits(self, up_to: int) -> int:
        """Return the number of files of commits that end at or below a sequence."""
        files = self.files
        at = files.begun_at(up_to)
        if at and files.last_at(at - 1) > up_to:
            at -= 1
        if at == len(files):
            return at
        return files.begun_at(sequence(files.first_at(at) >> ORDINAL_BITS, 0) - 1)

    @property
    def total(self) -> int:
        """Return the number of messages, with the forgotten ones."""
        return self.files.total

    @property
    def forgotten(self) -> int:
        return self.files.forgotten

    def count(self, first: int, last: int) -> int:
        located = self.files.locate(first)
        if located is not None and last <= located[0].last_at(located[1]):
            return max(0, last - first + 1)
        return max(0, self.files.messages_up_to(last) - self.files.messages_up_to(first - 1))

    def nth_from(self, first: int, count: int) -> int:
        """Return the `count`-th message, from 1, at or after `first`, or raise IndexError."""
        rank = self.files.messages_up_to(first - 1) + count - 1
        if count < 1 or not self.forgotten <= rank < self.total:
            raise IndexError(f"no {count} messages from {first} on")
        return self.files.nth_message(rank)

    def first_at_or_after(self, seq: int) -> int | None:
        located = self.files.locate(seq)
        if located is not None and seq <= located[0].last_at(located[1]):
            return seq
        place = self.files.begun_at(seq)
        return self.files.first_at(place) if place < len(self.files) else None

    def last_at_or_before(self, seq: int) -> int | None:
        located = self.files.locate(seq)
        return None if located is None else min(seq, located[0].last_at(located[1]))

    def trim_to_messages(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Return intervals from their first to their last message, without empty ones."""
        ends = ((self.first_at_or_after(a), self.last_at_or_before(b)) for a, b in intervals)
        return [(a, b) for a, b in ends if a is not None and b is not None and a <= b]

    def first_published_since(self, instant: int) -> int:
        """Return the first sequence published at or after an instant, or that after the last."""
        # No bisect, because commit times may step back if clocks differ.
        for part in self.files.parts:
            for first, committed_at in zip(part.firsts, part.committed_at, strict=True):
                if committed_at >= instant:
                    return first
        return self.last_sequence + 1

    def last_of_older(self, instant: int) -> int:
        """Return the last sequence before the first commit after an instant, or -1."""
        last = self.forgotten_to
        for part in self.files.parts:
            for at, committed_at in enumerate(part.committed_at):
                if committed_at > instant:
                    return last
                last = part.last_at(at)
        return last

    def slices(self, first: int, last: int) -> Iterator[FileSlice]:
        """Yield the file slices with the messages of ``first..last``, in order."""
        for part, at, low, high in self._pieces(first, last):
            rows = high - low + 1
            size = part.sizes[at] * rows // part.rows[at]
            path, begins = part.paths[at], part.firsts[at] + low
            yield FileSlice(path, low, rows, begins, part.committed_at[at], size)

    def paths_in(self, first: int, last: int) -> Iterator[tuple[str, int]]:
        """Yield each file's path in ``first..last``, and its first sequence there."""
        for part, at, low, _ in self._pieces(first, last):
            yield part.paths[at], part.firsts[at] + low

    def has_times(self, first: int, last: int) -> bool:
        """Return whether a file in ``first..last`` has a deliver_at or expires_at."""
        return self.has_times_after(first - 1) and any(self.files.values_in("times", first, last))

    def has_times_after(self, seq: int) -> bool:
        return self.files.last_timed > seq

    def timed_files(self, after: int) -> list[DataFile]:
        timed = self.files.values_in("times", after + 1, self.last_sequence)
        return [self.file_at(first) for first, _, _ in timed]

    def file_at(self, seq: int) -> DataFile:
        """Return the file with a message, or the one before a gap. Raise IndexError if none is."""
        file = self.last_file_from(seq)
        if file is None:
            raise IndexError(f"no file begins at or before {seq}")
        return file

    def last_file_from(self, seq: int) -> DataFile | None:
        """Return the last file that begins at or before a sequence, or None."""
        located = self.files.locate(seq)
        return None if located is None else located[0].file(located[1])

    def end_of_file(self, seq: int) -> int:
        """Return the last sequence of the file with a message, or -1 if none begins before."""
        located = self.files.locate(seq)
        return -1 if located is None else located[0].last_at(located[1])

    def may_have(self, first: int, path: str) -> bool:
        """Return whether a file has this first sequence and path, or may be forgotten."""
        file = self.last_file_from(first)
        if file is None:
            return first <= self.forgotten_to
        return file.first == first and file.path == path

    def batches(self) -> dict[str, list[Interval]]:
        """Return the messages of each message batch as intervals, neighbouring files as one."""
        # Callers share the result, so they do not change it.
        up_to, batches = self._batches
        if up_to < self.last_sequence:
            if any(self.files.values_in("batches", up_to + 1, self.last_sequence)):
                batches = self._find_batches()
            self._batches = self.last_sequence, batches
        return batches

    def _find_batches(self) -> dict[str, list[Interval]]:
        batches: dict[str, list[Interval]] = {}
        for first, last, name in self.files.values_in("batches", 0, self.last_sequence):
            intervals = batches.setdefault(name, [])
            if intervals and not self.count(intervals[-1][1] + 1, first - 1):
                intervals[-1] = (intervals[-1][0], last)
            else:
                intervals.append((first, last))
        return batches

    def replaced_after(self, seq: int) -> Mapping[int, Sequence[Interval]]:
        """Return the messages that later ones replace, by the first sequence of their file."""
        # It is empty if none of them lies after a sequence.
        if self._replaced[0] < self.last_sequence:
            self._replaced = self._find_replaced()
        _, last, maps = self._replaced
        return ChainMap(*maps) if last > seq else {}

    def _find_replaced(self) -> tuple[int, int, tuple[_ReplacedByFile, ...]]:
        """Add what the files replace that nobody has looked at yet."""
        up_to, last_replaced, known = self._replaced
        more: _ReplacedByFile = {}
        before = ChainMap(more, *known)
        for _, _, text in self.files.values_in("replaces", up_to + 1, self.last_sequence):
            for first, last in decode_replaced(text):
                for part, at, start, end in self._pieces(first, last):
                    begins = part.firsts[at]
                    replaced = begins + start, begins + end
                    more[begins] = normalise([*before.get(begins, ()), replaced])
                    last_replaced = max(last_replaced, begins + end)
        while more and known and len(known[0]) <= max(_SMALL_MAP, len(more)):
            more, known = {**known[0], **more}, known[1:]
        return self.last_sequence, last_replaced, ((more, *known) if more else known)

    def is_addressed_after(self, seq: int) -> bool:
        return self.files.last_addressed > seq

    def for_others(self, first: int, last: int, group: str) -> list[Interval]:
        """Return the messages in ``first..last`` that only groups other than `group` get."""
        if not self.is_addressed_after(first - 1):
            return []
        addressed = self.files.values_in("groups", first, last)
        files = ((begin, end) for begin, end, name in addressed if name != group)
        return intersect(normalise(files), [(first, last)])

    def size(self, first: int, last: int) -> int:
        """Estimate the bytes of the messages in ``first..last`` in their files."""
        return sum(piece.size for piece in self.slices(first, last))

    def slot_runs(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(slot, first, last)`` of the messages in ``first..last``, in order."""
        for begins, slots, low, high in self.pieces_with_slots(first, last):
            for number, start, end in slots.between(low, high):
                yield number, begins + start, begins + end

    def slots_in(self, first: int, last: int) -> int:
        # Each lease needs the same ranges again.
        ranges = self._slots.ranges
        slots = ranges.get((first, last))
        if slots is None:
            slots = reduce(or_, (slots for *_, slots in self.blocks(first, last)), 0)
            if last <= self.last_sequence:
                if len(ranges) >= _REMEMBERED_SETS:
                    ranges.clear()
                ranges[first, last] = slots
        return slots

    def slots_of(
        self, firsts: Sequence[int], lasts: Sequence[int], rows: Sequence[int]
    ) -> list[int]:
        """Return the set of slots of each row; `firsts` and `lasts` cover the whole ledger."""
        known, places = self._slots.ranges.get, [(firsts[row], lasts[row]) for row in rows]
        sets = [known(place) for place in places]
        if None not in sets:
            return cast(list[int], sets)
        return [
            self.slots_in(*place) if slots is None else slots
            for place, slots in zip(places, sets, strict=True)
        ]

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield the bounds of neighbouring files in ``first..last``, and the set of their slots."""
        known = self._slots.blocks
        for part in self.files.parts_in(first, last):
            firsts = part.firsts
            at, end = max(0, bisect_right(firsts, first) - 1), bisect_right(firsts, last)
            while at < end:
                stop = min(end, (at // _BLOCK + 1) * _BLOCK)
                block = start, final = firsts[at], part.last_at(stop - 1)
                if start < first or final > last or stop - at < _BLOCK:
                    start, final = max(first, start), min(last, final)
                    slots = self._slots_from(start, final)
                elif (slots := known.get(block, -1)) < 0:
                    slots = known[block] = self._slots_from(start, final)
                if start <= final:
                    yield start, final, slots
                at = stop

    def _slots_from(self, first: int, last: int) -> int:
        pieces = self.pieces_with_slots(first, last)
        return reduce(or_, (slots.mask_of(low, high) for _, slots, low, high in pieces), 0)

    def pieces_with_slots(self, first: int, last: int) -> Iterator[tuple[int, FileSlots, int, int]]:
        """Yield each file's first sequence, slots, and its first and last row in the range."""
        for part, at, low, high in self._pieces(first, last):
            yield part.firsts[at], self._slots_at(part, at), low, high

    def _pieces(self, first: int, last: int) -> Iterator[tuple[FileColumns, int, int, int]]:
        """Yield each file, and its first and last row in the range."""
        for part in self.files.parts_in(first, last):
            firsts, rows = part.firsts, part.rows
            low = max(0, bisect_right(firsts, first) - 1)
            for at in range(low, bisect_right(firsts, last)):
                begins = firsts[at]
                start, end = max(first - begins, 0), min(last - begins, rows[at] - 1)
                if start <= end:
                    yield part, at, start, end

    def _slots_at(self, part: FileColumns, at: int) -> FileSlots:
        text = part.slots.of(part.firsts[at])
        return decode_slots(text) if text else self._last_slot

    def priorities_after(self, seq: int) -> int:
        """Return the priorities of the files that end after a sequence, and always 0."""
        sets = self.files.values_in("priorities", seq + 1, self.last_sequence)
        return reduce(or_, (priorities for _, _, priorities in sets), 1)

    def files_with(self, priority: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of files in ``first..last`` with a priority, of all files for 0."""
        if priority:
            for start, end, priorities in self.files.values_in("priorities", first, last):
                if priorities >> priority & 1:
                    yield max(first, start), min(last, end)
            return
        for part, at, low, high in self._pieces(first, last):
            yield part.firsts[at] + low, part.firsts[at] + high


def _check_order(columns: FileColumns, last: int) -> None:
    for at, first in enumerate(columns.firsts):
        if first <= last:
            raise ValueError(f"files out of order: {first} after {last}")
        last = columns.last_at(at)
