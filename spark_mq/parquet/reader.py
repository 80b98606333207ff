"""Reading row slices of the data files of ``messages/``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.pages import PageReader
from spark_mq.parquet.writer import FILE_SCHEMA, column_as, too_few, unreadable

__all__ = ["MessageReader", "sequences_of", "spread"]

_WHOLE_ROWS: Final = 50_000
_WHOLE_BYTES: Final = 32 * 2**20
"""A row group with more than either is not read as a whole, nor kept: a reader holds its slice, not what lies around it."""
_FEW_SPANS: Final = 4
"""Each costs the pages that it touches; with more of them the row group is read once, for all."""
_STEP_ROWS: Final = 10_000


def sequences_of(pieces: Iterable[FileSlice]) -> pa.Array:
    """The sequences of the rows of some slices, one after the other."""
    return pa.concat_arrays([pa.arange(piece.first, piece.first + piece.rows) for piece in pieces])


def spread(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    """A column in which each value stands for so many rows."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), rows[0])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(accumulate(rows), pa.int64()), pa.array(values, kind))
    return pc.run_end_decode(runs)


class MessageReader:
    """Reads row slices of data files. Keeps the last small row group: scattered messages lie many to a group, and it is read once."""

    def __init__(self, files: ObjectStore, columns: list[str] | None = None) -> None:
        self.files = files
        self._schema = FILE_SCHEMA if columns is None else pa.schema([f for f in FILE_SCHEMA if f.name in columns])
        self._path = ""

    def read(self, *pieces: FileSlice) -> pa.Table:
        """The rows of some slices, one after the other, in the types of FILE_SCHEMA. Only what holds them is read: row groups, or pages.

        Many slices of one file cost little more than one: a lease of what was nacked here and there has thousands.
        """
        parts = [self._of_file(list(those)) for _, those in groupby(pieces, key=lambda piece: piece.path)]
        return pa.concat_tables(parts) if parts else self._schema.empty_table()

    def told(self, *pieces: FileSlice) -> pa.Table:
        """As :meth:`read`. Raises CorruptLog for the slice that cannot be read, StorageError where that is the store's doing."""
        try:
            return self.read(*pieces)
        except (OSError, pa.ArrowException) as error:
            if len(pieces) > 1:
                return pa.concat_tables([self.told(piece) for piece in pieces])  # one by one, to tell which
            raise unreadable(self.files, pieces[0], error) from error

    def _of_file(self, pieces: list[FileSlice]) -> pa.Table:
        if pieces[0].path != self._path:
            self._open(pieces[0].path)
        spans = [span for piece in pieces for span in self._spans(piece)]
        parts = [self._typed(group, [(first, end) for _, first, end in those]) for group, those in groupby(spans, key=itemgetter(0))]
        table = pa.concat_tables(parts) if parts else self._file.schema_arrow.empty_table()
        if table.num_rows != sum(piece.rows for piece in pieces):
            raise too_few(self._file.metadata.num_rows)
        sequences, at = sequences_of(pieces), pieces[0].committed_at
        return pa.table([column_as(table, f, sequences, at) for f in self._schema], schema=self._schema)

    def _spans(self, piece: FileSlice) -> Iterator[tuple[int, int, int]]:
        """Where a slice lies: row groups, and in each the first row and the one after the last."""
        end = piece.offset + piece.rows
        for group in range(bisect_right(self._starts, piece.offset) - 1, bisect_left(self._starts, end)):
            start = self._starts[group]
            upto = min(end - start, self._file.metadata.row_group(group).num_rows)
            if (first := max(piece.offset - start, 0)) < upto:
                yield group, first, upto

    def by_row_group(self, piece: FileSlice) -> Iterator[FileSlice]:
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
        self._pages: PageReader | None = None
        self._walks: dict[tuple[int, tuple[str, ...]], _Walk] = {}
        self._path = path

    def _typed(self, group: int, spans: list[tuple[int, int]]) -> pa.Table:
        """Rows of one row group in one and the same types, however they are read."""
        if not self._present:
            return pa.table({"": pa.nulls(sum(end - first for first, end in spans))})
        rows = self._rows(group, spans)
        # Not safe: a foreign writer's nanoseconds are cut off, not refused.
        return pa.table({name: rows[name].cast(FILE_SCHEMA.field(name).type, safe=False) for name in self._present})

    def _rows(self, group: int, spans: list[tuple[int, int]]) -> pa.Table:
        """Rows of one row group, by their numbers in it: each span up to its second number."""
        meta = self._file.metadata.row_group(group)
        large = meta.num_rows > _WHOLE_ROWS or meta.total_byte_size > _WHOLE_BYTES
        few = len(spans) <= _FEW_SPANS and 2 * sum(end - first for first, end in spans) <= meta.num_rows
        if large or (few and group != self._group):
            return pa.concat_tables([self._paged(group, first, end) for first, end in spans])
        if group != self._group:
            self._table, self._group = self._file.read_row_group(group, columns=self._present), group
        if len(spans) == 1:
            return self._table.slice(spans[0][0], spans[0][1] - spans[0][0])
        return self._table.take(pa.concat_arrays([pa.arange(*span) for span in spans]))

    def _paged(self, group: int, first: int, end: int) -> pa.Table:
        try:
            if self._pages is None:
                self._pages = PageReader(self._raw, (self.files.root, self._path))
            found = {name: self._pages.column(group, name, first, end) for name in self._present}
        except (ValueError, OSError, pa.ArrowException) as error:
            if self._pages is not None:
                self._pages.forget()
            raise error if isinstance(error, OSError | pa.ArrowException) else pa.ArrowInvalid(str(error)) from error
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
