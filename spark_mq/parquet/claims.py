"""Refuse Parquet pages that would take too much memory.

A reader allocates what a page's header names, and GZIP, ZSTD and BROTLI shrink 2 GB to 50 kB. A
dictionary holds a value once, however many rows have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.thrift import Struct, decode, get, read_range

__all__ = ["MAX_EXPANDED_BYTES", "check_file", "check_group", "check_page", "largest_size"]

# A larger page is read only if its file has a good part of its bytes.
MAX_PAGE_BYTES: Final = 256 * 2**20
MAX_RATIO: Final = 32  # more than snappy reaches
MAX_EXPANDED_BYTES: Final = 256 * 2**20
# The highest ratio of each codec. The others have no bound that helps.
_RATIOS: Final = {"UNCOMPRESSED": 1, "SNAPPY": 25, "LZ4": 256, "LZ4_RAW": 256}
# Bytes in which a page header is looked for. One with statistics may be longer.
_MAX_HEADERS: Final = (2**10, 2**16, 2**20)

# Field numbers of parquet.thrift, by struct.
_KIND, _SIZE, _PACKED, _DICTIONARY = 1, 2, 3, 7  # PageHeader
_COUNT = 1  # DictionaryPageHeader
_IS_DICTIONARY = 2  # PageType


def check_page(header: Struct, name: str) -> None:
    """Raise ArrowInvalid if a page claims more memory than its bytes need."""
    size, packed = get(header, _SIZE, -1), get(header, _PACKED, -1)
    if min(size, packed) < 0 or size > max(MAX_PAGE_BYTES, MAX_RATIO * packed):
        raise _refused(name, f"a page of {packed} bytes claims {size} bytes of memory")
    values = get(get(header, _DICTIONARY, {}), _COUNT, 0)
    if not 0 <= values <= size:
        raise _refused(name, f"a dictionary of {size} bytes claims {values} values")


def check_group(
    raw: Any, group: pq.RowGroupMetaData, names: Sequence[str], *, every: bool = False
) -> None:
    """Raise ArrowInvalid if columns of a row group claim far more memory than they need.

    Without `every`, leave out most pages of a codec with a known ratio. They cannot expand much,
    and pyarrow refuses a wrong size before it touches the memory.
    """
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema.partition(".")[0] in names:
            try:
                _check_column(raw, column, group.num_rows, every)
            except (ValueError, AttributeError, TypeError) as error:
                if isinstance(error, pa.ArrowException):
                    raise
                raise _refused(column.path_in_schema, f"its pages are damaged: {error}") from error


def check_file(raw: Any, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    """Check every page of some columns. See :func:`check_group`."""
    for group in range(metadata.num_row_groups):
        check_group(raw, metadata.row_group(group), names, every=True)


def largest_size(column: pq.ColumnChunkMetaData) -> int:
    """Return the most bytes of a column, also with a wrong footer."""
    reached = _RATIOS.get(column.compression, 0) * column.total_compressed_size
    return max(column.total_uncompressed_size, reached)


def _check_column(raw: Any, column: pq.ColumnChunkMetaData, rows: int, every: bool) -> None:
    name, hides = column.path_in_schema, False
    if every or column.compression not in _RATIOS:
        total = 0
        for header in _headers(raw, column):
            check_page(header, name)
            total += get(header, _SIZE)
            hides = hides or get(header, _KIND) == _IS_DICTIONARY
        if total > column.total_uncompressed_size:
            said = column.total_uncompressed_size
            raise _refused(name, f"its pages claim {total} bytes, and the footer says {said}")
    elif column.physical_type == "BYTE_ARRAY" and (
        column.has_dictionary_page or rows * largest_size(column) > MAX_EXPANDED_BYTES
    ):
        for first in islice(_headers(raw, column), 1):
            check_page(first, name)
            hides = get(first, _KIND) == _IS_DICTIONARY
    if hides and not column.has_dictionary_page:
        raise _refused(name, "it has a dictionary that its footer does not name")


def _headers(raw: Any, column: pq.ColumnChunkMetaData) -> Iterator[Struct]:
    """Yield the page headers of a column, without reading its pages."""
    at = column.data_page_offset
    if column.has_dictionary_page:
        at = min(at, column.dictionary_page_offset)
    end = at + column.total_compressed_size
    while at < end:
        header, size = _header(raw, at, end)
        yield header
        at += size + max(0, get(header, _PACKED))


def _header(raw: Any, at: int, end: int) -> tuple[Struct, int]:
    for most in _MAX_HEADERS:
        data = read_range(raw, at, min(most, end - at))
        try:
            return decode(data)
        except ValueError:
            if most == _MAX_HEADERS[-1] or len(data) < most:
                raise
    raise AssertionError("unreachable")


def _refused(name: str, why: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"column {name} is refused: {why}")
