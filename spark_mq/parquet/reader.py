"""Read slices of data files in parts that fit in memory, and build tables of delivered messages."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.files import (
    check_group,
    expanding_columns,
    footers,
    open_file,
    read_footer,
    row_count_error,
    row_groups,
    unreadable_error,
    unreadable_reason,
)
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT, clamp_instants, effective_priorities
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.process import call_in_forks

T = TypeVar("T")

_ATTRIBUTES: Final = {"lease_expires_at": "expires_at", "worker_id": "worker"}
"""What a range calls a column, where the names differ."""

_PATIENCE_SECONDS: Final = 1.0  # then a thread reads all the same: one file may take another long

PART_BYTES: Final = 16 * 2**20  # of the messages in one part
MAX_ROWS: Final = 5_000  # messages in one part, because headers are Python objects for a while
_ROW_BYTES: Final = 64  # of a row in all columns, even if they are null
_HEADER_WEIGHT: Final = 8  # headers become Python objects for a while


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Decoding changes between Python and native code all the time. With more threads than cores, each
# waits for Python's lock at each change, so all of them become slower.
read_turns: Final = FairLock(places=max(2, _cores()))
call_in_forks(read_turns.reset)


def sequences_of(pieces: Iterable[FileSlice]) -> pa.Array:
    return pa.concat_arrays([pa.arange(piece.first, piece.first + piece.rows) for piece in pieces])


def repeat_values(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column with each value repeated by its number of rows."""
    if len(values) == 1 or len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], kind), sum(rows))
    ends = pa.array(accumulate(rows), pa.int64())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))


class MessageReader:
    """Read slices of data files, in the types of FILE_SCHEMA.

    It decodes whole row groups and keeps the last one, so scattered messages of one group are read
    once. With `share`, later readers of this process find row groups that are read in parts, too.
    """

    def __init__(
        self, files: ObjectStore, columns: Iterable[str] | None = None, *, share: bool = False
    ) -> None:
        names = FILE_SCHEMA.names if columns is None else list(columns)
        self.files = files
        self._schema = pa.schema([f for f in FILE_SCHEMA if f.name in names])
        self._share, self._path = share, ""

    def read(self, *pieces: FileSlice) -> pa.Table:
        """Return the rows of slices in order. Raise CorruptLog or StorageError."""
        try:
            return self.try_read(*pieces)
        except (OSError, pa.ArrowException) as error:
            if len(pieces) > 1:  # Find the slice that cannot be read.
                return pa.concat_tables([self.read(piece) for piece in pieces])
            (piece,) = pieces
            read = partial(_read_piece, piece=piece, columns=self._schema.names)
            raise unreadable_error(self.files, piece, error, read) from error

    def try_read(self, *pieces: FileSlice) -> pa.Table:
        """Return the rows as :meth:`read`, but raise OSError and pyarrow's errors unchanged."""
        if not pieces:
            return self._schema.empty_table()
        if not self.files.is_local:  # most of such a read is waiting for the network
            return self._read(pieces, lambda: None)
        turn = read_turns.hold(_PATIENCE_SECONDS)
        try:
            with turn:
                return self._read(pieces, turn.offer)
        finally:
            turn.release()  # an interrupt may have skipped the end of the block

    def _read(self, pieces: Sequence[FileSlice], before_file: Callable[[], None]) -> pa.Table:
        parts = []
        for path, group in groupby(pieces, key=attrgetter("path")):
            before_file()
            parts.append(self._file_rows(path, list(group)))
        table = pa.concat_tables(parts)
        columns = [_filled(table[field.name], field, pieces) for field in self._schema]
        return pa.table(columns, schema=self._schema)

    def row_count(self, path: str) -> int:
        self._open(path)
        return int(self._footer.metadata.num_rows)

    def split_by_row_group(self, piece: FileSlice) -> Iterator[FileSlice]:
        """Split a slice at row groups, because a broken one leaves the others alone."""
        self._open(piece.path)
        start, end = piece.offset, piece.offset + piece.rows
        for upto in (*(at for at in self._footer.starts if start < at < end), end):
            first = piece.first + start - piece.offset
            yield replace(piece, offset=start, rows=upto - start, first=first)
            start = upto

    def _file_rows(self, path: str, pieces: list[FileSlice]) -> pa.Table:
        self._open(path)
        try:
            spans = [span for piece in pieces for span in self._spans(piece)]
            parts = list(self._parts(spans)) if self._present else []
        except (OSError, pa.ArrowException):
            footers.forget(self._key)
            self._path = ""
            raise
        rows = sum(piece.rows for piece in pieces)
        if sum(end - first for _, first, end in spans) != rows:
            raise row_count_error(self._footer.metadata.num_rows)
        table = pa.concat_tables(parts) if parts else pa.table({"": pa.nulls(rows)})
        if table.num_rows != rows:
            raise row_count_error(table.num_rows)
        columns = [
            table[field.name] if field.name in table.schema.names else pa.nulls(rows, field.type)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)

    def _open(self, path: str) -> None:
        if path == self._path:
            return
        self._path, self._group = "", -1
        self._raw = self.files.open(path)
        self._footer, self._key = read_footer(self.files.root, path, self._raw)
        self._present = [name for name in self._schema.names if name in self._footer.names]
        self._path = path

    def _spans(self, piece: FileSlice) -> Iterator[tuple[int, int, int]]:
        starts, end = self._footer.starts, piece.offset + piece.rows
        for group in range(bisect_right(starts, piece.offset) - 1, bisect_left(starts, end)):
            upto = min(end - starts[group], self._footer.rows[group])
            if (first := max(piece.offset - starts[group], 0)) < upto:
                yield group, first, upto

    def _parts(self, spans: Iterable[tuple[int, int, int]]) -> Iterator[pa.Table]:
        """Yield the rows of spans. Whole row groups in a row are decoded together."""
        whole: list[int] = []
        for group, those in groupby(spans, key=itemgetter(0)):
            wanted = [(first, end) for _, first, end in those]
            rows = self._footer.rows[group]
            if wanted == [(0, rows)] and group != self._group:
                whole.append(group)
                continue
            if whole:
                yield self._typed(self._decoded(*whole))
                whole = []
            yield self._rows(group, wanted)
        if whole:
            yield self._typed(self._decoded(*whole))

    def _rows(self, group: int, spans: list[tuple[int, int]]) -> pa.Table:
        wanted = sum(end - first for first, end in spans)
        if group != self._group:
            self._table, self._group = self._shared(group, wanted), group
        # A slice would keep the whole row group in memory as long as its reader holds it.
        # combine_chunks would return a single slice as it is.
        rows = pa.concat_tables([self._table.slice(first, end - first) for first, end in spans])
        copies = [pa.concat_arrays(column.chunks) for column in rows.columns]
        rows = pa.table(copies, names=rows.schema.names)
        return self._typed(rows) if any(map(pa.types.is_dictionary, rows.schema.types)) else rows

    def _shared(self, group: int, wanted: int) -> pa.Table:
        if not self._share or self._key is None:
            return self._decoded(group)
        footer, key = self._footer, (self._key, group, tuple(self._present))
        decode = partial(self._decoded, group)
        return row_groups.table(key, wanted, footer.rows[group], footer.sizes[group], decode)

    def _decoded(self, *groups: int) -> pa.Table:
        metadata = self._footer.metadata
        names: set[str] = set()
        for meta in map(metadata.row_group, groups):
            check_group(meta, self._present)
            # Equal large values of these columns are held once, until they are read.
            names.update(expanding_columns(meta, self._present))
        file = open_file(self._raw, self.files.root, metadata, names)
        # One thread is enough, because the column of values takes nearly all of the time.
        rows = file.read_row_groups(groups, self._present, use_threads=False)
        return self._typed(rows, later=names)

    def _typed(self, rows: pa.Table, later: Collection[str] = ()) -> pa.Table:
        """Cast all columns but `later` to FILE_SCHEMA, and cut foreign nanoseconds off."""
        columns = [
            rows[name]
            if name in later
            else _cast_column(rows[name], self._schema.field(name).type, safe=False)
            for name in self._present
        ]
        return pa.table(columns, names=self._present)


def verify_slice(
    files: ObjectStore, piece: FileSlice, rows: int, *, whole: bool = False
) -> Iterator[tuple[FileSlice, str | None]]:
    """Yield the pieces of a slice, each with its damage or None. Raise OSError."""
    reader = MessageReader(files)
    try:
        stored_rows = reader.row_count(piece.path)
        parts = list(reader.split_by_row_group(piece)) if whole else []
    except (OSError, pa.ArrowException) as error:
        path = piece.path
        yield piece, unreadable_reason(files, path, error, partial(_split, piece=piece))
        return
    if not whole:
        why = f"data file {piece.path} has {stored_rows} rows, and {rows} by its commit"
        yield piece, None if stored_rows >= rows else why
        return
    for part in parts:
        try:
            reader.try_read(part).validate(full=True)
            yield part, None
        except (OSError, pa.ArrowException) as error:
            read = partial(_read_piece, piece=part)
            yield part, unreadable_reason(files, piece.path, error, read)


def _split(files: ObjectStore, *, piece: FileSlice) -> object:
    return list(MessageReader(files).split_by_row_group(piece))


def _read_piece(
    files: ObjectStore, *, piece: FileSlice, columns: Iterable[str] | None = None
) -> object:
    return MessageReader(files, columns).try_read(piece).validate(full=True)


def _cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, *, safe: bool = True
) -> pa.ChunkedArray:
    """Return a column in another type. Nested types are always cast."""
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), kind)])
    same = column.type == kind and not pa.types.is_nested(kind)
    return column if same else column.cast(kind, safe=safe)


def _filled(
    column: pa.ChunkedArray, field: pa.Field, pieces: Sequence[FileSlice]
) -> pa.ChunkedArray:
    """Fill null ids with the sequence, and null publish times with the time of the commit."""
    if field.type == INSTANT:
        column = clamp_instants(column)
    if field.name == "published_at" and column.null_count:
        times = [piece.committed_at for piece in pieces]
        known = repeat_values(times, [piece.rows for piece in pieces], pa.int64())
        return pc.coalesce(column, known.cast(INSTANT))
    if field.name == "message_id" and column.null_count:
        return pc.coalesce(column, sequences_of(pieces).cast(pa.string()))
    return column


def cut_slices(
    files: ObjectStore,
    slices: Iterable[tuple[FileSlice, T]],
    max_bytes: int = PART_BYTES,
    max_rows: int = MAX_ROWS,
) -> Iterator[list[tuple[FileSlice, T]]]:
    """Yield slices with their notes in order, in parts that fit in memory when decoded."""
    part: list[tuple[FileSlice, T]] = []
    rows, size = 0, 0.0
    sizes = _Sizes(files)
    for piece, note in slices:
        done = 0
        while done < piece.rows:
            room = max_rows - rows, max_bytes - size
            fit, taken = sizes.fitting(piece, done, min(room[0], piece.rows - done), room[1])
            if not fit and part:
                yield part
                part, rows, size = [], 0, 0.0
                continue
            fit = max(1, fit)  # a single message may be larger
            part.append((piece.part(done, fit), note))
            done, rows, size = done + fit, rows + fit, size + taken
    if part:
        yield part


def join_tables(
    tables: Iterable[pa.Table], max_bytes: int, max_rows: int | None = None
) -> Iterator[pa.Table]:
    """Yield tables joined to larger ones that fit in memory. Each table fits alone."""
    parts: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        rows, size = rows + table.num_rows, size + table.nbytes
        if parts and (size > max_bytes or (max_rows is not None and rows > max_rows)):
            yield pa.concat_tables(parts)
            parts, rows, size = [], table.num_rows, table.nbytes
            pa.default_memory_pool().release_unused()  # it keeps the freed memory
        parts.append(table)
    if parts:
        yield pa.concat_tables(parts)


class _Sizes:
    """The mean size of a row in each row group of the last file that was used."""

    def __init__(self, files: ObjectStore) -> None:
        self._files = files
        self._path: str | None = None
        self._starts: list[int] = []  # the first row of each row group, and the end
        self._widths: list[float] = []

    def fitting(self, piece: FileSlice, done: int, rows: int, room: float) -> tuple[int, float]:
        """Return how many of a slice's next rows fit, and their bytes."""
        if piece.path != self._path:
            self._path = piece.path
            self._read(piece.path)
        if self._starts[-1] < piece.offset + piece.rows:
            return rows, 0.0  # uncut: a reader refuses a whole slice of a file with fewer rows
        at = piece.offset + done
        end, taken = at + rows, 0.0
        while at < end:
            group = bisect_right(self._starts, at) - 1
            width, upto = self._widths[group], min(end, self._starts[group + 1])
            fit = min(upto - at, int((room - taken) / width))
            at, taken = at + fit, taken + fit * width
            if at < upto:
                break
        return at - piece.offset - done, taken

    def _read(self, path: str) -> None:
        try:
            footer, _ = read_footer(self._files.root, path, self._files.open(path))
        except (OSError, pa.ArrowException):
            self._starts = [0]  # a reader of these rows names the error
            return
        metadata = footer.metadata
        self._starts = [*footer.starts, metadata.num_rows]
        self._widths = [_width(metadata.row_group(at)) for at in range(metadata.num_row_groups)]


def _width(group: pq.RowGroupMetaData) -> float:
    columns = map(group.column, range(group.num_columns))
    return _ROW_BYTES + sum(_bytes(column, group.num_rows) for column in columns) / group.num_rows


def _bytes(column: pq.ColumnChunkMetaData, rows: int) -> float:
    weight = _HEADER_WEIGHT if column.path_in_schema.startswith("headers.") else 1
    size = column.total_uncompressed_size
    if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY":
        # As if each row had the whole dictionary.
        packed = column.data_page_offset - column.dictionary_page_offset
        ratio = size / max(1, column.total_compressed_size)
        size = max(size, min(packed * ratio, size) * rows)
    return float(weight * size)


def cut_rows(piece: FileSlice, rows: int) -> Iterator[FileSlice]:
    """Yield a slice in parts of at most so many rows."""
    for start in range(0, piece.rows, rows):
        yield piece.part(start, min(rows, piece.rows - start))


def to_delivery_table(
    payload: pa.Table | None,
    pieces: Sequence[tuple[FileSlice, Any]],
    schema: pa.Schema,
    constants: Mapping[str, Any],
) -> pa.Table:
    """Return messages in a schema. The other part of a piece has the rest, with microseconds."""
    rows = [piece.rows for piece, _ in pieces]

    def column(field: pa.Field) -> Any:
        if payload is not None and field.name in payload.schema.names:
            column = payload[field.name]
            if field.name == "priority":
                column = effective_priorities(column)
            return _cast_column(column, field.type)
        if field.name == "sequence":
            return sequences_of(piece for piece, _ in pieces)
        if field.name in constants:
            return _repeated([constants[field.name]], [sum(rows)], field.type)
        name = _ATTRIBUTES.get(field.name, field.name)
        return _repeated([getattr(of, name) for _, of in pieces], rows, field.type)

    return pa.table([column(field) for field in schema], schema=schema)


def _repeated(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return repeat_values(values, rows, pa.int64()).cast(INSTANT).cast(kind)
    return repeat_values(values, rows, kind)
