"""Reading row slices of the data files of ``messages/``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq import delta
from spark_mq.index import Slice
from spark_mq.pages import PagedFile
from spark_mq.payload import FILE_SCHEMA, column_as

__all__ = ["SliceReader"]

_WHOLE_ROWS: Final = 50_000
_WHOLE_BYTES: Final = 32 * 2**20
"""A row group with more than either is not read as a whole, nor kept: a reader holds its slice, not what lies around it."""
_STEP_ROWS: Final = 10_000


class SliceReader:
    """Reads row slices of data files. Keeps the last small row group: scattered messages lie many to a group, and it is read once."""

    def __init__(self, files: delta.Files, columns: list[str] | None = None) -> None:
        self.files = files
        self._schema = FILE_SCHEMA if columns is None else pa.schema([f for f in FILE_SCHEMA if f.name in columns])
        self._path = ""

    def read(self, piece: Slice) -> pa.Table:
        """The rows of one slice in the types of FILE_SCHEMA. Only what holds them is read: row groups, or pages of large ones."""
        if piece.path != self._path:
            self._open(piece.path)
        end, parts = piece.offset + piece.rows, []
        for group in range(bisect_right(self._starts, piece.offset) - 1, bisect_left(self._starts, end)):
            start = self._starts[group]
            upto = min(end - start, self._file.metadata.row_group(group).num_rows)
            if (first := max(piece.offset - start, 0)) < upto:
                parts.append(self._rows(group, first, upto))
        table = pa.concat_tables(parts) if parts else self._file.schema_arrow.empty_table()
        if table.num_rows != piece.rows:
            raise pa.ArrowInvalid(f"it has {self._file.metadata.num_rows} rows, fewer than its commit says")
        return pa.table([column_as(table, f, piece) for f in self._schema], schema=self._schema)

    def by_row_group(self, piece: Slice) -> Iterator[Slice]:
        """A slice in pieces that lie in one row group each: what is broken in one leaves the others alone."""
        if piece.path != self._path:
            self._open(piece.path)
        start, end = piece.offset, piece.offset + piece.rows
        for upto in (*(at for at in self._starts if start < at < end), end):
            yield replace(piece, offset=start, rows=upto - start, first=piece.first + start - piece.offset)
            start = upto

    def _open(self, path: str) -> None:
        self._path, self._group = "", -1
        self._raw = self.files.open(path)
        self._file = pq.ParquetFile(self._raw, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
        meta = self._file.metadata
        self._starts = list(accumulate((meta.row_group(group).num_rows for group in range(meta.num_row_groups - 1)), initial=0))
        self._present = [name for name in self._schema.names if name in self._file.schema_arrow.names]
        self._pages: PagedFile | None = None
        self._walks: dict[tuple[int, tuple[str, ...]], _Walk] = {}
        self._path = path

    def _rows(self, group: int, first: int, end: int) -> pa.Table:
        """Rows of one row group, by their numbers in it."""
        if not self._present:
            return pa.table({"": pa.nulls(end - first)})
        meta = self._file.metadata.row_group(group)
        if meta.num_rows > _WHOLE_ROWS or meta.total_byte_size > _WHOLE_BYTES:
            return self._paged(group, first, end)
        if group != self._group:
            self._table, self._group = self._file.read_row_group(group, columns=self._present), group
        return self._table.slice(first, end - first)

    def _paged(self, group: int, first: int, end: int) -> pa.Table:
        if self._pages is None:
            try:
                self._pages = PagedFile(self._raw)
            except ValueError as error:
                raise pa.ArrowInvalid(str(error)) from error
        try:
            found = {name: self._pages.column(group, name, first, end) for name in self._present}
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        rest = tuple(name for name, column in found.items() if column is None)
        if rest:
            walk = self._walks.get((group, rest))
            if walk is None or walk.at > first:
                walk = _Walk(self.files.open(self._path), group, rest)
                self._walks = {(group, rest): walk}
            rows = walk.rows(first, end)
            found |= {name: rows[name] for name in rest}
        return pa.table({name: found[name] for name in self._present})


class _Walk:
    """Goes through a row group once, front to back, and holds a step of it at a time: for columns whose pages cannot be found."""

    def __init__(self, raw: object, group: int, names: tuple[str, ...]) -> None:
        # With a buffer, or a whole column chunk of the group would be fetched at once.
        file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us", page_checksum_verification=True, buffer_size=2**20, pre_buffer=False)
        self._steps = file.iter_batches(_STEP_ROWS, row_groups=[group], columns=list(names))
        self._step = pa.table({name: [] for name in names})
        self._begin = 0
        self.at = 0
        """The first row that it can still give."""

    def rows(self, first: int, end: int) -> pa.Table:
        parts = []
        self.at = first
        while True:
            if self._begin + self._step.num_rows > first:
                upto = min(end - self._begin, self._step.num_rows)
                low = max(first - self._begin, 0)
                parts.append(self._step.slice(low, upto - low))
                if self._begin + upto >= end:
                    return pa.concat_tables(parts)
            self._begin += self._step.num_rows
            step = next(self._steps, None)
            if step is None:
                raise pa.ArrowInvalid(f"a row group ends after {self._begin} rows, before what its metadata tells of")
            self._step = pa.Table.from_batches([step])
