"""Keep decoded row groups, and large ones half read, for the leases that follow.

Leases of few messages, and leases in order of keys, each read a part of a row group. Decoding it
once costs less than decoding its parts.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.parquet.footers import expanding_columns
from spark_mq.util.process import call_in_forks

__all__ = ["MAX_GROUP_BYTES", "RowGroupCache", "RowGroupWalk", "WalkCache", "row_groups", "walks"]

_MAX_BYTES: Final = 128 * 2**20
MAX_GROUP_BYTES: Final = _MAX_BYTES // 4  # larger row groups are not kept
_IDLE_SECONDS: Final = 30.0
_MAX_WALKS: Final = 8
_STEP_ROWS: Final = 10_000
_STEP_BYTES: Final = 16 * 2**20


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
        self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic
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
        """Return whether a row group fits in. Drop idle ones if needed."""
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


class RowGroupWalk:
    """Read a large row group once, front to back, in steps that fit in memory."""

    def __init__(
        self, raw: object, metadata: pq.FileMetaData, group: int, names: Sequence[str]
    ) -> None:
        meta = metadata.row_group(group)
        file = pq.ParquetFile(
            raw,
            metadata=metadata,
            read_dictionary=expanding_columns(meta, names),
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            buffer_size=2**20,  # Without it, pyarrow fetches a whole column chunk in one piece.
            pre_buffer=False,
        )
        width = meta.total_byte_size // max(1, meta.num_rows)
        rows = min(_STEP_ROWS, max(1, _STEP_BYTES // max(1, width)))
        self._steps = file.iter_batches(
            rows, row_groups=[group], columns=list(names), use_threads=False
        )
        self._step = pa.table({name: [] for name in names})
        self._begin = 0
        self.at = 0  # the first row that it can still return

    def rows(self, first: int, end: int) -> pa.Table:
        """Return rows `first` up to `end`. A later call must not go back."""
        parts = []
        self.at = first
        while True:
            if self._begin + self._step.num_rows > first:
                upto = min(end - self._begin, self._step.num_rows)
                low = max(first - self._begin, 0)
                parts.append(self._step.slice(low, upto - low))
                if self._begin + upto >= end:
                    self.at = end
                    return pa.concat_tables(parts)
            self._begin += self._step.num_rows
            step = next(self._steps, None)
            if step is None:
                raise pa.ArrowInvalid(f"a row group ends after {self._begin} rows, too early")
            self._step = pa.Table.from_batches([step])


class WalkCache:
    """Keep the walks that were used last, so that the next lease continues one. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin empty, with a free lock. A forked process shares the position of open files."""
        self._kept: list[tuple[Hashable, RowGroupWalk]] = []
        self._lock = threading.Lock()

    def take(self, key: Hashable, first: int) -> RowGroupWalk | None:
        """Take out the walk that is nearest before a row, or return None."""
        with self._lock:
            fit = [one for one in self._kept if one[0] == key and one[1].at <= first]
            if not fit:
                return None
            nearest = max(fit, key=lambda one: one[1].at)
            self._kept.remove(nearest)
            return nearest[1]

    def give(self, key: Hashable, walk: RowGroupWalk) -> None:
        with self._lock:
            self._kept = [*self._kept[1 - _MAX_WALKS :], (key, walk)]


row_groups: Final = RowGroupCache()
walks: Final = WalkCache()
call_in_forks(row_groups.reset)
call_in_forks(walks.reset)
atexit.register(walks.reset)  # pyarrow must close their files while Python still runs
