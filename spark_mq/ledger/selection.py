"""Select messages for a lease: what the group gets of them, as far as the budget allows."""

from __future__ import annotations

from typing import Final

from spark_mq.ledger.budget import Budget
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.walk_filter import SelectedPiece, WalkFilter, add_joined

__all__ = ["MAX_PIECES", "Selection"]

MAX_PIECES: Final = 1_000  # more pieces in one lease would make its commit large


class Selection:
    """The pieces that a lease takes, and those that it skips by its `filter`."""

    def __init__(
        self,
        index: MessageIndex,
        budget: Budget,
        filter: WalkFilter | None,
        max_pieces: int | None = MAX_PIECES,
    ) -> None:
        self.index, self.budget, self.filter = index, budget, filter
        self._max_pieces = max_pieces
        self.taken: list[SelectedPiece] = []

    @property
    def skipped(self) -> list[SelectedPiece]:
        return [] if self.filter is None else self.filter.skipped

    @property
    def full(self) -> bool:
        if self.filter is not None and self.filter.is_full(len(self.taken)):
            return True
        if self.budget.messages < 1:
            return True
        return self._max_pieces is not None and len(self.taken) >= self._max_pieces

    def emptied(self, budget: Budget) -> Selection:
        """Return a selection of nothing with another budget."""
        row_filter = None if self.filter is None else self.filter.without_skipped()
        return Selection(self.index, budget, row_filter, self._max_pieces)

    def take(
        self, row: int | None, begins: int, run: Interval, most: int | None = None
    ) -> tuple[int, int]:
        """Take up to `most` messages of a run of the file from `begins` on.

        Return how many it took, and the last message that it has taken or skipped.
        """
        if self.filter is None:
            taken = self._add(row, begins, run, most)
            return taken, run[0] + taken - 1
        taken, last_seen = 0, run[0] - 1
        for event, first, last in self.filter.runs(row, *run):
            if taken == most or self.full:
                break
            if event:
                self.filter.skip(row, begins, (first, last), event)
                last_seen = last
            else:
                left = None if most is None else most - taken
                fits = self._add(row, begins, (first, last), left)
                taken, last_seen = taken + fits, first + fits - 1
        return taken, last_seen

    def take_all(self, row: int | None, first: int, last: int) -> None:
        """Take the messages of a range, which may span files."""
        if self.filter is not None:
            for begins, _, low, high in self.index.pieces_with_slots(first, last):
                if self.full:
                    return
                self.take(row, begins, (begins + low, begins + high))
        elif count := self.budget.take(first, last):
            if count <= last - first:  # there are gaps, or more messages
                first = self.index.first_at_or_after(first) or first
                last = self.index.nth_from(first, count)
            self.taken.append(SelectedPiece(row, first, last, count))

    def _add(self, row: int | None, begins: int, run: Interval, most: int | None) -> int:
        """Add what fits of a run of one file, and return how many messages."""
        if fits := self.budget.take(*run, most):
            run = (run[0], run[0] + fits - 1)
            add_joined(self.taken, self.index, row, begins, run)
        return fits
