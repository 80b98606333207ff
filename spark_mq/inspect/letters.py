"""List the newest dead letters, and group dead letters by failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.dead_letters import (
    header_columns,
    is_own_letter,
    letter_schema,
    letter_tables,
    read_pieces,
)
from spark_mq.maintenance.remaining_letters import find_remaining
from spark_mq.operations.context import QueueContext
from spark_mq.parquet.reader import MessageReader, repeat_values
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows
from spark_mq.util.error_shape import error_shapes
from spark_mq.util.records import Converts, Record, rows_html
from spark_mq.util.show import show_number

_ROWS: Final = 10_000
"""Most letters with headers in memory, and most letters that a list reads."""
_CAUSE: Final = ["consumer_group", "reason", "shape"]
_SAMPLES: Final = 3
_NAMED_KEYS: Final = 3
_COUNTED_KEYS: Final = 10_000  # of a failure. Above it, the rarer half is forgotten
_MOST: Final = 1_000  # failures. The letters of all others are counted as one
OTHERS: Final = "…"
_Cause: TypeAlias = tuple[str | None, str | None, str | None]  # group, reason and shape


@dataclass(frozen=True, slots=True)
class HotKey(Record):
    """A common key of a failure: its ``messages``, and their ``share`` of all (0 to 1)."""

    key: str | None
    messages: int
    share: float


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """Dead letters of one group that died for one reason, with errors of one shape.

    Attributes
    ----------
    group, reason
        The group, and why they died. None if their headers do not name it.
    shape
        Their errors, with ``<n>``, ``<text>``, ``<date>``, ``<path>`` and others in the place of
        what differs. A status code or another number that is the cause stays. None if they have no
        error. ``…`` counts all failures beyond the first 1,000.
    messages
        Their number.
    first_at, last_at
        When the first and the last of them were leased for the last time. For letters that were
        never leased, when they came into the dead-letter queue.
    newest
        The sequence of the newest in the dead-letter queue.
    error
        The text of the newest one's last failure.
    samples
        The sequences of the newest three in the dead-letter queue.
    keys
        The three most common keys. With more than 10,000 different keys, the counts may be low.
    """

    group: str | None
    reason: str | None
    shape: str | None
    messages: int
    first_at: datetime
    last_at: datetime
    newest: int
    error: str | None
    samples: tuple[int, ...]
    keys: tuple[HotKey, ...]

    @property
    def where(self) -> str:
        """Return the condition that selects these letters, for :meth:`spark_mq.Queue.redrive`.

        ``false`` for ``…``, because no condition selects all other failures.
        """
        if self.shape == OTHERS:
            return "false"
        pairs = (
            ("consumer_group", self.group),
            ("reason", self.reason),
            ("error_shape(error)", self.shape),
        )
        return " AND ".join(
            f"{name} IS NULL" if value is None else f"{name} = {_quoted(value)}"
            for name, value in pairs
        )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Failures(Converts):
    """Dead letters by failure.

    Attributes
    ----------
    counted, complete
        The letters looked at, from the newest on, and whether these are all.
    failures
        The failures, that with the most letters first.
    """

    counted: int
    complete: bool
    failures: tuple[Failure, ...]

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.failures)

    def _rows(self) -> Sequence[Failure]:
        return self.failures

    def _repr_html_(self) -> str:
        which = "" if self.complete else "the newest "
        return rows_html(
            self.failures, title=f"{which}{show_number(self.counted)} dead letters by failure"
        )


class RemainingLetters:
    """The letters that are neither redriven nor discarded, looked up once for several views."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._dead = context.existing_dead_letters()
        if self._dead is not None:
            self._index, self._intervals = find_remaining(self._dead)

    def failures(self, n: int | None) -> Failures:
        """Group the newest `n` letters by failure, or all with None."""
        if self._dead is None:
            return Failures(0, True, ())
        total = sum(self._index.count(first, last) for first, last in self._intervals)
        counted = total if n is None else min(n, total)
        reader = MessageReader(self._dead.messages.files, ["key", "headers"])
        tally = _Tally()
        for pieces in _batches(self._pieces(None), _ROWS, counted):
            for part, table in read_pieces(reader, pieces, skip=True):
                tally.add(self._context, part, table)
        return Failures(counted, counted == total, tally.failures())

    def newest(self, n: int, before: int | None) -> pa.Table:
        """Return the newest `n` letters before a sequence, the newest first."""
        newest = letter_schema().empty_table()
        if self._dead is None:
            return newest
        for pieces in _batches(self._pieces(before), min(n, _ROWS), _ROWS):
            intervals = [(piece.first, piece.last) for piece in pieces]
            rows = sum(piece.rows for piece in pieces)
            tables = list(
                letter_tables(self._dead.messages, self._index, intervals, rows, skip=True)
            )
            for table in reversed(tables):
                own = table.filter(is_own_letter(self._context, table))
                ordered = sort_rows(own, "dead_letter_sequence", descending=True)
                newest = pa.concat_tables([newest, ordered])
            if newest.num_rows >= n:
                break
        return newest.slice(0, n)

    def _pieces(self, before: int | None) -> Iterator[FileSlice]:
        last = self._index.last_sequence
        top = last if before is None else min(before - 1, last)
        for first, end in reversed(self._intervals):
            yield from reversed(list(self._index.slices(first, min(end, top))))


def _batches(pieces: Iterable[FileSlice], most: int, limit: int) -> Iterator[list[FileSlice]]:
    """Yield slices from the newest on, `most` rows at once and `limit` in all, each in order."""
    # A redrive of some letters leaves many slices of few rows, and each read has its price.
    batch, rows, left = list[FileSlice](), 0, limit
    for piece in pieces:
        end = piece.rows
        while end and left:
            taken = min(end, most - rows, left)
            end -= taken
            batch.append(piece.part(end, taken))
            rows, left = rows + taken, left - taken
            if rows == most:
                yield batch[::-1]
                batch, rows = [], 0
        if not left:
            break
    if batch:
        yield batch[::-1]


class _Tally:
    """Counts letters by failure, from the newest on, in constant memory."""

    def __init__(self) -> None:
        self._found: dict[_Cause, Failure] = {}
        self._keys = defaultdict[_Cause, Counter[str]](Counter)

    def add(self, context: QueueContext, pieces: Sequence[FileSlice], rows: pa.Table) -> None:
        letters = _by_headers(pieces, rows)
        letters = letters.filter(is_own_letter(context, letters))
        letters = letters.append_column("shape", error_shapes(letters["error"].combine_chunks()))
        letters = letters.append_column("row", pa.arange(0, letters.num_rows))
        sums = letters.group_by(_CAUSE, use_threads=False).aggregate(
            [("at", "min"), ("at", "max"), ("letter", "list"), ("row", "max")]
        )
        for row in sums.to_pylist():
            self._add(row, letters["error"][row["row_max"]].as_py())
        counts = letters.group_by([*_CAUSE, "key"], use_threads=False).aggregate(
            [([], "count_all")]
        )
        for row in counts.to_pylist():
            if row["key"] is not None:
                self._keys[self._cause(row)][row["key"]] += row["count_all"]
        for cause, keys in self._keys.items():
            if len(keys) > _COUNTED_KEYS:
                self._keys[cause] = Counter(dict(keys.most_common(_COUNTED_KEYS // 2)))

    def failures(self) -> tuple[Failure, ...]:
        failures = [self._with_keys(cause, failure) for cause, failure in self._found.items()]
        return tuple(sorted(failures, key=lambda failure: (-failure.messages, -failure.newest)))

    def _cause(self, row: dict[str, Any]) -> _Cause:
        cause = row["consumer_group"], row["reason"], row["shape"]
        if cause in self._found or len(self._found) < _MOST:
            return cause
        return None, None, OTHERS

    def _add(self, row: dict[str, Any], error: str | None) -> None:
        cause = self._cause(row)
        letters = row["letter_list"]
        first, last = to_datetime(row["at_min"]), to_datetime(row["at_max"])
        known = self._found.get(cause) or Failure(*cause, 0, first, last, -1, None, (), ())
        newest = max(known.newest, *letters)
        self._found[cause] = replace(
            known,
            messages=known.messages + len(letters),
            first_at=min(known.first_at, first),
            last_at=max(known.last_at, last),
            newest=newest,
            error=error if newest in letters else known.error,
            samples=tuple(sorted((*known.samples, *letters), reverse=True)[:_SAMPLES]),
        )

    def _with_keys(self, cause: _Cause, failure: Failure) -> Failure:
        keys = self._keys[cause].most_common(_NAMED_KEYS)
        return replace(failure, keys=tuple(HotKey(key, n, n / failure.messages) for key, n in keys))


def _by_headers(pieces: Sequence[FileSlice], rows: pa.Table) -> pa.Table:
    names = ("queue", "queue_id", "group", "reason", "error", "last_leased_at")
    columns = header_columns(pieces, rows, names)
    routed = [piece.committed_at for piece in pieces]
    routed = repeat_values(routed, [piece.rows for piece in pieces], pa.int64())
    columns["at"] = pc.coalesce(columns.pop("last_leased_at").cast(pa.int64()), routed)
    columns["letter"], columns["key"] = columns.pop("dead_letter_sequence"), rows["key"]
    return pa.table(columns)
