"""Read slices of the data files of ``messages/``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.claims import check_file, check_group
from spark_mq.parquet.delivery_times import clamp_instants
from spark_mq.parquet.files import FileStore
from spark_mq.parquet.footers import expanding_columns, footers, open_file, read_footer
from spark_mq.parquet.page_index import PageIndex
from spark_mq.parquet.pages import PageReader
from spark_mq.parquet.read_errors import row_count_error, unreadable_error, unreadable_reason
from spark_mq.parquet.read_slots import read_slots
from spark_mq.parquet.row_groups import MAX_GROUP_BYTES, row_groups
from spark_mq.parquet.schema import FILE_SCHEMA, INSTANT
from spark_mq.parquet.sequential import SequentialReader

__all__ = [
    "MessageReader",
    "cast_column",
    "repeat_values",
    "sequences_of",
    "verify_slice",
]

# A reader reads only pages of larger row groups. It holds its slice, not the row group.
_MAX_WHOLE_ROWS: Final = 50_000
_MAX_WHOLE_BYTES: Final = 32 * 2**20
# Each span costs the pages it touches. With more spans, one read of the row group is cheaper.
_FEW_SPANS: Final = 4


def _go_on() -> None:
    """Do nothing, because this reader holds no slot."""


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

    It keeps the last small row group, so scattered messages of one group are read once. With
    `share`, later readers of this process also find row groups that are read in parts.
    """

    def __init__(
        self, files: FileStore, columns: Iterable[str] | None = None, *, share: bool = False
    ) -> None:
        names = FILE_SCHEMA.names if columns is None else list(columns)
        self.files = files
        self._schema = pa.schema([f for f in FILE_SCHEMA if f.name in names])
        self._share, self._path = share, ""

    def read(self, *pieces: FileSlice) -> pa.Table:
        """Return the rows of slices in order, with null ids and publish times filled in.

        Many slices of one file cost little more than one slice. Raise CorruptLog if a slice cannot
        be read, and StorageError if the store does not answer.
        """
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
        # Most of a read from a store is waiting for the network.
        turn = nullcontext(_go_on) if "://" in self.files.root else read_slots.turn()
        parts = []
        with turn as offer:
            for path, group in groupby(pieces, key=attrgetter("path")):
                offer()
                parts.append(self._file_rows(path, list(group)))
        table = pa.concat_tables(parts)
        columns = [_filled(table[field.name], field, pieces) for field in self._schema]
        return pa.table(columns, schema=self._schema)

    def row_count(self, path: str) -> int:
        """Return the rows of a data file by its footer."""
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
            parts = [
                self._rows(group, [(first, end) for _, first, end in those])
                for group, those in groupby(spans if self._present else (), key=itemgetter(0))
            ]
        except (OSError, pa.ArrowException) as error:
            footers.remove(self._key)
            self._path = ""
            if isinstance(error, MemoryError):
                check_file(self._raw, self._footer.metadata, self._present)
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
        self._path, self._group, self._shared = "", -1, False
        self._raw = self.files.open(path)
        self._footer, self._key = read_footer(self.files.root, path, self._raw)
        self._present = [name for name in self._schema.names if name in self._footer.names]
        self._pages: PageReader | None = None
        self._walks: dict[tuple[int, tuple[str, ...]], SequentialReader] = {}
        self._path = path

    def _spans(self, piece: FileSlice) -> Iterator[tuple[int, int, int]]:
        """Yield the row groups of a slice, with first row and end."""
        starts, end = self._footer.starts, piece.offset + piece.rows
        for group in range(bisect_right(starts, piece.offset) - 1, bisect_left(starts, end)):
            upto = min(end - starts[group], self._footer.rows[group])
            if (first := max(piece.offset - starts[group], 0)) < upto:
                yield group, first, upto

    def _typed(self, rows: pa.Table, later: Collection[str] = ()) -> pa.Table:
        """Cast all columns but `later` to FILE_SCHEMA, and cut foreign nanoseconds off."""
        columns = [
            rows[name]
            if name in later
            else cast_column(rows[name], self._schema.field(name).type, safe=False)
            for name in self._present
        ]
        return pa.table(columns, names=self._present)

    def _rows(self, group: int, spans: list[tuple[int, int]]) -> pa.Table:
        """Return rows of one row group, in the types of FILE_SCHEMA."""
        meta = self._footer.metadata.row_group(group)
        wanted = sum(end - first for first, end in spans)
        if meta.num_rows > _MAX_WHOLE_ROWS or meta.total_byte_size > _MAX_WHOLE_BYTES:
            return self._pages_of(group, spans)
        if group != self._group:
            few = len(spans) <= _FEW_SPANS and 2 * wanted <= meta.num_rows
            table = self._kept(group, meta, wanted) if few else self._decoded(group)
            if table is None:
                return self._pages_of(group, spans)
            self._table, self._group, self._shared = table, group, few
        rows = pa.concat_tables([self._table.slice(first, end - first) for first, end in spans])
        if self._shared or len(spans) > 1:
            # A slice would keep the whole row group in memory as long as its reader holds it.
            # combine_chunks would return a single slice as it is.
            copies = [pa.concat_arrays(column.chunks) for column in rows.columns]
            rows = pa.table(copies, names=rows.schema.names)
        return self._typed(rows) if any(map(pa.types.is_dictionary, rows.schema.types)) else rows

    def _pages_of(self, group: int, spans: list[tuple[int, int]]) -> pa.Table:
        return pa.concat_tables(
            [self._typed(self._paged(group, first, end)) for first, end in spans]
        )

    def _kept(self, group: int, meta: pq.RowGroupMetaData, wanted: int) -> pa.Table | None:
        """Return a row group that readers of this process share, or None."""
        size = meta.total_byte_size
        if not self._share or self._key is None or size > MAX_GROUP_BYTES:
            return None
        key = self._key, group, tuple(self._present)
        return row_groups.table(key, wanted, meta.num_rows, size, partial(self._decoded, group))

    def _decoded(self, group: int) -> pa.Table:
        """Decode a whole row group."""
        metadata = self._footer.metadata
        meta = metadata.row_group(group)
        check_group(self._raw, meta, self._present)
        # Equal large values of these columns are held once, until they are read.
        names = expanding_columns(meta, self._present)
        file = open_file(self._raw, self.files.root, metadata, names)
        # One thread is enough, because the column of values takes nearly all of the time.
        rows = file.read_row_group(group, self._present, use_threads=False)
        return self._typed(rows, later=names)

    def _paged(self, group: int, first: int, end: int) -> pa.Table:
        try:
            found = self._page_reader().columns(group, self._present, first, end)
        except ValueError as error:
            if isinstance(error, pa.ArrowException):
                raise
            raise pa.ArrowInvalid(str(error)) from error
        rest = tuple(name for name, column in found.items() if column is None)
        if rest:
            rows = self._walk(group, rest, first).rows(first, end)
            found |= {name: rows[name] for name in rest}
        return pa.table({name: found[name] for name in self._present})

    def _page_reader(self) -> PageReader:
        if self._pages is None:
            if self._footer.pages is None:
                self._footer.pages = PageIndex.of(self._raw)
            self._pages = PageReader(self._raw, self._footer.pages)
        return self._pages

    def _walk(self, group: int, names: tuple[str, ...], first: int) -> SequentialReader:
        walk = self._walks.get((group, names))
        if walk is None or walk.at > first:
            walk = SequentialReader(self.files.open(self._path), group, names)
            self._walks = {(group, names): walk}
        return walk


def verify_slice(
    files: FileStore, piece: FileSlice, rows: int, *, whole: bool = False
) -> Iterator[tuple[FileSlice, str | None]]:
    """Yield the pieces of a slice, each with its damage or None.

    `rows` is the file's number of rows by its commit. Read all bytes of the slice if `whole`,
    otherwise the footer only. Raise OSError if the store does not answer.
    """
    reader = MessageReader(files)
    try:
        found = reader.row_count(piece.path)
        parts = list(reader.split_by_row_group(piece)) if whole else []
    except (OSError, pa.ArrowException) as error:
        path = piece.path
        yield piece, unreadable_reason(files, path, error, partial(_split, piece=piece))
        return
    if not whole:
        why = f"data file {piece.path} has {found} rows, and {rows} by its commit"
        yield piece, None if found >= rows else why
        return
    for part in parts:
        try:
            reader.try_read(part).validate(full=True)
            yield part, None
        except (OSError, pa.ArrowException) as error:
            read = partial(_read_piece, piece=part)
            yield part, unreadable_reason(files, piece.path, error, read)


def _split(files: FileStore, *, piece: FileSlice) -> object:
    return list(MessageReader(files).split_by_row_group(piece))


def _read_piece(
    files: FileStore, *, piece: FileSlice, columns: Iterable[str] | None = None
) -> object:
    return MessageReader(files, columns).try_read(piece).validate(full=True)


def cast_column(
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
