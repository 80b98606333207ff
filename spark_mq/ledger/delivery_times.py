"""Hold the times of messages in columns, at 24 bytes for each, a tenth of Python objects."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Final

__all__ = ["NO_TIME", "Bounds", "DeliveryTimes", "TimeColumns", "TimedRun", "optional_time"]

TimedRun = tuple[int, int | None, int | None]
"""Number of rows, their deliver_at and their expires_at, in microseconds or None."""

NO_TIME: Final = -(2**63)  # None in a column of times

Bounds = tuple[int, int, int]
"""The least and the greatest deliver_at, and the least expires_at or NO_TIME."""


class TimeColumns:
    """Columns of runs, and of the files that have them."""

    __slots__ = ("bounds", "deliver_at", "ends", "expires_at", "starts")

    def __init__(self) -> None:
        self.starts = array("q")  # the first row of each run, from 0 in its file
        self.deliver_at = array("q")
        self.expires_at = array("q")
        self.ends = array("q")  # of each file: the number of runs up to its last one
        self.bounds = (array("q"), array("q"), array("q"))  # of each file

    def append(self, runs: Iterable[TimedRun]) -> int:
        """Add the runs of a file. Return the number of its rows."""
        row = 0
        for rows, deliver_at, expires_at in runs:
            self.deliver_at.append(NO_TIME if deliver_at is None else deliver_at)
            self.expires_at.append(NO_TIME if expires_at is None else expires_at)
            self.starts.append(row)
            row += rows
        self.end_file()
        return row

    def end_file(self) -> None:
        """Note that the runs since the last file are those of the next one."""
        end = len(self.starts)
        bounds = self._bounds(self._start(len(self.ends)), end)
        for column, value in zip(self.bounds, bounds, strict=True):
            column.append(value)
        self.ends.append(end)

    def _start(self, at: int) -> int:
        return self.ends[at - 1] if at else 0

    def _bounds(self, start: int, end: int) -> Bounds:
        due = self.deliver_at[start:end]
        if NO_TIME in due:  # a message without one counts as 0
            due = array("q", (0 if at == NO_TIME else at for at in due))
        ends = (at for at in self.expires_at[start:end] if at != NO_TIME)
        return min(due), max(due), min(ends, default=NO_TIME)

    def truncate(self, files: int) -> None:
        """Drop what an interrupted call has added after so many files."""
        runs = self._start(files)
        for column in (self.starts, self.deliver_at, self.expires_at):
            del column[runs:]
        for column in (self.ends, *self.bounds):
            del column[files:]

    def tail(self, at: int) -> TimeColumns:
        """Return the files from a place on."""
        kept, start = TimeColumns(), self._start(at)
        kept.starts, kept.deliver_at = self.starts[start:], self.deliver_at[start:]
        kept.expires_at = self.expires_at[start:]
        kept.ends = array("q", (end - start for end in self.ends[at:]))
        due_from, due_to, expires_from = (column[at:] for column in self.bounds)
        kept.bounds = due_from, due_to, expires_from
        return kept


class DeliveryTimes:
    """The times of a file's messages, in runs of equal times, one at least.

    It is a view of columns that it may share with other files.
    """

    __slots__ = ("_columns", "_end", "_start", "due_from", "due_to", "expires_from", "rows")

    def __init__(self, columns: TimeColumns, at: int, rows: int) -> None:
        """Show the file at a place of the columns, which has so many rows."""
        self._columns, self.rows = columns, rows
        self._start, self._end = columns.ends[at - 1] if at else 0, columns.ends[at]
        due_from, due_to, expires_from = (column[at] for column in columns.bounds)
        self.due_from = due_from  # the least deliver_at; a message without one counts as 0
        self.due_to = due_to
        self.expires_from = optional_time(expires_from)

    @classmethod
    def of(cls, runs: Iterable[TimedRun]) -> DeliveryTimes:
        columns = TimeColumns()
        return cls(columns, 0, columns.append(runs))

    def copy_to(self, columns: TimeColumns) -> None:
        """Add the runs as those of another file."""
        own, part = self._columns, slice(self._start, self._end)
        columns.deliver_at.extend(own.deliver_at[part])
        columns.expires_at.extend(own.expires_at[part])
        columns.starts.extend(own.starts[part])
        columns.end_file()

    def append_to(self, rows: array[int], deliver_at: array[int], expires_at: array[int]) -> int:
        """Add the runs to columns, with NO_TIME for None. Return their number."""
        own, part = self._columns, slice(self._start, self._end)
        starts = own.starts[part]
        rows.extend(array("q", (b - a for a, b in pairwise(chain(starts, (self.rows,))))))
        deliver_at.extend(own.deliver_at[part])
        expires_at.extend(own.expires_at[part])
        return len(starts)

    @property
    def runs(self) -> tuple[TimedRun, ...]:
        return tuple(
            (last - first + 1, deliver_at, expires_at)
            for first, last, deliver_at, expires_at in self.between(0, self.rows - 1)
        )

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield ``(first, last, deliver_at, expires_at)`` of runs in some rows, from 0."""
        columns, starts = self._columns, self._columns.starts
        low = bisect_right(starts, first, self._start, self._end) - 1
        high = bisect_right(starts, last, self._start, self._end)
        for at in range(low, high):
            end = starts[at + 1] if at + 1 < self._end else self.rows
            yield (
                max(first, starts[at]),
                min(last, end - 1),
                optional_time(columns.deliver_at[at]),
                optional_time(columns.expires_at[at]),
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveryTimes) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"DeliveryTimes({self.runs!r})"


def optional_time(at: int) -> int | None:
    return None if at == NO_TIME else at
