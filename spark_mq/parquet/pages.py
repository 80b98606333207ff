"""Read rows from the middle of a large row group.

pyarrow decodes a row group from its start. delta-rs writes up to a million messages into one row
group, and Spark as many as fit into 128 MB. Both write an offset index with the position and the
first row of each page (parquet-format, PageIndex.md). So this module copies the wanted pages into a
small file in memory, which pyarrow reads. Columns whose pages cover the same rows share a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.claims import check_page
from spark_mq.parquet.page_index import DAMAGE, LAST_OF_HEAD, Chunk, PageIndex
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

__all__ = ["PageReader"]

_MAGIC: Final = b"PAR1"

# Field numbers of parquet.thrift, by struct.
_SCHEMA, _GROUPS = 2, 4  # FileMetaData
_COLUMNS, _META = 1, 3  # RowGroup, ColumnChunk
_VALUES, _BYTES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 6, 7, 9, 11  # ColumnMetaData
_CHILDREN: Final = 5  # SchemaElement
_PAGE_V1, _PAGE_V2 = 5, 8  # PageHeader


class _Part(NamedTuple):
    """The dictionary and the pages of one column for some rows."""

    name: str
    chunk: Chunk
    dictionary: bytes
    pages: bytes


class PageReader:
    """Read rows of one file by its pages. Raise ValueError if its metadata is damaged."""

    def __init__(self, raw: Any, index: PageIndex | None = None) -> None:
        self._raw = raw
        self.index = PageIndex.of(raw) if index is None else index
        self._last: dict[str, tuple[int, int, pa.ChunkedArray]] = {}  # group, first row, values

    def columns(
        self, group: int, names: Iterable[str], first: int, end: int
    ) -> dict[str, pa.ChunkedArray | None]:
        """Return rows `first` up to `end` of a row group's columns, by name.

        A column is None if it is nested or has no index. Raise ValueError for a damaged index, and
        ArrowException for a page that is damaged or claims too much memory.
        """
        found: dict[str, pa.ChunkedArray | None] = {}
        together: dict[tuple[int, int], list[_Part]] = {}
        for name in names:
            try:
                found[name] = self._known(name, group, first, end)
                chunk = self.index.chunk(self._raw, group, name)
                if found[name] is None and chunk is not None:
                    if chunk.at:
                        span, part = self._part(chunk, name, first, end)
                        together.setdefault(span, []).append(part)
                    else:
                        found[name] = pa.chunked_array([pa.nulls(end - first)])
            except DAMAGE as error:
                raise ValueError(f"the page index of column {name} is damaged") from error
        for (start, upto), parts in together.items():
            rows = self._decoded(parts, upto - start)
            for part in parts:
                self._last[part.name] = group, start, rows[part.name]
                found[part.name] = rows[part.name].slice(first - start, end - first)
        return found

    def _known(self, name: str, group: int, first: int, end: int) -> pa.ChunkedArray | None:
        """Return rows of the pages that were read last, or None."""
        last = self._last.get(name)
        if last is None or last[0] != group:
            return None
        _, start, rows = last
        within = start <= first <= end <= start + len(rows)
        return rows.slice(first - start, end - first) if within else None

    def _part(self, chunk: Chunk, name: str, first: int, end: int) -> tuple[tuple[int, int], _Part]:
        """Read and check the pages of some rows. Return them with their first row and end."""
        low, high = chunk.pages(first, end)
        start, upto = chunk.first[low], chunk.first[high]
        dictionary = read_range(self._raw, *chunk.dictionary) if chunk.dictionary else b""
        begin = chunk.at[low]
        pages = read_range(self._raw, begin, chunk.at[high - 1] + chunk.size[high - 1] - begin)
        if dictionary:
            check_page(decode(dictionary)[0], name)
        values = sum(_value_count(pages, at - begin, name) for at in chunk.at[low:high])
        if values != upto - start:
            raise ValueError(f"the index and the pages of column {name} disagree on their rows")
        return (start, upto), _Part(name, chunk, dictionary, pages)

    def _decoded(self, parts: Sequence[_Part], rows: int) -> pa.Table:
        """Decode pages that cover the same rows, as one file."""
        at, content, columns = len(_MAGIC), [_MAGIC], []
        for part in parts:
            columns.append(_column(part, rows, at))
            content += (part.dictionary, part.pages)
            at += len(part.dictionary) + len(part.pages)
        schema = [self.index.leaves[part.name][1] for part in parts]
        repeated = [part.name for part in parts if part.dictionary and part.chunk.is_text]
        footer = self._footer(schema, columns, rows, at)
        content += (footer, len(footer).to_bytes(4, "little"), _MAGIC)
        file = pq.ParquetFile(
            pa.BufferReader(b"".join(content)),
            # A page may hold a large value once for thousands of rows.
            read_dictionary=repeated or None,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=False,
        )
        return file.read(use_threads=False)

    def _footer(
        self, schema: Sequence[bytes], columns: Sequence[Struct], rows: int, size: int
    ) -> bytes:
        """Return the footer of a file with one row group."""
        root: Struct = {**self.index.root, _CHILDREN: (I32, len(schema))}
        group: Struct = {
            _COLUMNS: (LIST, (STRUCT, columns)),
            2: (I64, size - len(_MAGIC)),
            3: (I64, rows),
        }
        return encode({
            1: (I32, 1),
            _SCHEMA: (LIST, (STRUCT, [root, *schema])),
            3: (I64, rows),
            _GROUPS: (LIST, (STRUCT, [group])),
            6: self.index.meta.get(6, (BINARY, b"")),
        })  # fmt: skip


def _column(part: _Part, rows: int, at: int) -> Struct:
    """Return the metadata of a column that begins at a byte."""
    dictionary = len(part.dictionary)
    size = dictionary + len(part.pages)
    meta: Struct = {_VALUES: (I64, rows), _BYTES: (I64, size), _PACKED_BYTES: (I64, size)}
    meta[_DATA_AT] = (I64, at + dictionary)
    if dictionary:
        meta[_DICTIONARY_AT] = (I64, at)
    return {2: (I64, at), _META: (STRUCT, part.chunk.head + encode(meta, after=LAST_OF_HEAD))}


def _value_count(pages: bytes, at: int, name: str) -> int:
    """Return the values in the page at a byte. In a column that is not nested, values are rows."""
    header, _ = decode(pages, at)
    check_page(header, name)
    return int(get(get(header, _PAGE_V1) or get(header, _PAGE_V2), 1))
