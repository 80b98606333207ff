"""Hold the list of published data files in columns, at about 100 bytes for each file."""

from __future__ import annotations

import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final, overload

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.delivery_times import DeliveryTimes, TimeColumns, TimedRun
from spark_mq.ledger.slots import priorities_of
from spark_mq.util.columns import to_array, to_arrow

__all__ = ["DataFile", "FileColumns", "FileList", "FileTexts", "PathColumn"]

_MIN_TAIL: Final = 1_024
"""Paths that are kept as Python strings, at least, before they go into the Arrow array."""
_MIN_RECENT: Final = 1_024  # places in a dict, at least, before they are sorted in
_CHUNK: Final = 10_000  # paths that are Python strings at once


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a publish."""

    first: int  # the sequence of the first message
    rows: int
    path: str  # relative to ``messages/``
    size: int  # bytes
    committed_at: int  # microseconds since 1970
    times: DeliveryTimes | None = None  # None if no message has a deliver_at or expires_at
    slots: str = ""  # see ``slots.encode_slots``; empty if all rows are in the last slot
    batch: str = ""  # the id of its message batch, or empty
    replaces: str = ""  # see ``replaced.encode_replaced``; empty if it replaces no message
    group: str = ""  # the only group that gets its messages; empty if all do

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


class PathColumn:
    """A list of strings: an Arrow array, and a Python list of the last ones.

    It finds a string by sorted hashes, in 16 bytes for each, once somebody asks for one.
    """

    def __init__(self) -> None:
        # One attribute, because another thread may read while this one grows.
        self._parts: tuple[pa.Array, list[str]] = (pa.array([], pa.large_string()), [])
        self._lock = threading.Lock()  # of the lookup
        # The sorted hashes, the places in their order, and the places of strings that are not
        # sorted in yet. One attribute, because an interrupt may come between two.
        self._lookup: tuple[array[int], array[int], dict[str, int]] = array("q"), array("q"), {}

    def __len__(self) -> int:
        sealed, tail = self._parts
        return len(sealed) + len(tail)

    def __getitem__(self, at: int) -> str:
        sealed, tail = self._parts
        path: str = sealed[at].as_py() if at < len(sealed) else tail[at - len(sealed)]
        return path

    def append(self, path: str) -> None:
        sealed, tail = self._parts
        tail.append(path)
        if len(tail) >= max(_MIN_TAIL, len(sealed) // 4):
            self._seal()

    def extend(self, paths: pa.Array | pa.ChunkedArray) -> None:
        chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
        parts = [self._seal(), *(chunk.cast(pa.large_string()) for chunk in chunks)]
        self._parts = (pa.concat_arrays(parts), [])

    def truncate(self, count: int) -> None:
        sealed, tail = self._parts
        self._parts = (sealed[:count], tail[: max(0, count - len(sealed))])

    def to_arrow(self, start: int, end: int) -> pa.Array:
        sealed, tail = self._parts
        begin = len(sealed)
        rest = tail[max(0, start - begin) : max(0, end - begin)]
        if start >= begin:
            return pa.array(rest, pa.large_string())
        parts = [sealed.slice(start, end - start), pa.array(rest, pa.large_string())]
        return pa.concat_arrays(parts)

    def _seal(self) -> pa.Array:
        sealed, tail = self._parts
        if tail:
            sealed = pa.concat_arrays([sealed, pa.array(tail, pa.large_string())])
            self._parts = (sealed, [])
        return sealed

    def find(self, path: str, count: int) -> int | None:
        """Return the place of a string among the first `count`, which never shrink. Thread-safe."""
        with self._lock:
            hashes, places, recent = self._catch_up(count)
            if path in recent:
                return recent[path]
            wanted = hash(path)
            at = bisect_left(hashes, wanted)
            while at < len(hashes) and hashes[at] == wanted:
                if self[places[at]] == path:
                    return places[at]
                at += 1
            return None

    def _catch_up(self, count: int) -> tuple[array[int], array[int], dict[str, int]]:
        _, places, recent = self._lookup
        if count - len(places) > max(_MIN_RECENT, len(places) // 8):
            self._sort_in(count)
        else:
            for place in range(len(places) + len(recent), count):
                recent[self[place]] = place
        return self._lookup

    def _sort_in(self, end: int) -> None:
        known, before, _ = self._lookup
        hashes, start = array("q", known), len(before)
        for low in range(start, end, _CHUNK):
            hashes.extend(map(hash, self.to_arrow(low, min(end, low + _CHUNK)).to_pylist()))
        column = to_arrow(hashes)
        places = to_arrow(array("q", chain(before, range(start, end))))
        order = pc.sort_indices(column)
        self._lookup = to_array(column.take(order)), to_array(places.take(order)), {}


class FileTexts:
    """The text of each file that has one, by the first sequence of the file, in order."""

    def __init__(self) -> None:
        self.firsts = array("q")
        self._texts: list[str] = []

    def add(self, first: int, text: str) -> None:
        self._texts.append(text)
        self.firsts.append(first)

    def of(self, first: int) -> str:
        """Return the text of the file with a first sequence, or an empty one."""
        at = bisect_left(self.firsts, first)
        known = at < len(self.firsts) and self.firsts[at] == first
        return self._texts[at] if known else ""

    def items(self, start: int = 0) -> Iterator[tuple[int, str]]:
        """Yield the first sequence and the text of each file from a place on, in order."""
        # Another thread may add one.
        return zip(self.firsts[start:], self._texts[start:], strict=False)

    def truncate(self, last: int) -> None:
        """Drop the texts of files that begin after a sequence."""
        kept = bisect_right(self.firsts, last)
        del self.firsts[kept:], self._texts[kept:]

    def tail(self, first: int) -> FileTexts:
        """Return the texts of the files that begin at or after a sequence."""
        kept, start = FileTexts(), bisect_left(self.firsts, first)
        kept.firsts, kept._texts = self.firsts[start:], self._texts[start:]
        return kept


class FileList(Sequence[DataFile]):
    """All published files in sequence order. It only grows.

    One thread at a time may add files, while others read. They find a file by its first sequence,
    so a file's first sequence is added last.
    """

    def __init__(self, before: int = 0) -> None:
        self.firsts = array("q")
        self.rows = array("q")
        self.sizes = array("q")
        self.committed_at = array("q")
        self.before = array("q")  # messages in all files before this one
        self.paths = PathColumn()
        self.total = self._before_all = before
        self.timed = array("q")  # the first sequences of the files with times
        self._times = TimeColumns()
        self.with_slots = array("q")  # the first sequences of the files with slots
        self._slots = PathColumn()
        self.prioritised = array("q")  # the first sequences of the files with a priority above 0
        self.priorities = array("H")  # the set of the priorities of each of them
        self.batches = FileTexts()  # the message batch of a file
        self.replacing = FileTexts()  # the messages that those of a file replace
        self.addressed = FileTexts()  # the only group that gets the messages of a file

    def last_at(self, at: int) -> int:
        return self.firsts[at] + self.rows[at] - 1

    def last_of(self, first: int) -> int:
        at = bisect_left(self.firsts, first)
        # Another thread may be about to add the file.
        return self.last_at(at) if at < len(self.firsts) else first

    def __len__(self) -> int:
        return len(self.firsts)

    @overload
    def __getitem__(self, at: int) -> DataFile: ...
    @overload
    def __getitem__(self, at: slice) -> list[DataFile]: ...
    def __getitem__(self, at: int | slice) -> DataFile | list[DataFile]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        first = self.firsts[at]
        return DataFile(
            first,
            self.rows[at],
            self.paths[at],
            self.sizes[at],
            self.committed_at[at],
            self.times_of(first),
            self.slots_of(first),
            self.batches.of(first),
            self.replacing.of(first),
            self.addressed.of(first),
        )

    def __iter__(self) -> Iterator[DataFile]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def find(self, path: str) -> int | None:
        """Return the place of a file, or None."""
        return self.paths.find(path, len(self))

    def times_of(self, first: int) -> DeliveryTimes | None:
        at = bisect_left(self.timed, first)
        if at == len(self.timed) or self.timed[at] != first:
            return None
        return DeliveryTimes(self._times, at, self.rows[bisect_left(self.firsts, first)])

    def slots_of(self, first: int) -> str:
        at = bisect_left(self.with_slots, first)
        known = at < len(self.with_slots) and self.with_slots[at] == first
        return self._slots[at] if known else ""

    def extend(self, files: Sequence[DataFile]) -> None:
        """Add files that follow all others, all or none."""
        self._drop_partial()
        total = self.total
        for file in files:
            self.before.append(total)
            total += file.rows
            self.rows.append(file.rows)
            self.sizes.append(file.size)
            self.committed_at.append(file.committed_at)
            self.paths.append(file.path)
            if file.times is not None:
                file.times.copy_to(self._times)
                self.timed.append(file.first)
            if file.slots:
                self._add_slots(file.first, file.slots)
            if file.batch:
                self._add_name(self.batches, file.first, file.batch)
            if file.replaces:
                self.replacing.add(file.first, file.replaces)
            if file.group:
                self._add_name(self.addressed, file.first, file.group)
        self.firsts.extend(array("q", (file.first for file in files)))
        self.total = total

    def extend_columns(self, columns: FileColumns) -> None:
        self._drop_partial()
        sums = array("q", accumulate(columns.rows, initial=self.total))
        total = sums.pop()
        self.before.extend(sums)
        self.rows.extend(columns.rows)
        self.sizes.extend(columns.sizes)
        self.committed_at.extend(columns.committed_at)
        self.paths.extend(columns.paths)
        for at, runs in columns.times:
            self._times.append(runs)
            self.timed.append(columns.firsts[at])
        for at, slots in columns.slots:
            self._add_slots(columns.firsts[at], slots)
        for at, batch in columns.batches:
            self._add_name(self.batches, columns.firsts[at], batch)
        for at, replaced in columns.replaces:
            self.replacing.add(columns.firsts[at], replaced)
        for at, group in columns.groups:
            self._add_name(self.addressed, columns.firsts[at], group)
        self.firsts.extend(columns.firsts)
        self.total = total

    def _drop_partial(self) -> None:
        """Drop the values that an interrupted call has added."""
        count = len(self.firsts)
        if len(self.before) > count:
            for column in (self.before, self.rows, self.sizes, self.committed_at):
                del column[count:]
            self.paths.truncate(count)
            timed = bisect_right(self.timed, self.firsts[-1]) if count else 0
            del self.timed[timed:]
            self._times.truncate(timed)
            kept = bisect_right(self.with_slots, self.firsts[-1]) if count else 0
            del self.with_slots[kept:]
            self._slots.truncate(kept)
            prioritised = bisect_right(self.prioritised, self.firsts[-1]) if count else 0
            del self.prioritised[prioritised:], self.priorities[prioritised:]
            for texts in (self.batches, self.replacing, self.addressed):
                texts.truncate(self.firsts[-1] if count else -1)
        self.total = self.before[-1] + self.rows[-1] if count else self._before_all

    def tail(self, start: int) -> FileList:
        kept = FileList(self.before[start] if start < len(self) else self.total)
        first = self.firsts[start] if start < len(self) else 0
        low = bisect_left(self.timed, first)
        kept.timed = self.timed[low:]
        kept._times = self._times.tail(low)
        begin, end = bisect_left(self.with_slots, first), len(self.with_slots)
        kept.with_slots = self.with_slots[begin:]
        kept._slots.extend(pa.concat_arrays([self._slots.to_arrow(begin, end)]))
        prioritised = bisect_left(self.prioritised, first)
        kept.prioritised = self.prioritised[prioritised:]
        kept.priorities = self.priorities[prioritised:]
        kept.batches, kept.replacing = self.batches.tail(first), self.replacing.tail(first)
        kept.addressed = self.addressed.tail(first)
        kept.rows, kept.sizes = self.rows[start:], self.sizes[start:]
        kept.committed_at, kept.before = self.committed_at[start:], self.before[start:]
        # A copy, because a slice would keep all paths in memory.
        kept.paths.extend(pa.concat_arrays([self.paths.to_arrow(start, len(self))]))
        kept.firsts, kept.total = self.firsts[start:], self.total
        return kept

    def _add_slots(self, first: int, slots: str) -> None:
        self._slots.append(slots)
        if priorities := priorities_of(slots):
            self.priorities.append(priorities)
            self.prioritised.append(first)
        self.with_slots.append(first)

    def _add_name(self, names: FileTexts, first: int, name: str) -> None:
        names.add(first, sys.intern(name))  # many files share it


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Files as columns, in sequence order, none of them empty."""

    firsts: array[int]
    rows: array[int]
    sizes: array[int]
    committed_at: array[int]
    paths: pa.Array | pa.ChunkedArray
    times: Iterable[tuple[int, Iterable[TimedRun]]] = ()  # the places and runs of files with times
    slots: Iterable[tuple[int, str]] = ()  # the places and slots of files with slots
    batches: Iterable[tuple[int, str]] = ()  # the places and batches of files of a batch
    replaces: Iterable[tuple[int, str]] = ()  # the places of files that replace messages, and which
    groups: Iterable[tuple[int, str]] = ()  # the places of files for one group, and that group
