"""Keep decoded row groups while several leases read them in small parts.

Leases of few messages, and leases in order of keys, each take a part of a row group. A read of the
whole row group costs about as much as two small parts of it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

import pyarrow as pa

__all__ = ["MAX_GROUP_BYTES", "RowGroupCache", "row_groups"]

_MAX_BYTES: Final = 128 * 2**20
MAX_GROUP_BYTES: Final = _MAX_BYTES // 4
"""Larger row groups are not kept."""
_MAX_READ_ONCE: Final = 512
"""Row groups of which the cache remembers that a part was read."""
_IDLE_SECONDS: Final = 30.0


class _Kept:
    """A row group, and how many of its rows nobody has read yet."""

    __slots__ = ("left", "lock", "size", "table", "used_at")

    def __init__(self, left: int, size: int, now: float) -> None:
        self.left, self.size, self.used_at = left, size, now
        self.lock = threading.Lock()
        self.table: pa.Table | None = None


class RowGroupCache:
    """Keep row groups from the second read of a part until all rows were read. Thread-safe.

    A message is mostly read once. So the cache drops a row group after as many rows were read as
    it has. If the cache is full, it takes no other row group: leases that walk over more files
    than fit in would otherwise drop each one before its next use.

    Parameters
    ----------
    max_bytes
        The most decoded bytes. Default: 128 MiB.
    clock
        Returns the time in seconds. Row groups that nobody used for 30 s make room for others.
    """

    def __init__(
        self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._clock, self._bytes = max_bytes, clock, 0
        self._kept: dict[Hashable, _Kept] = {}
        self._read_once: OrderedDict[Hashable, int] = OrderedDict()  # the rows that were read
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Return the decoded bytes of the row groups that are kept."""
        return self._bytes

    def table(
        self, key: Hashable, wanted: int, rows: int, size: int, decode: Callable[[], pa.Table]
    ) -> pa.Table | None:
        """Return a whole row group, or None if the caller should read its part alone.

        Parameters
        ----------
        key
            Identifies the content of the row group and its columns.
        wanted
            How many of its rows the caller wants.
        rows, size
            The rows of the row group, and its bytes if decoded, as its footer says.
        decode
            Reads the row group. Several threads that want it wait for one of them. Its errors
            are raised, and nothing is kept.
        """
        with self._lock:
            kept = self._find(key, wanted, rows, size)
        if kept is None:
            return None
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
        """Drop a row group if it is kept. An unreadable file may be restored under its name."""
        with self._lock:
            self._drop(key)

    def _find(self, key: Hashable, wanted: int, rows: int, size: int) -> _Kept | None:
        kept, now = self._kept.get(key), self._clock()
        if kept is None:
            if key not in self._read_once:
                self._note(key, wanted)
                return None
            if not self._has_room(size, now):
                return None
            kept = self._kept[key] = _Kept(rows - self._read_once.pop(key), size, now)
            self._bytes += size
        kept.left -= wanted
        kept.used_at = now
        if kept.left <= 0:
            self._drop(key)
        return kept

    def _note(self, key: Hashable, wanted: int) -> None:
        self._read_once[key] = wanted
        if len(self._read_once) > _MAX_READ_ONCE:
            self._read_once.popitem(last=False)

    def _has_room(self, size: int, now: float) -> bool:
        """Return whether a row group fits in, and drop idle ones if it does not."""
        if self._bytes + size > self._max_bytes:
            idle = [k for k, kept in self._kept.items() if now - kept.used_at >= _IDLE_SECONDS]
            for key in idle:
                self._drop(key)
        return self._bytes + size <= self._max_bytes

    def _weigh(self, key: Hashable, kept: _Kept, size: int) -> None:
        """Note what a decoded row group takes. A dictionary may make it larger than expected."""
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
"""The row groups that this process keeps."""
