"""Hold the times of messages in columns, at 24 bytes for each, a tenth of Python objects."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Final, overload

TimedRun = tuple[int, int | None, int | None]
"""Number of rows, their deliver_at and their expires_at, in microseconds or None."""

NO_TIME: Final = -(2**63)  # None in a column of times


class TimeColumns:
    """The times of some files, in columns that never change."""

    __slots__ = ("bounds", "ends", "runs")

    def __init__(
        self, runs: Sequence[array[int]], ends: array[int], bounds: Sequence[array[int]]
    ) -> None:
        self.runs = runs  # of each run: the row after it, from 0 in its file, and its two times
        self.ends = ends  # of each file: the number of runs up to its last one
        # Of each file: the least and the greatest deliver_at, and the least expires_at or NO_TIME.
        self.bounds = bounds

    @classmethod
    def of(cls, files: Iterable[Iterable[TimedRun]]) -> TimeColumns:
        stops, due, expires, ends, *bounds = (array("q") for _ in range(7))
        for runs in files:
            row, start = 0, len(stops)
            for rows, deliver_at, expires_at in runs:
                row += rows
                stops.append(row)
                due.append(NO_TIME if deliver_at is None else deliver_at)
                expires.append(NO_TIME if expires_at is None else expires_at)
            ends.append(len(stops))
            for column, bound in zip(bounds, _bounds(due[start:], expires[start:]), strict=True):
                column.append(bound)
        return cls([stops, due, expires], ends, bounds)

    @classmethod
    def joined(cls, files: Iterable[DeliveryTimes]) -> TimeColumns:
        return reduce(add, (times.columns for times in files), _EMPTY)

    @overload
    def __getitem__(self, at: int) -> DeliveryTimes: ...
    @overload
    def __getitem__(self, at: slice) -> TimeColumns: ...
    def __getitem__(self, at: int | slice) -> DeliveryTimes | TimeColumns:
        if not isinstance(at, slice):
            return DeliveryTimes(self, at)
        low, high, _ = at.indices(len(self.ends))
        start, end = self._start(low), self._start(high)
        ends = array("q", (run - start for run in self.ends[at]))
        runs = [column[start:end] for column in self.runs]
        return TimeColumns(runs, ends, [column[at] for column in self.bounds])

    def __add__(self, other: TimeColumns) -> TimeColumns:
        known = len(self.runs[0])
        runs = [a + b for a, b in zip(self.runs, other.runs, strict=True)]
        ends = self.ends + array("q", (known + end for end in other.ends))
        bounds = [a + b for a, b in zip(self.bounds, other.bounds, strict=True)]
        return TimeColumns(runs, ends, bounds)

    def _start(self, at: int) -> int:
        return self.ends[at - 1] if at else 0


_EMPTY: Final = TimeColumns.of(())


def _bounds(due: array[int], expires: array[int]) -> tuple[int, int, int]:
    if NO_TIME in due:  # a message without one counts as 0
        due = array("q", (0 if at == NO_TIME else at for at in due))
    ends = (at for at in expires if at != NO_TIME)
    return min(due), max(due), min(ends, default=NO_TIME)


class DeliveryTimes:
    """The times of a file's messages, in runs of equal times, one at least.

    It is a view of columns that it may share with other files.
    """

    __slots__ = ("_at", "_columns", "_end", "_start", "due_from", "due_to", "expires_from", "rows")

    def __init__(self, columns: TimeColumns, at: int) -> None:
        """Show the file at a place of the columns."""
        self._columns, self._at = columns, at
        self._start, self._end = columns.ends[at - 1] if at else 0, columns.ends[at]
        self.rows = columns.runs[0][self._end - 1]
        due_from, due_to, expires_from = columns.bounds
        self.due_from = due_from[at]  # the least deliver_at; a message without one counts as 0
        self.due_to = due_to[at]
        self.expires_from = optional_time(expires_from[at])

    @classmethod
    def of(cls, runs: Iterable[TimedRun]) -> DeliveryTimes:
        return TimeColumns.of([runs])[0]

    @property
    def columns(self) -> TimeColumns:
        """Return these times alone."""
        own = self._columns
        return own if len(own.ends) == 1 else own[self._at : self._at + 1]

    @property
    def runs(self) -> tuple[TimedRun, ...]:
        return tuple(
            (last - first + 1, deliver_at, expires_at)
            for first, last, deliver_at, expires_at in self.between(0, self.rows - 1)
        )

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield ``(first, last, deliver_at, expires_at)`` of runs in some rows, from 0."""
        stops, deliver_at, expires_at = self._columns.runs
        at = bisect_right(stops, first, self._start, self._end)
        begin = stops[at - 1] if at > self._start else 0
        while at < self._end and begin <= last:
            times = optional_time(deliver_at[at]), optional_time(expires_at[at])
            yield max(first, begin), min(last, stops[at] - 1), *times
            begin, at = stops[at], at + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveryTimes) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"DeliveryTimes({self.runs!r})"


def optional_time(at: int) -> int | None:
    return None if at == NO_TIME else at
