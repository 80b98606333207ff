"""Count in histograms how long messages wait for a lease, and how long leases take to settle.

The numbers come from the events of ledger commits, of which each request reads the new ones. So no
lease or settle does anything for them.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.walk import due_times
from spark_mq.operations.context import QueueContext
from spark_mq.storage.history_table import history_rows
from spark_mq.storage.ledger_files import LedgerCommit
from spark_mq.util.clock import SECOND, to_datetime
from spark_mq.util.records import Record

BOUNDS: Final = (0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0)
"""The upper bounds of the buckets in seconds. The last bucket has none."""

LOOK_SECONDS: Final = 2.0
"""How long one call reads commits that no sweep has archived. The next one reads the others."""
_SKEW: Final = 3_600 * SECOND  # by which the clocks of two writers may differ
_SETTLES: Final = ("acked", "nacked", "rejected")
_LEASES: Final = ("consumer_group", "leased_at", "first", "last")
_ENDS: Final = ("consumer_group", "leased_at", "committed_at", "message_count")
_COLUMNS: Final = ("event", "first_leased_at", *dict.fromkeys((*_LEASES, *_ENDS)))


@dataclass(frozen=True, slots=True)
class Histogram(Record):
    """Messages by a duration.

    Attributes
    ----------
    counts
        The messages whose duration is at most 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3,600 and
        21,600 seconds, and their number in all.
    seconds
        The sum of their durations.
    """

    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupDurations(Record):
    """Histograms of a group, since the first call in this process that asked for them.

    Attributes
    ----------
    time_to_lease
        From the time when a message became due to its first lease. A message that was released or
        that a seek made unread counts again.
    time_to_settle
        From a lease to the ack, nack or reject of a message.
    """

    time_to_lease: Histogram
    time_to_settle: Histogram


class _Tally:
    def __init__(self) -> None:
        self.buckets, self.seconds = array("q", bytes(8 * (len(BOUNDS) + 1))), 0.0

    def add(self, duration: int, messages: int) -> None:
        seconds = max(0, duration) / SECOND
        self.buckets[bisect_left(BOUNDS, seconds)] += messages
        self.seconds += seconds * messages

    def histogram(self) -> Histogram:
        return Histogram(tuple(accumulate(self.buckets)), self.seconds)


class DurationReader:
    """Keeps the histograms of all groups of a queue. Thread-safe."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._done = -1  # the last version of ``leases/`` that was counted
        self._to_lease = defaultdict[str, _Tally](_Tally)
        self._to_settle = defaultdict[str, _Tally](_Tally)

    def read(self, groups: Iterable[str], index: MessageIndex) -> dict[str, GroupDurations]:
        """Count the new commits, and return the histograms of some groups by name."""
        with self._lock:
            self._count_new(index)
            return {
                name: GroupDurations(
                    self._to_lease[name].histogram(), self._to_settle[name].histogram()
                )
                for name in groups
            }

    def _count_new(self, index: MessageIndex) -> None:
        ledgers, history = self._context.ledgers, self._context.history
        latest = ledgers.version()
        if not 0 <= self._done <= latest:  # the first call, or the tables were restored
            self._done = latest
            return
        archived, _ = history.progress()
        if archived > self._done:  # reading a few files is faster than reading each commit
            since = to_datetime(max(0, (ledgers.commit_time(self._done) or 0) - _SKEW))
            filters = [("version", ">=", self._done + 1), ("committed_at", ">=", since)]
            rows, archived = history.read(filters, _COLUMNS)
            self._count(rows, index)
            self._done = archived
        commits = list(self._some_commits(latest))
        if commits:
            self._count(history_rows(commits), index)
            self._done = commits[-1].version

    def _some_commits(self, latest: int) -> Iterator[LedgerCommit]:
        ends = time.monotonic() + LOOK_SECONDS
        for commit in self._context.ledgers.commits(self._done + 1, latest):
            yield commit
            if time.monotonic() > ends:
                return

    def _count(self, rows: pa.Table, index: MessageIndex) -> None:
        leased = pc.equal(rows["event"], "leased")
        first = rows.filter(pc.and_(leased, pc.equal(rows["first_leased_at"], rows["leased_at"])))
        for group, at, low, high in _values(first, _LEASES):
            tally = self._to_lease[group]
            for messages, due_at in due_times(index, low, high):
                tally.add(at - due_at, messages)
        settled = pc.is_in(rows["event"], value_set=pa.array(_SETTLES))
        ended = rows.filter(pc.and_(settled, pc.is_valid(rows["leased_at"])))
        for group, leased_at, at, messages in _values(ended, _ENDS):
            self._to_settle[group].add(at - leased_at, messages)


def _values(rows: pa.Table, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    columns = (rows[name] for name in names)
    plain = (
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in columns
    )
    return zip(*(column.to_pylist() for column in plain), strict=True)
