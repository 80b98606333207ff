"""Rows from the middle of a large row group of a Parquet file, at the cost of the pages that hold them.

pyarrow decodes a row group from its start. delta-rs writes up to a million messages into one, Spark as many as 128 MB hold: a lease deep
in such a group would read all before it once more. Both write an offset index, which tells where each page of a column lies and with which
row it begins (parquet-format, PageIndex.md). So the wanted pages are put into a small file of one column, in memory, for pyarrow to read.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, decode, encode, value

__all__ = ["PageReader"]

_MAGIC: Final = b"PAR1"

# Field numbers of parquet.thrift, by struct.
_SCHEMA, _GROUPS = 2, 4  # FileMetaData
_COLUMNS, _ROWS = 1, 3  # RowGroup
_META, _INDEX_AT, _INDEX_SIZE, _CRYPTO = 3, 4, 5, 8  # ColumnChunk
_VALUES, _BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 6, 7, 9, 11  # ColumnMetaData
_STATISTICS, _NULLS = 12, 3  # ColumnMetaData, Statistics
_SIZES, _LEVELS = 16, 3  # ColumnMetaData; SizeStatistics: how many values there are of each definition level, 0 being null at the top
_REPETITION, _OPTIONAL = 3, 1  # SchemaElement, FieldRepetitionType
_NAME, _CHILDREN = 4, 5  # SchemaElement
_PAGES, _PAGE_AT, _PAGE_SIZE, _PAGE_ROW = 1, 1, 2, 3  # OffsetIndex, PageLocation
_PAGE_V1, _PAGE_V2 = 5, 8  # PageHeader


@dataclass(frozen=True)
class _Chunk:
    """One column in one row group: where its dictionary and its pages begin, how many bytes they take, and their first rows (and the end).

    Without pages all of it is null.
    """

    meta: Struct
    dictionary: tuple[int, int] | None
    at: list[int]
    size: list[int]
    first: list[int]


class Footer:
    """What the end of a file tells. Files never change, so what is known of one stays so."""

    def __init__(self, data: bytes) -> None:
        self.meta, _ = decode(data)
        self.leaves, self.nested = _leaves(value(self.meta, _SCHEMA))
        self.chunks: dict[tuple[int, str], _Chunk | None] = {}


_KNOWN: Final = 16
_footers: OrderedDict[Hashable, Footer] = OrderedDict()
"""Of the files that were read last: to read one takes a millisecond for every 4 row groups, and leases come one after the other."""


def _footer(key: Hashable, read: Callable[[], bytes]) -> Footer:
    found = _footers.pop(key, None) or Footer(read())
    _footers[key] = found
    while len(_footers) > _KNOWN:
        with contextlib.suppress(KeyError):  # another thread has
            _footers.popitem(last=False)
    return found


class PageReader:
    """``raw``: a random-access file; ``name``: tells it from all others. Raises ValueError where its metadata is none."""

    def __init__(self, raw: Any, name: Hashable) -> None:
        self._raw, self._name = raw, (name, raw.size())
        self._footer = _footer(self._name, lambda: self._end(raw.size()))
        self._last: dict[str, tuple[int, int, int, pa.ChunkedArray]] = {}

    def _end(self, size: int) -> bytes:
        length = int.from_bytes(self._read(size - 8, 4), "little")
        return self._read(size - 8 - length, length)

    def forget(self) -> None:
        """For a file that could not be read: it may be restored under its name."""
        _footers.pop(self._name, None)

    def column(self, group: int, name: str, first: int, end: int) -> pa.ChunkedArray | None:
        """Rows `first` up to `end` of a row group in a column; None where only all before them can tell (no index, or a nested column)."""
        chunks = self._footer.chunks
        if (group, name) not in chunks:
            chunks[group, name] = self._chunk(group, name)
        chunk = chunks[group, name]
        if chunk is None:
            return None
        if not chunk.at:
            return pa.chunked_array([pa.nulls(end - first)])
        last = self._last.get(name)
        if last is None or last[0] != group or not last[1] <= first <= end <= last[2]:
            low = min(bisect_right(chunk.first, first), len(chunk.at)) - 1
            high = max(low + 1, bisect_left(chunk.first, end))
            rows = self._decoded(chunk, name, low, high)
            if len(rows) != chunk.first[high] - chunk.first[low]:
                raise ValueError(f"its index tells of other rows of {name} than its pages have")
            last = self._last[name] = (group, chunk.first[low], chunk.first[low] + len(rows), rows)
        return last[3].slice(first - last[1], end - first)

    def _chunk(self, group: int, name: str) -> _Chunk | None:
        columns: list[Struct] = value(value(self._footer.meta, _GROUPS)[group], _COLUMNS)
        leaf = self._footer.leaves.get(name)
        if leaf is None:
            return self._nothing(columns, name)
        column = columns[leaf[0]]
        if _CRYPTO in column:
            return None
        meta = value(column, _META)
        if value(value(meta, _STATISTICS, {}), _NULLS) == value(meta, _VALUES):
            return _Chunk(meta, None, [], [], [])
        place = value(column, _INDEX_AT), value(column, _INDEX_SIZE)
        pages = value(decode(self._read(*place))[0], _PAGES) if all(place) else ()
        if not pages:
            return None
        begin = min(value(meta, _DICTIONARY_AT) or value(meta, _DATA_AT), value(meta, _DATA_AT))
        ahead = value(pages[0], _PAGE_AT) - begin
        at, size, first = ([value(page, number) for page in pages] for number in (_PAGE_AT, _PAGE_SIZE, _PAGE_ROW))
        rows = value(value(self._footer.meta, _GROUPS)[group], _ROWS)
        # No checksum guards the index: pages that do not follow one another are not what it says they are.
        follow = all(a + b == c for a, b, c in zip(at, size, [*at[1:], begin + value(meta, _PACKED_BYTES)], strict=True))
        if not follow or first[0] != 0 or any(a >= b for a, b in pairwise([*first, rows])):
            return None
        return _Chunk(meta, (begin, ahead) if ahead > 0 else None, at, size, [*first, rows])

    def _nothing(self, columns: list[Struct], name: str) -> _Chunk | None:
        """Of a nested column: its chunk where all of it is null, as the headers of most foreign writers."""
        first = self._footer.nested.get(name)
        if first is None:
            return None
        meta = value(columns[first], _META)
        levels = value(value(meta, _SIZES, {}), _LEVELS) or [0]
        return _Chunk(meta, None, [], [], []) if levels[0] == value(meta, _VALUES) else None

    def _decoded(self, chunk: _Chunk, name: str, low: int, high: int) -> pa.ChunkedArray:
        """Pages `low` up to `high`, as a file of their own."""
        dictionary = self._read(*chunk.dictionary) if chunk.dictionary else b""
        begin = chunk.at[low]
        pages = self._read(begin, chunk.at[high - 1] + chunk.size[high - 1] - begin)
        values = sum(_values(pages, at - begin) for at in chunk.at[low:high])
        _, (root, element) = self._footer.leaves[name]
        size = len(dictionary) + len(pages)
        meta: Struct = {number: chunk.meta[number] for number in (1, 2, 3, 4)}
        meta |= {_VALUES: (I64, values), _BYTES: (I64, size), _PACKED_BYTES: (I64, size), _DATA_AT: (I64, len(_MAGIC) + len(dictionary))}
        if dictionary:
            meta[_DICTIONARY_AT] = (I64, len(_MAGIC))
        column: Struct = {2: (I64, len(_MAGIC)), _META: (STRUCT, meta)}
        group: Struct = {_COLUMNS: (LIST, (STRUCT, [column])), 2: (I64, size), _ROWS: (I64, values)}
        footer = encode({
            1: (I32, 1), _SCHEMA: (LIST, (STRUCT, [root, element])), 3: (I64, values), _GROUPS: (LIST, (STRUCT, [group])),
            6: self._footer.meta.get(6, (BINARY, b"")),
        })  # fmt: skip
        whole = b"".join((_MAGIC, dictionary, pages, footer, len(footer).to_bytes(4, "little"), _MAGIC))
        return pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us", page_checksum_verification=True).read().column(0)

    def _read(self, at: int, size: int) -> bytes:
        self._raw.seek(at)
        found: bytes = self._raw.read(size)
        if len(found) < size:
            raise ValueError(f"it ends at byte {at + len(found)}, before what its metadata tells of")
        return found


def _values(pages: bytes, at: int) -> int:
    """Values in the page whose header begins at a byte: in a column that is not nested, its rows."""
    header, _ = decode(pages, at)
    return int(value(value(header, _PAGE_V1) or value(header, _PAGE_V2), 1))


def _leaves(schema: list[Struct]) -> tuple[dict[str, tuple[int, tuple[Struct, Struct]]], dict[str, int]]:
    """The columns that are not nested, by name: their number among all, and a schema that has this one alone.

    And those that are, and may be null: the number of their first leaf.
    """
    flat: dict[str, tuple[int, tuple[Struct, Struct]]] = {}
    nested: dict[str, int] = {}
    at, number = 1, 0
    root = {**schema[0], _CHILDREN: (I32, 1)}
    while at < len(schema):
        name = value(schema[at], _NAME).decode()
        leaves, after = _subtree(schema, at)
        if after == at + 1:
            flat[name] = number, (root, schema[at])
        elif value(schema[at], _REPETITION) == _OPTIONAL:
            nested[name] = number
        at, number = after, number + leaves
    return flat, nested


def _subtree(schema: list[Struct], at: int) -> tuple[int, int]:
    """How many leaves the element at a place has, itself or below it, and the place after the last of them."""
    children = value(schema[at], _CHILDREN) or 0
    at += 1
    if not children:
        return 1, at
    leaves = 0
    for _ in range(children):
        more, at = _subtree(schema, at)
        leaves += more
    return leaves, at
