"""Convert commits of ``messages/`` to rows of ``commits/``, and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.data_files import (
    NO_TIME,
    DeliveryTimes,
    FileColumns,
    SparseColumn,
    Texts,
    optional_time,
)
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.ledger.message_index import ORDINAL_BITS
from spark_mq.parquet.schema import INSTANT
from spark_mq.util.columns import to_array, to_arrow

_RUN: Final = pa.struct([("rows", pa.int64()), ("deliver_at", INSTANT), ("expires_at", INSTANT)])
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
        pa.field("committed_at", INSTANT),
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


def publish_rows(files: FileColumns) -> pa.Table:
    first, rows = to_arrow(files.firsts), to_arrow(files.rows)
    return _table(
        len(files),
        {
            "version": pc.shift_right(first, ORDINAL_BITS),
            "kind": pa.repeat(pa.scalar(PUBLISH), len(files)),
            "path": files.paths.values.cast(pa.string()),
            "first": first,
            "last": pc.subtract(pc.add(first, rows), 1),
            "rows": rows,
            "size": to_arrow(files.sizes),
            "committed_at": to_arrow(files.committed_at).cast(INSTANT),
            "times": _column_of(files, files.times, _runs(files.times)),
            "slots": _text_column(files, files.slots),
            "batch": _text_column(files, files.batches),
            "replaces": _text_column(files, files.replaces),
            "consumer_group": _text_column(files, files.groups),
        },
    )


def _column_of(files: FileColumns, column: SparseColumn[Any], values: pa.Array) -> pa.Array:
    return values.take(pc.index_in(to_arrow(files.firsts), to_arrow(column.firsts)))


def _text_column(files: FileColumns, column: SparseColumn[str]) -> pa.Array:
    return _column_of(files, column, Texts.of(column.values).values.cast(pa.string()))


def _runs(times: SparseColumn[bytes]) -> pa.Array:
    counts, due, expires, ends = array("q"), array("q"), array("q"), array("q", [0])
    for data in times.values:
        stops, *instants = DeliveryTimes(data).columns
        counts.extend(stop - start for start, stop in pairwise((0, *stops)))
        for column, own in zip((due, expires), instants, strict=True):
            column.extend(own)
        ends.append(len(counts))
    columns = [to_arrow(counts), _instants(due), _instants(expires)]
    values = pa.StructArray.from_arrays(columns, fields=list(_RUN))
    return pa.ListArray.from_arrays(to_arrow(ends).cast(pa.int32()), values, type=_RUNS)


def _instants(times: array[int]) -> pa.Array:
    column = to_arrow(times)
    return pc.if_else(pc.equal(column, NO_TIME), None, column).cast(INSTANT)


def rewrite_rows(rewritten: Iterable[tuple[str, int, int | None]]) -> pa.Table:
    """Return the rows of rewrites, given as path, version and last sequence if it is known."""
    rows = [(path, at, MAX_SEQUENCE if last is None else last) for path, at, last in rewritten]
    return _rows(REWRITE, ("path", "version", "last"), rows)


def producer_number_rows(numbers: Iterable[tuple[str, int, int]]) -> pa.Table:
    """Return the rows of producers' numbers, given as app, number and version."""
    return _rows(PRODUCER_NUMBER, ("app", "number", "version"), list(numbers))


def _rows(kind: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = {"kind": pa.repeat(pa.scalar(kind), len(rows))}
    for at, name in enumerate(names):
        columns[name] = pa.array([row[at] for row in rows], COMMITS_SCHEMA.field(name).type)
    return _table(len(rows), columns)


def _table(rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return rows of ``commits/``. Missing columns are null."""
    whole = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type)
        for field in COMMITS_SCHEMA
    ]
    return pa.table(whole, schema=COMMITS_SCHEMA)


def of_kind(
    rows: pa.Table, wanted: pa.ChunkedArray, kind: str, *names: str
) -> Iterator[tuple[Any, ...]]:
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
        values = rows[name].filter(mask)
        return values if order is None else values.take(order)

    slots = _texts(firsts, column("slots"))
    return FileColumns(
        firsts,
        to_array(column("rows")),
        to_array(column("size")),
        to_array(column("committed_at")),
        _to_texts(column("path")),
        _times(firsts, column("times")),
        slots,
        FileColumns.priorities_of(slots),
        _texts(firsts, column("batch")),
        _texts(firsts, column("replaces")),
        _texts(firsts, column("consumer_group")),
    )


def _to_texts(column: pa.ChunkedArray) -> Texts:
    chunks = column.cast(pa.large_string()).chunks
    return Texts(pa.concat_arrays([Texts.of(()).values, *chunks]))  # a copy of what is kept alone


def _texts(firsts: array[int], column: pa.ChunkedArray) -> SparseColumn[str]:
    return SparseColumn(_firsts_with(firsts, pc.is_valid(column)), _to_texts(column.drop_null()))


def _firsts_with(firsts: array[int], mask: pa.ChunkedArray) -> array[int]:
    return to_array(to_arrow(firsts).filter(mask)) if pc.any(mask).as_py() else array("q")


def _times(firsts: array[int], column: pa.ChunkedArray) -> SparseColumn[bytes]:
    counts = pc.fill_null(pc.list_value_length(column), 0)
    values = column.combine_chunks().flatten()
    names = ("rows", "deliver_at", "expires_at")
    numbers = (pc.fill_null(values.field(name).cast(pa.int64()), NO_TIME) for name in names)
    columns = zip(*map(to_array, numbers), strict=True)
    runs = ((rows, optional_time(due), optional_time(expires)) for rows, due, expires in columns)
    files = (DeliveryTimes.of(islice(runs, count)).data for count in to_array(counts) if count)
    return SparseColumn(_firsts_with(firsts, pc.greater(counts, 0)), tuple(files))
