"""Estimate the bytes in memory of rows of a data file."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

from spark_mq.parquet.files import FileStore
from spark_mq.parquet.footers import read_footer
from spark_mq.parquet.page_index import DAMAGE, PageIndex
from spark_mq.parquet.thrift import Struct, decode, get, read_range

__all__ = ["RowSizes"]

# A row group with fewer bytes fits, however they are spread over its rows.
_SMALL_GROUP: Final = 4 * 2**20
_ROW_BYTES: Final = 64  # of a row in all columns, also if they are null
_HEADER_WEIGHT: Final = 8  # headers become Python objects for a while

# Field numbers of parquet.thrift, by struct.
_GROUPS, _COLUMNS = 4, 1  # FileMetaData, RowGroup
_META, _INDEX_AT, _INDEX_SIZE = 3, 4, 5  # ColumnChunk
_PATH, _BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 3, 6, 7, 9, 11  # ColumnMetaData
_SIZES, _PLAIN_BYTES = 16, 1  # ColumnMetaData, SizeStatistics
_PAGES, _PAGE_SIZE, _PAGE_ROW, _PAGE_PLAIN_BYTES = 1, 2, 3, 2  # OffsetIndex, PageLocation
_DICTIONARY_BYTES: Final = 2  # PageHeader, uncompressed_page_size
_MAX_HEADER: Final = 1_024

# Rows of a row group, and the bytes of all rows before them. The last row is the end.
_Curve = tuple[list[int], list[float]]


class RowSizes:
    """The sizes of one file's rows. Raise OSError, or ArrowException for a damaged footer."""

    def __init__(self, files: FileStore, path: str) -> None:
        self._raw = files.open(path)
        self._footer, _ = read_footer(files.root, path, self._raw)
        self._curves: dict[int, _Curve] = {}
        self.rows: int = sum(self._footer.rows)

    def fitting(self, first: int, end: int, room: float) -> tuple[int, float]:
        """Return how many of the rows `first` to `end` fit into `room` bytes, and their bytes."""
        rows, taken = 0, 0.0
        starts = self._footer.starts
        group = bisect_right(starts, first) - 1
        while 0 <= group < len(starts) and first + rows < end:
            low = first + rows - starts[group]
            high = min(end - starts[group], self._footer.rows[group])
            fit, size = _fitting(self._curve(group), low, high, room - taken)
            rows, taken = rows + fit, taken + size
            if fit < high - low:
                break
            group += 1
        return rows, taken

    def _curve(self, group: int) -> _Curve:
        if group not in self._curves:
            self._curves = {group: self._sized(group)}  # one at a time, because rows come in order
        return self._curves[group]

    def _sized(self, group: int) -> _Curve:
        meta = self._footer.metadata.row_group(group)
        rows = meta.num_rows
        columns = [meta.column(at) for at in range(meta.num_columns)]
        sizes = [c.total_uncompressed_size * _weight(c.path_in_schema) for c in columns]
        repeats = any(c.has_dictionary_page and c.physical_type == "BYTE_ARRAY" for c in columns)
        known = _line(rows, _ROW_BYTES * rows + sum(sizes))
        if sum(sizes) * (rows if repeats else 1) <= _SMALL_GROUP:
            return known
        try:
            index = self._footer.pages = self._footer.pages or PageIndex.of(self._raw)
            chunks: list[Struct] = get(get(index.meta, _GROUPS)[group], _COLUMNS)
            curves = [_of_column(self._raw, chunk, rows) for chunk in chunks]
        except (ValueError, *DAMAGE):
            return known  # a reader of these rows names the error
        return _sum([*curves, _line(rows, _ROW_BYTES * rows)])


def _weight(path: str) -> int:
    return _HEADER_WEIGHT if path.startswith("headers.") else 1


def _line(rows: int, size: float) -> _Curve:
    return [0, rows], [0, size]


def _of_column(raw: Any, chunk: Struct, rows: int) -> _Curve:
    """Return the sizes of one column's rows, by page if an index names its pages."""
    meta = get(chunk, _META)
    weight = _weight(b".".join(get(meta, _PATH)).decode())
    size, packed = get(meta, _BYTES), get(meta, _PACKED_BYTES)
    place = get(chunk, _INDEX_AT), get(chunk, _INDEX_SIZE)
    index = decode(read_range(raw, *place))[0] if all(place) else {}
    pages, plain = get(index, _PAGES, ()), get(index, _PAGE_PLAIN_BYTES, ())
    if not pages or (size * weight <= _SMALL_GROUP and not get(meta, _DICTIONARY_AT)):
        return _line(rows, weight * max(size, _unfolded(raw, meta, rows)))
    if len(plain) == len(pages):
        sizes = [weight * float(one) for one in plain]
    else:
        scale = weight * max(size, _unfolded(raw, meta, rows)) / max(1, packed)
        sizes = [get(page, _PAGE_SIZE) * scale for page in pages]
    return [get(page, _PAGE_ROW) for page in pages] + [rows], [0, *accumulate(sizes)]


def _unfolded(raw: Any, meta: Struct, rows: int) -> float:
    """Return the most bytes of a column without its dictionary, or 0 if it has none."""
    known = get(get(meta, _SIZES, {}), _PLAIN_BYTES)
    at = get(meta, _DICTIONARY_AT)
    if known is not None or not at:
        return float(known or 0)
    header, _ = decode(read_range(raw, at, min(_MAX_HEADER, get(meta, _DATA_AT) - at)))
    return float(get(header, _DICTIONARY_BYTES)) * rows  # as if each row had all of it


def _sum(curves: list[_Curve]) -> _Curve:
    at = sorted({row for rows, _ in curves for row in rows})
    return at, [sum(_before(curve, row) for curve in curves) for row in at]


def _before(curve: _Curve, row: int) -> float:
    """Return the bytes of all rows before one."""
    rows, sizes = curve
    at = min(max(bisect_right(rows, row) - 1, 0), len(rows) - 2)
    share = (row - rows[at]) / max(1, rows[at + 1] - rows[at])
    return sizes[at] + share * (sizes[at + 1] - sizes[at])


def _fitting(curve: _Curve, low: int, high: int, room: float) -> tuple[int, float]:
    """Return how many rows of a row group fit, and their bytes."""
    start = _before(curve, low)
    if _before(curve, high) - start <= room:
        return high - low, _before(curve, high) - start
    fits, too_many = 0, high - low
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _before(curve, low + middle) - start <= room:
            fits = middle
        else:
            too_many = middle
    return fits, _before(curve, low + fits) - start
