"""The commit index: which file of which commit holds which sequences. Pure; the storage feeds it.

A message's sequence is ``version << 32 | ordinal``: the Delta commit that added it and its row ordinal over that commit's
``add`` actions in file order. The index answers what the ledger must know to count or cut a range.
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
    """The sequence of the message at `ordinal` (from 0) of the commit `version`."""
    return version << ORDINAL_BITS | ordinal


TimedRun = tuple[int, int | None, int | None]
"""So many rows with this deliver_at and this expires_at, in microseconds, or None."""


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """The times of a file's messages: runs of rows alike in both, and what is true of all, so that most files need no closer look.

    ``due_from``, ``due_to``: the least and the greatest deliver_at (0 where a message has none); ``expires_from``: the least expires_at.
    """

    runs: tuple[TimedRun, ...]
    starts: tuple[int, ...]
    due_from: int
    due_to: int
    expires_from: int | None

    @classmethod
    def of(cls, runs: Iterable[TimedRun]) -> DeliveryTimes:
        """From runs in the order of rows, at least one."""
        kept = tuple(runs)
        due = [deliver_at or 0 for _, deliver_at, _ in kept]
        ends = [expires_at for _, _, expires_at in kept if expires_at is not None]
        starts = tuple(accumulate((rows for rows, _, _ in kept[:-1]), initial=0))
        return cls(kept, starts, min(due), max(due), min(ends, default=None))

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int | None, int | None]]:
        """The runs within rows ``first..last`` (from 0), as ``(first, last, deliver_at, expires_at)``."""
        for at in range(bisect_right(self.starts, first) - 1, bisect_right(self.starts, last)):
            rows, deliver_at, expires_at = self.runs[at]
            yield max(first, self.starts[at]), min(last, self.starts[at] + rows - 1), deliver_at, expires_at


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a publish: ``rows`` messages, the first of them with sequence ``first``.

    ``path`` is relative to ``messages/``; ``size`` is in bytes; ``committed_at`` in microseconds since 1970. ``times``: of a file
    that holds messages with a deliver_at or expires_at.
    """

    first: int
    rows: int
    path: str
    size: int
    committed_at: int
    times: DeliveryTimes | None = None

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


@dataclass(frozen=True, slots=True)
class FileSlice:
    """``rows`` rows of a file from row ``offset`` on; the first of them has the sequence ``first``."""

    path: str
    offset: int
    rows: int
    first: int
    committed_at: int
    size: int
    """Estimated bytes: the file's size in proportion."""


class MessageIndex:
    """All published files in sequence order, append-only. ``version`` is the last commit that was looked at."""

    def __init__(self, files: Iterable[DataFile] = (), version: int = -1) -> None:
        self.files: list[DataFile] = []
        self._firsts: list[int] = []
        self._before: list[int] = []  # messages in all files before this one
        self._timed: list[int] = []  # first sequences of the files with times
        self._total = 0
        self.version = version
        self.extend(files, version)

    def extend(self, files: Iterable[DataFile], version: int) -> None:
        """Take in the files of the commits up to `version`, in order."""
        for file in files:
            if file.rows == 0:
                continue
            if self.files and file.first <= self.files[-1].last:
                raise ValueError(f"files out of order: {file.first} after {self.files[-1].last}")
            # `files` grows last: a reader in another thread never sees a file without its sums.
            self._before.append(self._total)
            self._firsts.append(file.first)
            self._total += file.rows
            self.files.append(file)
            if file.times is not None:
                self._timed.append(file.first)
        self.version = max(self.version, version)

    @property
    def tail(self) -> int:
        """The last sequence published, or -1."""
        return self.files[-1].last if self.files else -1

    @property
    def total(self) -> int:
        """How many messages the index knows."""
        return self._total

    def _rank(self, seq: int) -> int:
        """How many messages have a sequence <= `seq`."""
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return 0
        return self._before[at] + min(seq - self._firsts[at] + 1, self.files[at].rows)

    def count(self, first: int, last: int) -> int:
        """How many messages lie in ``first..last``, inclusive."""
        at = bisect_right(self._firsts, first) - 1
        if at >= 0 and first <= last <= self.files[at].last:
            return last - first + 1
        return max(0, self._rank(last) - self._rank(first - 1)) if last >= first else 0

    def cut(self, first: int, count: int) -> int:
        """The sequence of the `count`-th message (from 1) at or after `first`. Raises IndexError past the tail."""
        rank = self._rank(first - 1) + count - 1
        if count < 1 or rank >= self._total:
            raise IndexError(f"no {count} messages from {first} on")
        at = bisect_right(self._before, rank) - 1
        return self._firsts[at] + rank - self._before[at]

    def at_or_after(self, seq: int) -> int | None:
        """The first message at or after `seq`, or None."""
        at = bisect_right(self._firsts, seq) - 1
        if at >= 0 and seq <= self.files[at].last:
            return seq
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def at_or_before(self, seq: int) -> int | None:
        """The last message at or before `seq`, or None."""
        at = bisect_right(self._firsts, seq) - 1
        return min(seq, self.files[at].last) if at >= 0 else None

    def first_published_since(self, instant: int) -> int:
        """The first sequence of the first commit at or after `instant` (microseconds); past the tail if there is none."""
        # Commit times may step back by a clock's error, so look at all: the first that is late enough.
        return next((f.first for f in self.files if f.committed_at >= instant), self.tail + 1)

    def slices(self, first: int, last: int) -> Iterator[FileSlice]:
        """The row slices that hold the messages of ``first..last``, in order."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        stop = bisect_left(self._firsts, last + 1)
        for file in self.files[at:stop]:
            start, end = max(first, file.first), min(last, file.last)
            if start <= end:
                rows = end - start + 1
                yield FileSlice(file.path, start - file.first, rows, start, file.committed_at, file.size * rows // file.rows)

    def is_timed(self, first: int, last: int) -> bool:
        """Whether a file that reaches into ``first..last`` holds messages with a deliver_at or expires_at."""
        at = max(0, bisect_right(self._timed, first) - 1)  # the one that begins before, and the one that begins after
        return any(seq <= last and self.file_at(seq).last >= first for seq in self._timed[at : at + 2])

    def timed_after(self, seq: int) -> bool:
        """Whether any file with such messages reaches past `seq`."""
        return bool(self._timed) and self.file_at(self._timed[-1]).last > seq

    def timed_files(self, above: int) -> list[DataFile]:
        """The files with such messages that reach past a sequence."""
        return [self.file_at(seq) for seq in self._timed[max(0, bisect_right(self._timed, above) - 1) :] if self.file_at(seq).last > above]

    def file_at(self, seq: int) -> DataFile:
        """The file that holds a message, or the last one before a gap."""
        return self.files[bisect_right(self._firsts, seq) - 1]

    def size(self, first: int, last: int) -> int:
        """Estimated bytes of the messages in ``first..last`` as they lie in the files."""
        return sum(piece.size for piece in self.slices(first, last))
