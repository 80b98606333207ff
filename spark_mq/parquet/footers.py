"""Keep the footers of the data files that were read last.

A lease verifies its files and then reads them, and the next lease often needs the same file.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow.parquet as pq

from spark_mq.parquet.claims import MAX_EXPANDED_BYTES, largest_size
from spark_mq.parquet.page_index import PageIndex
from spark_mq.util.process import call_in_forks

__all__ = ["Footer", "FooterCache", "expanding_columns", "footers", "open_file", "read_footer"]

_MAX_FILES: Final = 512
_MAX_BYTES: Final = 2**20  # of all footers encoded: in memory they take about 30 times as much


def expanding_columns(group: pq.RowGroupMetaData, names: Sequence[str]) -> list[str]:
    """Return the columns that a dictionary may expand beyond MAX_EXPANDED_BYTES."""
    found = []
    for at in range(group.num_columns):
        column = group.column(at)
        if column.physical_type == "BYTE_ARRAY" and column.path_in_schema in names:
            worst = group.num_rows * largest_size(column)
            if column.has_dictionary_page and worst > MAX_EXPANDED_BYTES:
                found.append(column.path_in_schema)
    return found


class Footer:
    """What the end of a data file says. Data files never change."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self.metadata: pq.FileMetaData = file.metadata
        self.names = frozenset(file.schema_arrow.names)
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        self.starts = list(accumulate(self.rows[:-1], initial=0))
        self.pages: PageIndex | None = None  # read when a slice needs it


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
    dictionaries: Sequence[str] = (),
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
