"""Locate the pages of a data file by its offset index.

Source: parquet-format, PageIndex.md and parquet.thrift.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from spark_mq.parquet.thrift import Struct, decode, encode, get, read_range

__all__ = ["DAMAGE", "LAST_OF_HEAD", "Chunk", "PageIndex"]

# Raised by metadata of the wrong shape, which no checksum guards.
DAMAGE: Final = (AttributeError, IndexError, KeyError, OverflowError, TypeError)

# ColumnMetaData.codec. The fields after it differ between the parts of a chunk.
LAST_OF_HEAD: Final = 4

# Field numbers of parquet.thrift, by struct.
_SCHEMA, _GROUPS = 2, 4  # FileMetaData
_COLUMNS, _ROWS = 1, 3  # RowGroup
_META, _INDEX_AT, _INDEX_SIZE, _CRYPTO = 3, 4, 5, 8  # ColumnChunk
_TYPE, _TEXT = 1, 6  # ColumnMetaData, Type.BYTE_ARRAY
_VALUES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 7, 9, 11  # ColumnMetaData
_STATISTICS, _NULLS = 12, 3  # ColumnMetaData, Statistics
_SIZES, _LEVELS = 16, 3  # ColumnMetaData, SizeStatistics. Values by definition level, 0 is null.
_REPETITION, _OPTIONAL = 3, 1  # SchemaElement, FieldRepetitionType
_NAME, _CHILDREN = 4, 5  # SchemaElement
_PAGES, _PAGE_AT, _PAGE_SIZE, _PAGE_ROW = 1, 1, 2, 3  # OffsetIndex, PageLocation


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of one column in one row group. Without pages, all rows are null."""

    head: bytes  # the first fields of its metadata: type, encodings, name and codec
    is_text: bool
    dictionary: tuple[int, int] | None  # position and size, in bytes
    at: list[int]
    size: list[int]
    first: list[int]  # the first row of each page, and the end

    def pages(self, first: int, end: int) -> tuple[int, int]:
        """Return the first page of some rows, and the page after them."""
        low = min(bisect_right(self.first, first), len(self.at)) - 1
        return low, max(low + 1, bisect_left(self.first, end))


_ALL_NULL: Final = Chunk(b"", False, None, [], [], [])


class PageIndex:
    """A file's metadata, and the page locations that were read so far."""

    def __init__(self, data: bytes) -> None:
        self.meta, _ = decode(data)
        schema = get(self.meta, _SCHEMA)
        self.root: Struct = dict(schema[0])
        self.leaves, self._nested = _leaves(schema)
        self._chunks: dict[tuple[int, str], Chunk | None] = {}

    @classmethod
    def of(cls, raw: Any) -> PageIndex:
        """Read the metadata of a random-access file. Raise ValueError if it is damaged."""
        size = raw.size()
        length = int.from_bytes(read_range(raw, size - 8, 4), "little")
        try:
            return cls(read_range(raw, size - 8 - length, length))
        except DAMAGE as error:
            raise ValueError("the metadata is damaged") from error

    def chunk(self, raw: Any, group: int, name: str) -> Chunk | None:
        """Locate the pages of a column in a row group, or return None if that is impossible.

        Raise ValueError or one of DAMAGE if the index is damaged.
        """
        if (group, name) not in self._chunks:
            self._chunks[group, name] = self._find(raw, group, name)
        return self._chunks[group, name]

    def _find(self, raw: Any, group: int, name: str) -> Chunk | None:
        columns: list[Struct] = get(get(self.meta, _GROUPS)[group], _COLUMNS)
        leaf = self.leaves.get(name)
        if leaf is None:
            return self._null_chunk(columns, name)
        column = columns[leaf[0]]
        if _CRYPTO in column:
            return None
        meta = get(column, _META)
        if get(get(meta, _STATISTICS, {}), _NULLS) == get(meta, _VALUES):
            return _ALL_NULL
        place = get(column, _INDEX_AT), get(column, _INDEX_SIZE)
        pages = get(decode(read_range(raw, *place))[0], _PAGES) if all(place) else ()
        rows = get(get(self.meta, _GROUPS)[group], _ROWS)
        return _located(meta, pages, rows) if pages else None

    def _null_chunk(self, columns: list[Struct], name: str) -> Chunk | None:
        """Return the chunk of a nested column if all of it is null, as most foreign headers are."""
        first = self._nested.get(name)
        if first is None:
            return None
        meta = get(columns[first], _META)
        levels = get(get(meta, _SIZES, {}), _LEVELS) or [0]
        return _ALL_NULL if levels[0] == get(meta, _VALUES) else None


def _located(meta: Struct, pages: list[Struct], rows: int) -> Chunk | None:
    """Return a chunk with its pages, or None for a wrong index."""
    data_at = get(meta, _DATA_AT)
    begin = min(get(meta, _DICTIONARY_AT) or data_at, data_at)
    ahead = get(pages[0], _PAGE_AT) - begin
    at = [get(page, _PAGE_AT) for page in pages]
    size = [get(page, _PAGE_SIZE) for page in pages]
    first = [get(page, _PAGE_ROW) for page in pages]
    ends = [*at[1:], begin + get(meta, _PACKED_BYTES)]
    # No checksum guards the index, so its pages must follow one another.
    follow = all(a + b == c for a, b, c in zip(at, size, ends, strict=True))
    if not follow or first[0] != 0 or any(a >= b for a, b in pairwise([*first, rows])):
        return None
    head = encode({number: meta[number] for number in range(1, LAST_OF_HEAD + 1)})[:-1]
    dictionary = (begin, ahead) if ahead > 0 else None
    return Chunk(head, get(meta, _TYPE) == _TEXT, dictionary, at, size, [*first, rows])


def _leaves(
    schema: list[Struct],
) -> tuple[dict[str, tuple[int, bytes]], dict[str, int]]:
    """Return the flat columns and the nullable nested columns, by name."""
    flat: dict[str, tuple[int, bytes]] = {}  # number among all leaves, schema element
    nested: dict[str, int] = {}  # number of the first leaf
    at, number = 1, 0
    while at < len(schema):
        name = get(schema[at], _NAME).decode()
        leaves, after = _subtree(schema, at)
        if after == at + 1:
            flat[name] = number, encode(schema[at])
        elif get(schema[at], _REPETITION) == _OPTIONAL:
            nested[name] = number
        at, number = after, number + leaves
    return flat, nested


def _subtree(schema: list[Struct], at: int) -> tuple[int, int]:
    """Return the number of leaves of a schema element, and the place after its last leaf."""
    children = get(schema[at], _CHILDREN) or 0
    at += 1
    if not children:
        return 1, at
    leaves = 0
    for _ in range(children):
        more, at = _subtree(schema, at)
        leaves += more
    return leaves, at
