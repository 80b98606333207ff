"""Hold the list of published data files in columns, at about 100 bytes for each file.

A list never changes. A longer one shares the parts of the one before, except for the last, which
is small and is copied. Small parts become larger ones from time to time, as in a binary counter,
so that 100,000 files are about twelve parts, and each file was copied as often.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.slots import priorities_of
from spark_mq.util.columns import to_array, to_arrow

PART_FILES: Final = 64  # a part with fewer files is copied when files follow it
_CHUNK: Final = 10_000  # paths that are Python strings at once

TimedRun = tuple[int, int | None, int | None]
"""Number of rows, their deliver_at and their expires_at, in microseconds or None."""

NO_TIME: Final = -(2**63)  # None among the times


@dataclass(frozen=True)
class DeliveryTimes:
    """The times of a file's messages, in runs of equal times, one at least."""

    data: bytes  # integers of 64 bits, which take a tenth of Python's objects

    @cached_property
    def bounds(self) -> memoryview:
        """Return the least and the greatest deliver_at, and the least expires_at."""
        return memoryview(self.data).cast("q")[:3]

    @cached_property
    def columns(self) -> list[memoryview]:
        """Return the row after each run, from 0 in its file, its deliver_at and its expires_at."""
        numbers = memoryview(self.data).cast("q")[3:]
        runs = len(numbers) // 3
        return [numbers[at * runs : (at + 1) * runs] for at in range(3)]

    @classmethod
    def of(cls, runs: Iterable[TimedRun]) -> DeliveryTimes:
        counts, due, expires = zip(*runs, strict=True)
        starts = [at or 0 for at in due]
        ends = [at for at in expires if at is not None]
        numbers = array("q", (min(starts), max(starts), min(ends, default=NO_TIME)))
        numbers.extend(accumulate(counts))
        numbers.extend(NO_TIME if at is None else at for at in (*due, *expires))
        return cls(numbers.tobytes())

    @property
    def due_from(self) -> int:
        """Return the least deliver_at. A message without one counts as 0."""
        return self.bounds[0]

    @property
    def due_to(self) -> int:
        return self.bounds[1]

    @property
    def expires_from(self) -> int | None:
        return optional_time(self.bounds[2])

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield ``(first, last, deliver_at, expires_at)`` of runs in some rows, from 0."""
        stops, due, expires = self.columns
        at = bisect_right(stops, first)
        begin = stops[at - 1] if at else 0
        while at < len(stops) and begin <= last:
            times = optional_time(due[at]), optional_time(expires[at])
            yield max(first, begin), min(last, stops[at] - 1), *times
            begin, at = stops[at], at + 1


def optional_time(at: int) -> int | None:
    return None if at == NO_TIME else at


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
    replaces: str = ""  # see :func:`encode_replaced`; empty if it replaces no message
    group: str = ""  # the only group that gets its messages; empty if all do

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


_TEXT: Final = pa.large_string()


class Texts:
    """Strings, or bytes, in an Arrow array."""

    __slots__ = ("values",)

    def __init__(self, values: pa.Array) -> None:
        self.values = values

    @classmethod
    def of(cls, values: Texts | Iterable[Any], kind: pa.DataType = _TEXT) -> Texts:
        return values if isinstance(values, Texts) else cls(pa.array(values, kind))

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return Texts(pa.concat_arrays([self.values[at]]))  # a view would keep all of them
        return self.values[at].as_py()

    def __add__(self, other: Texts | tuple[Any, ...]) -> Texts:
        more = Texts.of(other, self.values.type)
        return Texts(pa.concat_arrays([self.values, more.values]))

    def __radd__(self, other: tuple[Any, ...]) -> Texts:
        return Texts.of(other, self.values.type) + self


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SparseColumn(Generic[_T]):
    """The values of those files that have one, with the first sequences of these files."""

    firsts: array[int]
    values: Any  # an array of numbers, or texts or a tuple, of _T each

    def of(self, first: int) -> _T | None:
        """Return the value of the file with a first sequence, or None."""
        at = bisect_left(self.firsts, first)
        known = at < len(self.firsts) and self.firsts[at] == first
        return self.values[at] if known else None

    def between(self, first: int, last: int) -> SparseColumn[_T]:
        """Return the values of files that begin in ``first..last``."""
        part = slice(bisect_left(self.firsts, first), bisect_right(self.firsts, last))
        return SparseColumn(self.firsts[part], self.values[part])

    def sealed(self, kind: pa.DataType) -> SparseColumn[_T]:
        """Return the strings or bytes in an Arrow array."""
        return SparseColumn(self.firsts, Texts.of(self.values, kind)) if self.firsts else self

    def __add__(self, other: SparseColumn[_T]) -> SparseColumn[_T]:
        if not self.firsts or not other.firsts:
            return other if other.firsts else self
        return SparseColumn(self.firsts + other.firsts, self.values + other.values)


def _sparse(files: Sequence[DataFile], value_of: Callable[[DataFile], Any]) -> SparseColumn[Any]:
    pairs = [(file.first, value) for file in files if (value := value_of(file))]
    if not pairs:
        return _NO_TEXTS
    return SparseColumn(array("q", (first for first, _ in pairs)), tuple(v for _, v in pairs))


_NO_TEXTS: Final[SparseColumn[Any]] = SparseColumn(array("q"), ())
_NO_PRIORITIES: Final[SparseColumn[int]] = SparseColumn(array("q"), array("H"))


@dataclass(frozen=True)
class FileColumns:
    """Consecutive files in columns, in sequence order, none of them empty."""

    firsts: array[int]
    rows: array[int]
    sizes: array[int]
    committed_at: array[int]
    paths: Any  # texts, or a tuple in a part that is copied when files follow it
    times: SparseColumn[bytes] = _NO_TEXTS
    slots: SparseColumn[str] = _NO_TEXTS
    priorities: SparseColumn[int] = _NO_PRIORITIES  # the sets of priorities of files with one > 0
    batches: SparseColumn[str] = _NO_TEXTS
    replaces: SparseColumn[str] = _NO_TEXTS
    groups: SparseColumn[str] = _NO_TEXTS

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> FileColumns:
        return cls(
            array("q", [file.first for file in files]),
            array("q", [file.rows for file in files]),
            array("q", [file.size for file in files]),
            array("q", [file.committed_at for file in files]),
            tuple([file.path for file in files]),
            _sparse(files, lambda file: file.times and file.times.data),
            slots := _sparse(files, attrgetter("slots")),
            cls.priorities_of(slots),
            _sparse(files, attrgetter("batch")),
            _sparse(files, attrgetter("replaces")),
            _sparse(files, attrgetter("group")),
        )

    @staticmethod
    def priorities_of(slots: SparseColumn[str]) -> SparseColumn[int]:
        """Return the sets of priorities of the files with a priority above 0."""
        if not slots.firsts:
            return _NO_PRIORITIES
        pairs = ((first, priorities_of(slots.values[at])) for at, first in enumerate(slots.firsts))
        known = [(first, priorities) for first, priorities in pairs if priorities]
        firsts, sets = (array(kind, (pair[at] for pair in known)) for at, kind in enumerate("qH"))
        return SparseColumn(firsts, sets)

    def __len__(self) -> int:
        return len(self.firsts)

    def __add__(self, other: FileColumns) -> FileColumns:
        return FileColumns(*(getattr(self, name) + getattr(other, name) for name in _NAMES))

    def sealed(self) -> FileColumns:
        """Return the files with all strings and times in Arrow arrays."""
        sealed = {name: getattr(self, name).sealed(kind) for name, kind in _TEXTS.items()}
        return replace(self, paths=Texts.of(self.paths), **sealed)

    def part(self, start: int, end: int) -> FileColumns:
        if start <= 0 and end >= len(self):
            return self
        files = slice(start, end)
        begin, last = self.firsts[start], self.firsts[end - 1]
        return FileColumns(
            *(getattr(self, name)[files] for name in _DENSE),
            *(getattr(self, name).between(begin, last) for name in _SPARSE),
        )

    def file(self, at: int) -> DataFile:
        first = self.firsts[at]
        times = self.times.of(first)
        return DataFile(
            first,
            self.rows[at],
            self.paths[at],
            self.sizes[at],
            self.committed_at[at],
            DeliveryTimes(times) if times else None,
            self.slots.of(first) or "",
            self.batches.of(first) or "",
            self.replaces.of(first) or "",
            self.groups.of(first) or "",
        )

    def last_at(self, at: int) -> int:
        return self.firsts[at] + self.rows[at] - 1

    def last_with(self, column: SparseColumn[Any]) -> int:
        """Return the last sequence of the last file that has a value, or -1."""
        return self.last_at(bisect_left(self.firsts, column.firsts[-1])) if column.firsts else -1

    @cached_property
    def before(self) -> array[int]:
        return array("q", accumulate(self.rows[:-1], initial=0))

    @cached_property
    def messages(self) -> int:
        return sum(self.rows)

    def find(self, path: str) -> int | None:
        if len(self) < PART_FILES:
            return next((at for at, known in enumerate(self.paths) if known == path), None)
        hashes, places = self._lookup
        wanted = hash(path)
        for at in range(bisect_left(hashes, wanted), bisect_right(hashes, wanted)):
            if self.paths[places[at]] == path:
                return places[at]
        return None

    @cached_property
    def _lookup(self) -> tuple[array[int], array[int]]:
        """Return the sorted hashes of the paths, and the places in their order."""
        hashes = array("q")
        for low in range(0, len(self), _CHUNK):
            hashes.extend(map(hash, self.paths.values[low : low + _CHUNK].to_pylist()))
        column = to_arrow(hashes)
        order = pc.sort_indices(column)
        return to_array(column.take(order)), to_array(order)


_NAMES: Final = tuple(field.name for field in fields(FileColumns))
_DENSE, _SPARSE = _NAMES[:5], _NAMES[5:]
_TEXTS: Final = dict.fromkeys(("slots", "batches", "replaces", "groups"), _TEXT)
_TEXTS["times"] = pa.large_binary()


class FileList:
    """All published files in sequence order, after some messages that were forgotten."""

    def __init__(self, parts: Iterable[FileColumns] = (), forgotten: int = 0) -> None:
        self.parts = tuple(parts)
        self.forgotten = forgotten
        self._firsts = [part.firsts[0] for part in self.parts]
        self._places = list(accumulate(map(len, self.parts), initial=0))
        messages = (part.messages for part in self.parts)
        self._before = list(accumulate(messages, initial=forgotten))
        self.total = self._before[-1]

    def followed_by(self, files: FileColumns) -> FileList:
        """Return a list with more files, which begin after the last one."""
        if not len(files):
            return self
        parts = list(self.parts)
        if parts and len(parts[-1]) < PART_FILES:
            files = parts.pop() + files
        if len(files) >= PART_FILES:
            files = files.sealed()
            while parts and len(parts[-1]) <= len(files):
                files = parts.pop() + files
        return FileList((*parts, files), self.forgotten)

    def after(self, start: int) -> FileList:
        """Return the files from a place on, which is that of a file."""
        number, at = self._at(start)
        part = self.parts[number]
        rest = part.part(at, len(part))
        return FileList((rest, *self.parts[number + 1 :]), self._before[number] + part.before[at])

    def columns(self, start: int, end: int) -> FileColumns:
        whole = FileColumns.of(())
        for place, part in zip(self._places, self.parts, strict=False):
            low, high = max(start - place, 0), min(end - place, len(part))
            if low < high:
                whole = whole + part.part(low, high)
        return whole.sealed()

    def __len__(self) -> int:
        return self._places[-1]

    def __getitem__(self, at: int) -> DataFile:
        number, place = self._at(range(len(self))[at])
        return self.parts[number].file(place)

    def _at(self, place: int) -> tuple[int, int]:
        number = bisect_right(self._places, place) - 1
        return number, place - self._places[number]

    def __iter__(self) -> Iterator[DataFile]:
        return (part.file(at) for part in self.parts for at in range(len(part)))

    def first_at(self, place: int) -> int:
        number, at = self._at(place)
        return self.parts[number].firsts[at]

    def last_at(self, place: int) -> int:
        number, at = self._at(place)
        return self.parts[number].last_at(at)

    @cached_property
    def with_slots(self) -> bool:
        return any(part.slots.firsts for part in self.parts)

    @cached_property
    def last_timed(self) -> int:
        """Return the last sequence of the last file with times, or -1."""
        return max((part.last_with(part.times) for part in self.parts), default=-1)

    @cached_property
    def last_addressed(self) -> int:
        """Return the last sequence of the last file for one group alone, or -1."""
        return max((part.last_with(part.groups) for part in self.parts), default=-1)

    def locate(self, seq: int) -> tuple[FileColumns, int] | None:
        """Return the last file that begins at or before a sequence, or None."""
        number = bisect_right(self._firsts, seq) - 1
        if number < 0:
            return None
        part = self.parts[number]
        return part, bisect_right(part.firsts, seq) - 1

    def begun_at(self, seq: int) -> int:
        """Return the number of files that begin at or before a sequence."""
        number = bisect_right(self._firsts, seq) - 1
        if number < 0:
            return 0
        return self._places[number] + bisect_right(self.parts[number].firsts, seq)

    def messages_up_to(self, seq: int) -> int:
        number = bisect_right(self._firsts, seq) - 1
        if number < 0:
            return self.forgotten if seq >= 0 else 0
        part = self.parts[number]
        at = bisect_right(part.firsts, seq) - 1
        within = min(seq - part.firsts[at] + 1, part.rows[at])
        return self._before[number] + part.before[at] + within

    def nth_message(self, rank: int) -> int:
        """Return the sequence of a message by the number of those before it."""
        number = bisect_right(self._before, rank) - 1
        part, rank = self.parts[number], rank - self._before[number]
        at = bisect_right(part.before, rank) - 1
        return part.firsts[at] + rank - part.before[at]

    def parts_in(self, first: int, last: int) -> Sequence[FileColumns]:
        """Return the parts with the files of ``first..last``."""
        begin = max(0, bisect_right(self._firsts, first) - 1)
        return self.parts[begin : bisect_right(self._firsts, last)]

    def values_in(self, column: str, first: int, last: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the bounds and the value of each file in ``first..last`` that has one."""
        for part in self.parts_in(first, last):
            sparse: SparseColumn[Any] = getattr(part, column)
            begin = max(0, bisect_right(sparse.firsts, first) - 1)
            for at in range(begin, bisect_right(sparse.firsts, last)):
                start = sparse.firsts[at]
                end = part.last_at(bisect_left(part.firsts, start))
                if end >= first:
                    yield start, end, sparse.values[at]

    def find(self, path: str) -> int | None:
        for place, part in zip(self._places, self.parts, strict=False):
            if (at := part.find(path)) is not None:
                return place + at
        return None
