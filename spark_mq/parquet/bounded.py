"""Read slices in parts that fit in memory, because messages may have any size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.message_index import FileSlice
from spark_mq.parquet.files import read_footer

T = TypeVar("T")

PART_BYTES: Final = 16 * 2**20  # of the messages in one part
MAX_ROWS: Final = 5_000  # messages in one part, because headers are Python objects for a while
_ROW_BYTES: Final = 64  # of a row in all columns, even if they are null
_HEADER_WEIGHT: Final = 8  # headers become Python objects for a while


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


def cut_by_size(piece: FileSlice, max_bytes: int) -> Iterator[FileSlice]:
    """Yield a slice in parts of about `max_bytes` bytes of its file."""
    return cut_rows(piece, max(1, piece.rows * max_bytes // max(1, piece.size)))


def cut_rows(piece: FileSlice, rows: int) -> Iterator[FileSlice]:
    """Yield a slice in parts of at most so many rows."""
    for start in range(0, piece.rows, rows):
        yield piece.part(start, min(rows, piece.rows - start))
