"""The message index: which file of which commit holds which sequences.

A message's sequence is ``version << 32 | ordinal``. The version is the Delta commit that added
it. The ordinal is its row over the commit's ``add`` actions in file order.
The ledger needs the index to count the messages of a range and to split it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

__all__ = ["DataFile", "DeliveryTimes", "FileSlice", "MessageIndex", "TimedRun", "sequence"]

ORDINAL_BITS: Final = 32


def sequence(version: int, ordinal: int) -> int:
    """Return the sequence of a message from its commit and its row, counted from 0."""
    return version << ORDINAL_BITS | ordinal


TimedRun = tuple[int, int | None, int | None]
"""Number of rows, their deliver_at and their expires_at, in microseconds or None."""


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """The times of a file's messages, as runs of rows with equal times."""

    runs: tuple[TimedRun, ...]
    starts: tuple[int, ...]
    """The first row of each run."""
    due_from: int
    """The least deliver_at. A message without one counts as 0."""
    due_to: int
    """The greatest deliver_at."""
    expires_from: int | None
    """The least expires_at, or None."""

    @classmethod
    def of(cls, runs: Iterable[TimedRun]) -> DeliveryTimes:
        """Create the times from runs in the order of rows. There must be one run at least."""
        kept = tuple(runs)
        due = [deliver_at or 0 for _, deliver_at, _ in kept]
        ends = [expires_at for _, _, expires_at in kept if expires_at is not None]
        starts = tuple(accumulate((rows for rows, _, _ in kept[:-1]), initial=0))
        return cls(kept, starts, min(due), max(due), min(ends, default=None))

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield ``(first, last, deliver_at, expires_at)`` of the runs in some rows, from 0."""
        for at in range(bisect_right(self.starts, first) - 1, bisect_right(self.starts, last)):
            rows, deliver_at, expires_at = self.runs[at]
            start = self.starts[at]
            yield max(first, start), min(last, start + rows - 1), deliver_at, expires_at


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a publish."""

    first: int
    """The sequence of the first message."""
    rows: int
    path: str
    """Relative to ``messages/``."""
    size: int
    """Bytes."""
    committed_at: int
    """Microseconds since 1970."""
    times: DeliveryTimes | None = None
    """None if no message has a deliver_at or expires_at."""

    @property
    def last(self) -> int:
        """Return the sequence of the last message."""
        return self.first + self.rows - 1


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Some consecutive rows of a data file."""

    path: str
    """Relative to ``messages/``."""
    offset: int
    """The first row, from 0."""
    rows: int
    first: int
    """The sequence of the first row."""
    committed_at: int
    """Microseconds since 1970."""
    size: int
    """Estimated bytes: the rows' share of the file's size."""


class MessageIndex:
    """All published files in sequence order.

    The index only grows. ``version`` is the last commit that it includes.
    """

    def __init__(self, files: Iterable[DataFile] = (), version: int = -1) -> None:
        self.files: list[DataFile] = []
        self._firsts: list[int] = []
        self._before: list[int] = []  # messages in all files before this one
        self._timed: list[int] = []  # first sequences of the files with times
        self._total = 0
        self.version = version
        self.extend(files, version)

    def extend(self, files: Iterable[DataFile], version: int) -> None:
        """Add the files of the commits up to `version`, in order."""
        self._repair()
        for file in files:
            if file.rows == 0:
                continue
            if self.files and file.first <= self.files[-1].last:
                raise ValueError(f"files out of order: {file.first} after {self.files[-1].last}")
            # `files` grows after its sums, because another thread may read the index.
            self._before.append(self._total)
            self._firsts.append(file.first)
            self._total += file.rows
            if file.times is not None:
                self._timed.append(file.first)
            self.files.append(file)
        self.version = max(self.version, version)

    def _repair(self) -> None:
        """Drop what an interrupted call has noted of a file that it did not add."""
        count = len(self.files)
        if len(self._before) > count:
            last = self.files[-1] if self.files else None
            self._total = self._before[count]
            del self._before[count:], self._firsts[count:]
            while self._timed and (last is None or self._timed[-1] > last.first):
                self._timed.pop()

    @property
    def last_sequence(self) -> int:
        """Return the last published sequence, or -1."""
        return self.files[-1].last if self.files else -1

    @property
    def total(self) -> int:
        """Return the number of messages."""
        return self._total

    def _messages_up_to(self, seq: int) -> int:
        """Count the messages with a sequence <= `seq`."""
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return 0
        return self._before[at] + min(seq - self._firsts[at] + 1, self.files[at].rows)

    def count(self, first: int, last: int) -> int:
        """Count the messages in ``first..last``, inclusive."""
        at = bisect_right(self._firsts, first) - 1
        if at >= 0 and first <= last <= self.files[at].last:
            return last - first + 1
        if last < first:
            return 0
        return max(0, self._messages_up_to(last) - self._messages_up_to(first - 1))

    def nth_from(self, first: int, count: int) -> int:
        """Return the sequence of the `count`-th message from `first` on.

        Raises
        ------
        IndexError
            `count` is less than 1, or the index has fewer messages from `first` on.
        """
        rank = self._messages_up_to(first - 1) + count - 1
        if count < 1 or rank >= self._total:
            raise IndexError(f"no {count} messages from {first} on")
        at = bisect_right(self._before, rank) - 1
        return self._firsts[at] + rank - self._before[at]

    def first_at_or_after(self, seq: int) -> int | None:
        """Return the first message at or after `seq`, or None."""
        at = bisect_right(self._firsts, seq) - 1
        if at >= 0 and seq <= self.files[at].last:
            return seq
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def last_at_or_before(self, seq: int) -> int | None:
        """Return the last message at or before `seq`, or None."""
        at = bisect_right(self._firsts, seq) - 1
        return min(seq, self.files[at].last) if at >= 0 else None

    def first_published_since(self, instant: int) -> int:
        """Return the first sequence of the first commit at or after an instant.

        Returns the sequence after the last one if there is no such commit.
        """
        # No bisect: commit times may step back if clocks differ.
        later = (f.first for f in self.files if f.committed_at >= instant)
        return next(later, self.last_sequence + 1)

    def slices(self, first: int, last: int) -> Iterator[FileSlice]:
        """Yield the file slices with the messages of ``first..last``, in order."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        stop = bisect_left(self._firsts, last + 1)
        for file in self.files[at:stop]:
            start, end = max(first, file.first), min(last, file.last)
            if start <= end:
                rows = end - start + 1
                size = file.size * rows // file.rows
                yield FileSlice(file.path, start - file.first, rows, start, file.committed_at, size)

    def has_times(self, first: int, last: int) -> bool:
        """Return whether a file in ``first..last`` has a deliver_at or expires_at."""
        at = max(0, bisect_right(self._timed, first) - 1)  # one file before and one file after
        near = self._timed[at : at + 2]
        return any(seq <= last and self.file_at(seq).last >= first for seq in near)

    def has_times_after(self, seq: int) -> bool:
        """Return whether a file with times ends after `seq`."""
        return bool(self._timed) and self.file_at(self._timed[-1]).last > seq

    def timed_files(self, after: int) -> list[DataFile]:
        """Return the files with times that end after a sequence."""
        start = max(0, bisect_right(self._timed, after) - 1)
        return [file for seq in self._timed[start:] if (file := self.file_at(seq)).last > after]

    def file_at(self, seq: int) -> DataFile:
        """Return the file with a message. In a gap, return the file before it."""
        return self.files[bisect_right(self._firsts, seq) - 1]

    def last_file_from(self, seq: int) -> DataFile | None:
        """Return the last file that begins at or before a sequence, or None."""
        at = bisect_right(self._firsts, seq) - 1
        return self.files[at] if at >= 0 else None

    def path_at(self, first: int) -> str | None:
        """Return the path of the file whose first message has this sequence, or None."""
        file = self.last_file_from(first)
        return file.path if file is not None and file.first == first else None

    def size(self, first: int, last: int) -> int:
        """Estimate the bytes of the messages in ``first..last`` in their files."""
        return sum(piece.size for piece in self.slices(first, last))
