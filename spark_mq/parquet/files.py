"""Open data files, keep what was decoded of them, and find out why one cannot be read.

A lease verifies its files and then reads them, and the next lease often needs the same file. Leases
of few messages, and leases in order of keys, each read a part of a row group. Decoding it once
costs less than decoding its parts. A part that would take too much memory is refused.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import accumulate
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.memory_files import MemoryFiles, is_in_memory
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line, to_storage_error
from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.message_index import ORDINAL_BITS, FileSlice
from spark_mq.util.clock import system_clock
from spark_mq.util.process import call_in_forks
from spark_mq.util.recent import RecentDict
from spark_mq.util.show import show_name

T = TypeVar("T")

Read = Callable[[ObjectStore], object]  # reads again, from a store with the file's bytes

_MAX_FOOTER_BYTES: Final = 2**20  # of all footers encoded: in memory they take 30 times as much
_LEAST_WEIGHT: Final = 2**11  # of a footer in bytes, so that at most 512 are kept

# A larger column is read only if its file has a good part of its bytes.
_MAX_COLUMN_BYTES: Final = 256 * 2**20
_MAX_RATIO: Final = 32  # more than snappy reaches
_MAX_EXPANDED_BYTES: Final = 256 * 2**20

MAX_KEPT_BYTES: Final = 256 * 2**20
MAX_GROUP_BYTES: Final = MAX_KEPT_BYTES * 3 // 4  # larger row groups are not kept
_IDLE_SECONDS: Final = 30.0


def check_group(group: pq.RowGroupMetaData, names: Collection[str]) -> None:
    """Raise ArrowInvalid if columns claim too much memory: ZSTD packs 2 GB in 50 kB."""
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
        and group.num_rows * column.total_uncompressed_size > _MAX_EXPANDED_BYTES
    ]


class Footer:
    """What the end of a data file says. Data files never change."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self.metadata: pq.FileMetaData = file.metadata
        self.names = frozenset(file.schema_arrow.names)
        groups = range(self.metadata.num_row_groups)
        self.rows = [self.metadata.row_group(group).num_rows for group in groups]
        self.sizes = [self.metadata.row_group(group).total_byte_size for group in groups]
        self.starts = list(accumulate(self.rows[:-1], initial=0))


footers: Final[RecentDict[Hashable, Footer]] = RecentDict(
    _MAX_FOOTER_BYTES, lambda footer: max(_LEAST_WEIGHT, footer.metadata.serialized_size)
)
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
        # A store needs few large requests. A disk needs no second copy.
        pre_buffer="://" in root and not is_in_memory(root),
    )


def read_footer(root: str, path: str, raw: Any) -> tuple[Footer, Hashable]:
    """Return a data file's footer, and its key in the cache."""
    key = _key(root, path, raw)
    footer = footers.use(key)
    if footer is None:
        footer = Footer(open_file(raw, root))
        if key is not None:
            footers[key] = footer
    return footer, key


def _key(root: str, path: str, raw: Any) -> Hashable:
    """Return the identity of a file's content, or None if it is unknown."""
    try:
        stat = os.fstat(raw.fileno())
        return root, path, stat.st_size, stat.st_mtime_ns, stat.st_ino
    except (AttributeError, io.UnsupportedOperation):
        return (root, path, raw.size()) if "://" in root else None


class _Kept:
    """A row group, its unread rows, and its last use."""

    __slots__ = ("left", "lock", "size", "table", "used_at")

    def __init__(self, left: int, size: int) -> None:
        self.left, self.size, self.used_at = left, size, 0.0
        self.lock = threading.Lock()
        self.table: pa.Table | None = None


class RowGroupCache:
    """Keep row groups that are read in parts. Thread-safe.

    Because a message is mostly read once, it drops a row group after as many rows were read as it
    has. To make room, it drops only row groups that nobody used for 30 s. Otherwise leases that
    walk over more files than fit would drop each one before its next use.
    """

    def __init__(
        self, max_bytes: int = MAX_KEPT_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self.reset()

    def reset(self) -> None:
        """Begin empty, with free locks. A forked process has no threads that would free them."""
        self._bytes = 0
        self._kept: dict[Hashable, _Kept] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def table(
        self, key: Hashable, wanted: int, rows: int, size: int, decode: Callable[[], pa.Table]
    ) -> pa.Table:
        """Return a row group, decoded by one thread for all, and keep it if there is room."""
        with self._lock:
            kept = self._find(key, wanted, rows, size)
        if kept is None:
            return decode()
        with kept.lock:
            if kept.table is None:
                try:
                    kept.table = decode()
                except BaseException:
                    self.forget(key)
                    raise
                self._weigh(key, kept, kept.table.nbytes)
            return kept.table

    def forget(self, key: Hashable) -> None:
        """Drop a row group, because an unreadable file may be restored under its name."""
        with self._lock:
            self._drop(key)

    def _find(self, key: Hashable, wanted: int, rows: int, size: int) -> _Kept | None:
        kept, now = self._kept.get(key), self._clock()
        if kept is None:
            if not self._has_room(size, now):
                return None
            kept = self._kept[key] = _Kept(rows, size)
            self._bytes += size
        kept.left -= wanted
        kept.used_at = now
        if kept.left <= 0:
            self._drop(key)
        return kept

    def _has_room(self, size: int, now: float) -> bool:
        if self._bytes + size > self._max_bytes:
            idle = [k for k, kept in self._kept.items() if now - kept.used_at >= _IDLE_SECONDS]
            for key in idle:
                self._drop(key)
        return self._bytes + size <= self._max_bytes

    def _weigh(self, key: Hashable, kept: _Kept, size: int) -> None:
        """Note the bytes of a decoded row group. A dictionary may make it larger than expected."""
        with self._lock:
            if self._kept.get(key) is kept:
                self._bytes += size - kept.size
                kept.size = size
                if size > MAX_GROUP_BYTES:
                    self._drop(key)

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size


row_groups: Final = RowGroupCache()
call_in_forks(row_groups.reset)


def unreadable_reason(files: ObjectStore, path: str, error: Exception, read: Read) -> str:
    """Return why a file is damaged. Raise OSError or MemoryError if it may be sound."""
    name = show_name(path)
    try:
        data = files.read(path)
    except FileNotFoundError:
        return f"data file {name} is missing"
    try:
        copy = MemoryFiles(system_clock)
        store = ObjectStore(copy.root)
        store.write(path, data)
        read(store)
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (OSError, pa.ArrowException) as damage:
        return f"data file {name} is not readable: {one_line(damage)}"
    text = f"data file {name} could not be read, and its bytes are sound: {one_line(error)}"
    raise OSError(errno.EIO, text) from error


def read_unless_damaged(
    files: ObjectStore, path: str, read: Callable[[ObjectStore], T]
) -> T | None:
    """Return what a read of a file returns, or None if the file is damaged. Raise OSError."""
    try:
        return read(files)
    except (OSError, pa.ArrowException) as error:
        unreadable_reason(files, path, error, read)
        return None


def row_count_error(rows: int) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")


def unreadable_error(
    files: ObjectStore, piece: FileSlice, error: Exception, read: Read
) -> SparkMQError:
    """Return the error to raise for a slice that cannot be read. See :func:`unreadable_reason`."""
    try:
        why = unreadable_reason(files, piece.path, error, read)
    except OSError as out_of_reach:
        return to_storage_error(files.root, out_of_reach, "reading messages of")
    return CorruptLog(
        f"messages {piece.first}..{piece.last} of {files.root} cannot be read: {why}. "
        "Restore the file from a backup before they are leased again. "
        "Otherwise they become dead letters without a payload. Other messages are not affected",
        path=files.root,
        version=piece.first >> ORDINAL_BITS,
    )
