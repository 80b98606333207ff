"""List the newest dead letters, and count dead letters by reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.dead_letters import (
    is_own_letter,
    letter_schema,
    letter_tables,
)
from spark_mq.maintenance.redrive import find_unredriven
from spark_mq.operations.context import QueueContext
from spark_mq.operations.history import HEADER_PREFIX
from spark_mq.parquet.reader import MessageReader
from spark_mq.util.columns import sort_rows
from spark_mq.util.records import Converts, Record, rows_html

__all__ = ["DeadLetterReason", "DeadLetterReasons", "count_reasons", "newest_letters"]

_ROWS: Final = 10_000
"""Most letters with headers in memory, and most letters that a list reads."""
_KEYS: Final = ["reason", "consumer_group"]


@dataclass(frozen=True, slots=True)
class DeadLetterReason(Record):
    """Dead letters of one group that died for one reason.

    Attributes
    ----------
    reason, group
        Why they died, and the group. None if their headers do not name it.
    messages
        Their number.
    newest
        The sequence of the newest in the dead-letter queue.
    error
        The text of the newest one's last failure.
    """

    reason: str | None
    group: str | None
    messages: int
    newest: int
    error: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterReasons(Converts):
    """Dead letters by reason.

    Attributes
    ----------
    counted, complete
        The letters looked at, from the newest on, and whether these are all.
    reasons
        The counts, the largest first.
    """

    counted: int
    complete: bool
    reasons: tuple[DeadLetterReason, ...]

    def _rows(self) -> Sequence[DeadLetterReason]:
        return self.reasons

    def _repr_html_(self) -> str:
        which = "" if self.complete else "the newest "
        return rows_html(self.reasons, title=f"{which}{self.counted:,} dead letters by reason")


def count_reasons(context: QueueContext, n: int | None) -> DeadLetterReasons:
    dead = context.existing_dead_letters()
    if dead is None:
        return DeadLetterReasons(0, True, ())
    reader = MessageReader(dead.messages.files, ["headers"])
    found: dict[tuple[str | None, str | None], DeadLetterReason] = {}
    counted, complete = 0, True
    for piece in _pieces(dead, None, _ROWS):
        if n is not None and counted >= n:
            complete = False
            break
        wanted = piece.rows if n is None else min(piece.rows, n - counted)
        part = piece.part(piece.rows - wanted, wanted)
        complete = part.rows == piece.rows
        counted += part.rows
        for one in _reasons_of(context, reader, part):
            key = (one.reason, one.group)
            known = found.get(key, replace(one, messages=0))
            found[key] = replace(known, messages=known.messages + one.messages)
        if not complete:
            break
    order = sorted(found.values(), key=lambda one: (-one.messages, -one.newest))
    return DeadLetterReasons(counted, complete, tuple(order))


def newest_letters(context: QueueContext, n: int, before: int | None) -> pa.Table:
    dead = context.existing_dead_letters()
    found = letter_schema().empty_table()
    if dead is None:
        return found
    looked = 0
    for piece in _pieces(dead, before, n):
        interval = (piece.first, piece.first + piece.rows - 1)
        for table in letter_tables(dead.messages, [interval], piece.rows, skip=True):
            own = table.filter(is_own_letter(context, table))
            ordered = sort_rows(own, "dead_letter_sequence", descending=True)
            found = pa.concat_tables([found, ordered])
        looked += piece.rows
        if found.num_rows >= n or looked >= _ROWS:
            break
    return found.slice(0, n)


def _pieces(dead: QueueContext, before: int | None, rows: int) -> Iterator[FileSlice]:
    """Yield the letters that were not redriven in small slices, newest first."""
    index, intervals = find_unredriven(dead)
    top = index.last_sequence if before is None else min(before - 1, index.last_sequence)
    for first, last in reversed(intervals):
        for piece in reversed(list(index.slices(first, min(last, top)))):
            for end in range(piece.rows, 0, -rows):
                start = max(0, end - rows)
                yield piece.part(start, end - start)


def _reasons_of(
    context: QueueContext, reader: MessageReader, piece: FileSlice
) -> Iterator[DeadLetterReason]:
    try:
        headers = reader.read(piece)["headers"].combine_chunks()
    except CorruptLog:  # the list of letters leaves them out, too
        return
    names = ("queue", "queue_id", "reason", "group", "error")
    columns: dict[str, Any] = {name: _header(headers, HEADER_PREFIX + name) for name in names}
    columns["consumer_group"] = columns.pop("group")
    columns["row"] = pa.array(range(len(headers)), pa.int64())
    table = pa.table(columns)
    table = table.filter(is_own_letter(context, table))
    sums = table.group_by(_KEYS, use_threads=False).aggregate([("row", "count"), ("row", "max")])
    for row in sums.to_pylist():
        at = row["row_max"]
        yield DeadLetterReason(
            row["reason"],
            row["consumer_group"],
            row["row_count"],
            piece.first + at,
            columns["error"][at].as_py(),
        )


def _header(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of one header of each letter. The last one counts, as in a dict."""
    found = pc.map_lookup(headers, query_key=pa.scalar(name), occurrence="last")
    return found.cast(pa.string())
