"""Skip messages that a group's filter does not match, while a walk takes the others."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, Ledger

__all__ = [
    "MAX_FILTERED_FILES",
    "MAX_FILTERED_PIECES",
    "RowRuns",
    "Taken",
    "WalkFilter",
    "add_joined",
]

MAX_FILTERED_PIECES: Final = 4_000
"""Pieces that a lease and what it skips may have. More would make its commit large."""
MAX_FILTERED_FILES: Final = 1_000  # with messages that one lease skips, so that it commits soon


class Taken(NamedTuple):
    """Messages that a lease takes, or skips."""

    row: int | None  # of the ledger; None for unread messages
    first: int
    last: int
    messages: int


def add_joined(
    taken: list[Taken], index: MessageIndex, row: int | None, begins: int, run: Interval
) -> None:
    """Add a run of a file from `begins` on. Join it with the last piece if they touch."""
    (first, last), before = run, taken[-1] if taken else None
    count = last - first + 1
    if before is not None and before.row == row:
        near = before.last + 1 == first or first == begins
        if near and before.last < first and not index.count(before.last + 1, first - 1):
            first, count = before.first, before.messages + count
            taken.pop()
    taken.append(Taken(row, first, last, count))


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The rows of a data file in runs, of which every other one matches a filter."""

    ends: array[int]  # the row after each run
    first_matches: bool

    @property
    def all_match(self) -> bool:
        return self.first_matches and len(self.ends) == 1

    def between(self, low: int, high: int) -> Iterator[tuple[bool, int, int]]:
        """Yield whether each run matches, and its first and last row, in order."""
        at = bisect_right(self.ends, low)
        while low <= high:
            end = min(self.ends[at] - 1, high)
            yield (at % 2 == 0) is self.first_matches, low, end
            low, at = end + 1, at + 1


class WalkFilter:
    """The messages of a walk that a group's filter matches, and those that the walk skips.

    Messages of files that no check has read count as matching, and so do messages that were leased
    before.
    """

    def __init__(
        self, matches: Mapping[str, RowRuns], ledger: Ledger, index: MessageIndex, room: int
    ) -> None:
        self._matches, self._index = matches, index
        self._most = max(2, min(MAX_FILTERED_PIECES, room))
        leased = ("first_leased_at", "is set", True)
        self._leased = frozenset(ledger.find((AVAILABLE,), leased))
        self.skipped: list[Taken] = []
        self._files = set[int]()  # those with skipped messages, by first sequence

    def is_full(self, pieces: int) -> bool:
        """Return whether a lease of some pieces must end."""
        full = pieces + len(self.skipped) >= self._most
        return full or len(self._files) >= MAX_FILTERED_FILES

    def runs(self, row: int | None, first: int, last: int) -> Iterator[tuple[bool, int, int]]:
        """Yield whether each run of some messages of one file matches, and its bounds."""
        file = self._index.file_at(first)
        found = None if row in self._leased else self._matches.get(file.path)
        if found is None or found.all_match:
            yield True, first, last
            return
        for matches, low, high in found.between(first - file.first, last - file.first):
            yield matches, file.first + low, file.first + high

    def skip(self, row: int | None, begins: int, first: int, last: int) -> None:
        """Note messages of the file from `begins` on that do not match."""
        self._files.add(begins)
        add_joined(self.skipped, self._index, row, begins, (first, last))

    def skipped_before(self, end: int) -> list[Taken]:
        """Return the skipped messages before a sequence, at which a lease ends early."""
        return [one for one in self.skipped if one.last < end]

    def without_skipped(self) -> WalkFilter:
        """Return the same filter for another walk."""
        other = copy(self)
        other.skipped, other._files = [], set()
        return other
