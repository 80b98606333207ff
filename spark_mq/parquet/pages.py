"""Read rows from the middle of a large row group.

pyarrow decodes a row group from its start. delta-rs writes up to a million messages into one row
group, and Spark writes as many as fit into 128 MB. Both write an offset index with the position and
the first row of each page (parquet-format, PageIndex.md). This module copies the wanted pages into
a small file in memory. The file has one column, and pyarrow reads it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.claims import check_page
from spark_mq.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    decode,
    encode,
    get,
    read_range,
)

__all__ = ["DAMAGE", "PageIndex", "PageReader"]

_MAGIC: Final = b"PAR1"
DAMAGE: Final = (AttributeError, IndexError, KeyError, OverflowError, TypeError)
"""Metadata of the wrong shape raises these. No checksum guards it."""

# Field numbers of parquet.thrift, by struct.
_SCHEMA, _GROUPS = 2, 4  # FileMetaData
_COLUMNS, _ROWS = 1, 3  # RowGroup
_META, _INDEX_AT, _INDEX_SIZE, _CRYPTO = 3, 4, 5, 8  # ColumnChunk
_TYPE, _TEXT = 1, 6  # ColumnMetaData, Type.BYTE_ARRAY
_VALUES, _BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 6, 7, 9, 11  # ColumnMetaData
_STATISTICS, _NULLS = 12, 3  # ColumnMetaData, Statistics
_SIZES, _LEVELS = 16, 3  # ColumnMetaData, SizeStatistics. Values by definition level, 0 is null.
_REPETITION, _OPTIONAL = 3, 1  # SchemaElement, FieldRepetitionType
_NAME, _CHILDREN = 4, 5  # SchemaElement
_PAGES, _PAGE_AT, _PAGE_SIZE, _PAGE_ROW = 1, 1, 2, 3  # OffsetIndex, PageLocation
_PAGE_V1, _PAGE_V2 = 5, 8  # PageHeader


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Locate the pages of one column in one row group.

    ``first`` holds the first row of each page, and the end. Without pages, all rows are null.
    """

    meta: Struct
    dictionary: tuple[int, int] | None
    at: list[int]
    size: list[int]
    first: list[int]


class PageIndex:
    """Holds a file's metadata, and the page locations read so far."""

    def __init__(self, data: bytes) -> None:
        self.meta, _ = decode(data)
        self.leaves, self.nested = _leaves(get(self.meta, _SCHEMA))
        self.chunks: dict[tuple[int, str], _Chunk | None] = {}

    @classmethod
    def of(cls, raw: Any) -> PageIndex:
        """Read the metadata of a random-access file. Raises ValueError if it is damaged."""
        size = raw.size()
        length = int.from_bytes(read_range(raw, size - 8, 4), "little")
        try:
            return cls(read_range(raw, size - 8 - length, length))
        except DAMAGE as error:
            raise ValueError("the metadata is damaged") from error


class PageReader:
    """Read rows of one file by its pages.

    Parameters
    ----------
    raw
        A random-access file.
    index
        The file's metadata. Without it, the reader reads it from the file.

    Raises
    ------
    ValueError
        If the metadata is damaged.
    """

    def __init__(self, raw: Any, index: PageIndex | None = None) -> None:
        self._raw = raw
        self.index = PageIndex.of(raw) if index is None else index
        self._last: dict[str, tuple[int, int, int, pa.ChunkedArray]] = {}

    def column(self, group: int, name: str, first: int, end: int) -> pa.ChunkedArray | None:
        """Return rows `first` up to `end` of a column.

        The rows are those of a row group. None means that the pages cannot be located. There is no
        index, or the column is nested. Raises ValueError if the index is damaged.
        """
        try:
            return self._column(group, name, first, end)
        except DAMAGE as error:
            raise ValueError(f"the page index of column {name} is damaged") from error

    def _column(self, group: int, name: str, first: int, end: int) -> pa.ChunkedArray | None:
        chunks = self.index.chunks
        if (group, name) not in chunks:
            chunks[group, name] = self._chunk(group, name)
        chunk = chunks[group, name]
        if chunk is None:
            return None
        if not chunk.at:
            return pa.chunked_array([pa.nulls(end - first)])
        last = self._last.get(name)
        if last is None or last[0] != group or not last[1] <= first <= end <= last[2]:
            last = self._last[name] = self._pages(chunk, group, name, first, end)
        return last[3].slice(first - last[1], end - first)

    def _pages(
        self, chunk: _Chunk, group: int, name: str, first: int, end: int
    ) -> tuple[int, int, int, pa.ChunkedArray]:
        """Return the pages of some rows of a row group.

        Each has its first row, its end and its values.
        """
        low = min(bisect_right(chunk.first, first), len(chunk.at)) - 1
        high = max(low + 1, bisect_left(chunk.first, end))
        rows = self._decoded(chunk, name, low, high)
        if len(rows) != chunk.first[high] - chunk.first[low]:
            raise ValueError(f"the index and the pages of column {name} disagree on their rows")
        return group, chunk.first[low], chunk.first[low] + len(rows), rows

    def _chunk(self, group: int, name: str) -> _Chunk | None:
        columns: list[Struct] = get(get(self.index.meta, _GROUPS)[group], _COLUMNS)
        leaf = self.index.leaves.get(name)
        if leaf is None:
            return self._null_chunk(columns, name)
        column = columns[leaf[0]]
        if _CRYPTO in column:
            return None
        meta = get(column, _META)
        if get(get(meta, _STATISTICS, {}), _NULLS) == get(meta, _VALUES):
            return _Chunk(meta, None, [], [], [])
        place = get(column, _INDEX_AT), get(column, _INDEX_SIZE)
        pages = get(decode(read_range(self._raw, *place))[0], _PAGES) if all(place) else ()
        rows = get(get(self.index.meta, _GROUPS)[group], _ROWS)
        return _located(meta, pages, rows) if pages else None

    def _null_chunk(self, columns: list[Struct], name: str) -> _Chunk | None:
        """Return the chunk of a nested column that is all null.

        Most foreign writers leave all headers null.
        """
        first = self.index.nested.get(name)
        if first is None:
            return None
        meta = get(columns[first], _META)
        levels = get(get(meta, _SIZES, {}), _LEVELS) or [0]
        return _Chunk(meta, None, [], [], []) if levels[0] == get(meta, _VALUES) else None

    def _decoded(self, chunk: _Chunk, name: str, low: int, high: int) -> pa.ChunkedArray:
        """Return the values of pages `low` up to `high`."""
        dictionary = read_range(self._raw, *chunk.dictionary) if chunk.dictionary else b""
        begin = chunk.at[low]
        pages = read_range(self._raw, begin, chunk.at[high - 1] + chunk.size[high - 1] - begin)
        values = sum(_value_count(pages, at - begin, name) for at in chunk.at[low:high])
        if dictionary:
            check_page(decode(dictionary)[0], name)
        footer = self._footer_of(chunk, name, values, len(dictionary), len(pages))
        end = len(footer).to_bytes(4, "little")
        whole = b"".join((_MAGIC, dictionary, pages, footer, end, _MAGIC))
        file = pq.ParquetFile(
            pa.BufferReader(whole),
            # A page may hold a large value once for thousands of rows.
            read_dictionary=[name] if dictionary and get(chunk.meta, _TYPE) == _TEXT else None,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=False,
        )
        return file.read(use_threads=False).column(0)

    def _footer_of(
        self, chunk: _Chunk, name: str, values: int, dictionary: int, pages: int
    ) -> bytes:
        """Return the footer of a file with one column and row group."""
        _, (root, element) = self.index.leaves[name]
        size, data_at = dictionary + pages, len(_MAGIC) + dictionary
        meta: Struct = {number: chunk.meta[number] for number in (1, 2, 3, 4)}
        meta |= {_VALUES: (I64, values), _BYTES: (I64, size), _PACKED_BYTES: (I64, size)}
        meta[_DATA_AT] = (I64, data_at)
        if dictionary:
            meta[_DICTIONARY_AT] = (I64, len(_MAGIC))
        column: Struct = {2: (I64, len(_MAGIC)), _META: (STRUCT, meta)}
        group: Struct = {
            _COLUMNS: (LIST, (STRUCT, [column])),
            2: (I64, size),
            _ROWS: (I64, values),
        }
        file: Struct = {
            1: (I32, 1),
            _SCHEMA: (LIST, (STRUCT, [root, element])),
            3: (I64, values),
            _GROUPS: (LIST, (STRUCT, [group])),
            6: self.index.meta.get(6, (BINARY, b"")),
        }
        return encode(file)


def _located(meta: Struct, pages: list[Struct], rows: int) -> _Chunk | None:
    """Return a chunk with its pages, or None for a wrong index.

    No checksum guards the index. The pages it names must follow one another.
    """
    data_at = get(meta, _DATA_AT)
    begin = min(get(meta, _DICTIONARY_AT) or data_at, data_at)
    ahead = get(pages[0], _PAGE_AT) - begin
    at = [get(page, _PAGE_AT) for page in pages]
    size = [get(page, _PAGE_SIZE) for page in pages]
    first = [get(page, _PAGE_ROW) for page in pages]
    ends = [*at[1:], begin + get(meta, _PACKED_BYTES)]
    follow = all(a + b == c for a, b, c in zip(at, size, ends, strict=True))
    if not follow or first[0] != 0 or any(a >= b for a, b in pairwise([*first, rows])):
        return None
    return _Chunk(meta, (begin, ahead) if ahead > 0 else None, at, size, [*first, rows])


def _value_count(pages: bytes, at: int, name: str) -> int:
    """Return the values in the page whose header begins at a byte.

    In a column that is not nested, values are rows.
    """
    header, _ = decode(pages, at)
    check_page(header, name)
    return int(get(get(header, _PAGE_V1) or get(header, _PAGE_V2), 1))


def _leaves(
    schema: list[Struct],
) -> tuple[dict[str, tuple[int, tuple[Struct, Struct]]], dict[str, int]]:
    """Return the flat columns and the nullable nested columns, by name.

    A flat column has its number among all leaves, and a schema of this column alone.
    A nested column has the number of its first leaf.
    """
    flat: dict[str, tuple[int, tuple[Struct, Struct]]] = {}
    nested: dict[str, int] = {}
    at, number = 1, 0
    root = {**schema[0], _CHILDREN: (I32, 1)}
    while at < len(schema):
        name = get(schema[at], _NAME).decode()
        leaves, after = _subtree(schema, at)
        if after == at + 1:
            flat[name] = number, (root, schema[at])
        elif get(schema[at], _REPETITION) == _OPTIONAL:
            nested[name] = number
        at, number = after, number + leaves
    return flat, nested


def _subtree(schema: list[Struct], at: int) -> tuple[int, int]:
    """Return the leaves of a schema element, and the next place.

    The next place is the one after its last leaf.
    """
    children = get(schema[at], _CHILDREN) or 0
    at += 1
    if not children:
        return 1, at
    leaves = 0
    for _ in range(children):
        more, at = _subtree(schema, at)
        leaves += more
    return leaves, at
