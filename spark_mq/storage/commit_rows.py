"""Convert commits of ``messages/`` to rows of ``commits/``, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.data_files import FileColumns, FileList, FileTexts
from spark_mq.ledger.delivery_times import NO_TIME, TimedRun
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import ORDINAL_BITS
from spark_mq.util.columns import to_array, to_arrow

__all__ = [
    "COMMITS_SCHEMA",
    "PRODUCER_NUMBER",
    "PUBLISH",
    "REWRITE",
    "file_columns",
    "of_kind",
    "producer_number_rows",
    "publish_rows",
    "rewrite_rows",
]

_INSTANT = pa.timestamp("us", tz="UTC")
_RUN: Final = pa.struct([("rows", pa.int64()), ("deliver_at", _INSTANT), ("expires_at", _INSTANT)])
_RUNS: Final = pa.list_(_RUN)

# The kinds of a row.
PUBLISH: Final = "publish"  # a file of messages
REWRITE: Final = "rewrite"  # a file that publishes nothing, such as one by OPTIMIZE
# A producer's number. Rows that were written together have only the latest of each app.
PRODUCER_NUMBER: Final = "mark"

COMMITS_SCHEMA: Final = pa.schema(
    [
        pa.field("version", pa.int64()),  # of ``messages/``, whose commit the row describes
        pa.field("kind", pa.string()),
        pa.field("path", pa.string()),
        pa.field("first", pa.int64()),  # sequence
        # The last sequence. For a rewrite an upper bound of its sequences, or MAX_SEQUENCE.
        pa.field("last", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("size", pa.int64()),  # in bytes
        pa.field("committed_at", _INSTANT),
        # Runs of rows with the same times, if there are any. deliver_at is rounded up to a second.
        pa.field("times", _RUNS),
        pa.field("app", pa.string()),  # of a producer number
        pa.field("number", pa.int64()),  # of a producer number
        pa.field("slots", pa.string()),  # the rows of each slot, if there are slots
        pa.field("batch", pa.string()),  # the message batch of a file
        pa.field("replaces", pa.string()),  # the messages that those of a file replace
        pa.field("consumer_group", pa.string()),  # the only group that gets those of a file
    ]
)


def publish_rows(files: FileList, start: int, end: int) -> pa.Table:
    """Return the rows of the files at places `start` to `end`."""
    part = slice(start, end)
    first, rows = to_arrow(files.firsts[part]), to_arrow(files.rows[part])
    return _table(
        end - start,
        {
            "version": pc.shift_right(first, ORDINAL_BITS),
            "kind": pa.repeat(pa.scalar(PUBLISH), end - start),
            "path": files.paths.to_arrow(start, end).cast(pa.string()),
            "first": first,
            "last": pc.subtract(pc.add(first, rows), 1),
            "rows": rows,
            "size": to_arrow(files.sizes[part]),
            "committed_at": to_arrow(files.committed_at[part]).cast(_INSTANT),
            "times": _times_column(files, start, end),
            "slots": _slots_column(files, start, end),
            "batch": _text_column(files.batches, files, start, end),
            "replaces": _text_column(files.replacing, files, start, end),
            "consumer_group": _text_column(files.addressed, files, start, end),
        },
    )


def rewrite_rows(rewritten: Iterable[tuple[str, int, int | None]]) -> pa.Table:
    """Return the rows of rewrites, given as path, version and last sequence if it is known."""
    found = [(path, at, MAX_SEQUENCE if last is None else last) for path, at, last in rewritten]
    columns = {
        "version": pa.array([version for _, version, _ in found], pa.int64()),
        "kind": pa.array([REWRITE] * len(found), pa.string()),
        "path": pa.array([path for path, _, _ in found], pa.string()),
        "last": pa.array([last for _, _, last in found], pa.int64()),
    }
    return _table(len(found), columns)


def producer_number_rows(numbers: Iterable[tuple[str, int, int]]) -> pa.Table:
    """Return the rows of producers' numbers, given as app, number and version."""
    found = list(numbers)
    columns = {
        "version": pa.array([version for _, _, version in found], pa.int64()),
        "kind": pa.array([PRODUCER_NUMBER] * len(found), pa.string()),
        "app": pa.array([app for app, _, _ in found], pa.string()),
        "number": pa.array([number for _, number, _ in found], pa.int64()),
    }
    return _table(len(found), columns)


def _table(rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return rows of ``commits/``. Missing columns are null."""
    whole = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type)
        for field in COMMITS_SCHEMA
    ]
    return pa.table(whole, schema=COMMITS_SCHEMA)


def _slots_column(files: FileList, start: int, end: int) -> pa.Array:
    """Return the slots of each file, or null without slots."""
    if not files.with_slots:
        return pa.nulls(end - start, pa.string())
    return pa.array([files.slots_of(first) or None for first in files.firsts[start:end]])


def _text_column(texts: FileTexts, files: FileList, start: int, end: int) -> pa.Array:
    """Return the text of each file, or null without one."""
    if not texts.firsts:
        return pa.nulls(end - start, pa.string())
    found = [texts.of(first) or None for first in files.firsts[start:end]]
    return pa.array(found, pa.string())


def _times_column(files: FileList, start: int, end: int) -> pa.Array:
    """Return the runs of each file, or null without times."""
    found = [files.times_of(first) for first in files.firsts[start:end]] if files.timed else []
    if not any(found):
        return pa.nulls(end - start, _RUNS)
    runs, counts = (array("q"), array("q"), array("q")), array("q")
    for times in found:
        counts.append(0 if times is None else times.append_to(*runs))
    values = pa.StructArray.from_arrays(
        [to_arrow(runs[0]), _instants(runs[1]), _instants(runs[2])], fields=list(_RUN)
    )
    offsets = pa.array(accumulate(counts, initial=0), pa.int32())
    missing = pa.array([times is None for times in found])
    return pa.ListArray.from_arrays(offsets, values, type=_RUNS, mask=missing)


def _instants(times: array[int]) -> pa.Array:
    column = to_arrow(times)
    return pc.if_else(pc.equal(column, NO_TIME), None, column).cast(_INSTANT)


def of_kind(
    rows: pa.Table, wanted: pa.ChunkedArray, kind: str, *names: str
) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of the wanted rows of one kind."""
    mask = pc.and_(wanted, pc.equal(rows["kind"], kind))
    return zip(*(rows[name].filter(mask).to_pylist() for name in names), strict=True)


def file_columns(rows: pa.Table, wanted: pa.ChunkedArray | None = None) -> FileColumns:
    """Return the published files that the wanted rows describe, in sequence order."""
    mask = pc.and_(pc.equal(rows["kind"], PUBLISH), pc.greater(rows["rows"], 0))
    mask = mask if wanted is None else pc.and_(mask, wanted)
    # One column after the other, because a copy of the whole table takes much memory.
    firsts = to_array(rows["first"].filter(mask))
    order = None
    if any(later < first for first, later in pairwise(firsts)):
        order = pc.sort_indices(to_arrow(firsts))
        firsts = to_array(to_arrow(firsts).take(order))

    def column(name: str) -> pa.ChunkedArray:
        found = rows[name].filter(mask)
        return found if order is None else found.take(order)

    return FileColumns(
        firsts,
        to_array(column("rows")),
        to_array(column("size")),
        to_array(column("committed_at")),
        column("path"),
        _runs(column("times")),
        _texts(column("slots")),
        _texts(column("batch")),
        _texts(column("replaces")),
        _texts(column("consumer_group")),
    )


def _texts(column: pa.ChunkedArray) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each file that has one."""
    base = 0
    for chunk in column.chunks:
        for at in pc.indices_nonzero(pc.is_valid(chunk)).to_pylist():
            yield base + at, chunk[at].as_py()
        base += len(chunk)


def _runs(column: pa.ChunkedArray) -> Iterator[tuple[int, Iterable[TimedRun]]]:
    """Yield the place and the runs of each file with times."""
    base = 0
    for chunk in column.chunks:
        for at in pc.indices_nonzero(pc.is_valid(chunk)).to_pylist():
            values = chunk[at].values
            if len(values):
                rows = values.field("rows").to_pylist()
                due, ends = (
                    values.field(name).cast(pa.int64()).to_pylist()
                    for name in ("deliver_at", "expires_at")
                )
                yield base + at, zip(rows, due, ends, strict=True)
        base += len(chunk)
