"""Read the footers of data files, and refuse those that claim too much memory.

A lease verifies its files and then reads them, and the next lease often needs the same file. So
this process keeps the footers that were used last.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.util.process import call_in_forks

__all__ = ["Footer", "FooterCache", "check_group", "expanding_columns", "footers", "open_file",
           "read_footer"]  # fmt: skip

_MAX_FILES: Final = 512
_MAX_BYTES: Final = 2**20  # of all footers encoded: in memory they take about 30 times as much

# A larger column is read only if its file has a good part of its bytes.
_MAX_COLUMN_BYTES: Final = 256 * 2**20
_MAX_RATIO: Final = 32  # more than snappy reaches
_MAX_EXPANDED_BYTES: Final = 256 * 2**20
# The highest ratio of each codec. The others have no bound that helps.
_RATIOS: Final = {"UNCOMPRESSED": 1, "SNAPPY": 25, "LZ4": 256, "LZ4_RAW": 256}


def check_group(group: pq.RowGroupMetaData, names: Collection[str]) -> None:
    """Raise ArrowInvalid if columns of a row group claim far more memory than they need.

    GZIP, ZSTD and BROTLI shrink 2 GB to 50 kB, and a reader allocates what the file claims.
    """
    for column in _columns(group, names):
        name, packed = column.path_in_schema, column.total_compressed_size
        size = column.total_uncompressed_size
        if min(size, packed) < 0 or size > max(_MAX_COLUMN_BYTES, _MAX_RATIO * packed):
            raise _refused(name, f"{packed} bytes of the file claim {size} bytes of memory")
        if "RLE_DICTIONARY" in column.encodings and not column.has_dictionary_page:
            raise _refused(name, "it has a dictionary that its footer does not name")


def _columns(
    group: pq.RowGroupMetaData, names: Collection[str]
) -> Iterator[pq.ColumnChunkMetaData]:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema.partition(".")[0] in names:
            yield column


def _refused(name: str, why: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"column {name} is refused: {why}")


def expanding_columns(group: pq.RowGroupMetaData, names: Collection[str]) -> list[str]:
    """Return the columns that a dictionary may expand beyond _MAX_EXPANDED_BYTES."""
    return [
        column.path_in_schema
        for column in _columns(group, names)
        if column.physical_type == "BYTE_ARRAY"
        and column.path_in_schema in names
        and column.has_dictionary_page
        and group.num_rows * _largest_size(column) > _MAX_EXPANDED_BYTES
    ]


def _largest_size(column: pq.ColumnChunkMetaData) -> int:
    """Return the most bytes of a column, also with a wrong footer."""
    reached = _RATIOS.get(column.compression, 0) * column.total_compressed_size
    return max(column.total_uncompressed_size, reached)


class Footer:
    """What the end of a data file says. Data files never change."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self.metadata: pq.FileMetaData = file.metadata
        self.names = frozenset(file.schema_arrow.names)
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        self.sizes = [self.metadata.row_group(group).total_byte_size for group in groups]
        self.starts = list(accumulate(self.rows[:-1], initial=0))


class FooterCache:
    """Keep the footers that were used last. Thread-safe."""

    def __init__(self, max_files: int = _MAX_FILES, max_bytes: int = _MAX_BYTES) -> None:
        self._max_files, self._max_bytes = max_files, max_bytes
        self.reset()

    def reset(self) -> None:
        """Begin empty, with a free lock. A forked process has no threads that would free it."""
        self._bytes = 0
        self._found: OrderedDict[Hashable, Footer] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> Footer | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: Hashable, footer: Footer) -> None:
        """Keep a footer, and drop those that were used longest ago."""
        if key is None:
            return
        with self._lock:
            self._drop(key)
            self._found[key] = footer
            self._bytes += footer.metadata.serialized_size
            while len(self._found) > 1 and (
                len(self._found) > self._max_files or self._bytes > self._max_bytes
            ):
                self._drop(next(iter(self._found)))

    def remove(self, key: Hashable) -> None:
        """Forget a footer, because an unreadable file may be restored under its name."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        footer = self._found.pop(key, None)
        if footer is not None:
            self._bytes -= footer.metadata.serialized_size


footers: Final = FooterCache()
call_in_forks(footers.reset)


def open_file(
    raw: Any,
    root: str,
    metadata: pq.FileMetaData | None = None,
    dictionaries: Collection[str] = (),
) -> pq.ParquetFile:
    """Open a data file, without a read if `metadata` is given."""
    return pq.ParquetFile(
        raw,
        metadata=metadata,
        read_dictionary=list(dictionaries) or None,  # these columns hold equal values once
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        pre_buffer="://" in root,  # A store needs few large requests. A disk needs no second copy.
    )


def read_footer(root: str, path: str, raw: Any) -> tuple[Footer, Hashable]:
    """Return a data file's footer, and its key in the cache."""
    key = _key(root, path, raw)
    footer = None if key is None else footers.get(key)
    if footer is None:
        footer = Footer(open_file(raw, root))
        footers.put(key, footer)
    return footer, key


def _key(root: str, path: str, raw: Any) -> Hashable:
    """Return the identity of a file's content, or None if it is unknown."""
    try:
        stat = os.fstat(raw.fileno())
        return root, path, stat.st_size, stat.st_mtime_ns, stat.st_ino
    except (AttributeError, io.UnsupportedOperation):
        return (root, path, raw.size()) if "://" in root else None
