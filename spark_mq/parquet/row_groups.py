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

from spark_mq.util.process import call_in_forks

__all__ = ["MAX_GROUP_BYTES", "RowGroupCache", "row_groups"]

_MAX_BYTES: Final = 128 * 2**20
MAX_GROUP_BYTES: Final = _MAX_BYTES // 4  # larger row groups are not kept
_MAX_READ_ONCE: Final = 512  # row groups that are remembered as read in part
_IDLE_SECONDS: Final = 30.0
# If so many more were read again than not, the next are kept from their first read.
_SURE: Final = 4


class _Kept:
    """A row group, its unread rows, and its use."""

    __slots__ = ("again", "left", "lock", "size", "table", "used_at")

    def __init__(self, left: int, size: int, *, again: bool) -> None:
        self.left, self.size, self.again, self.used_at = left, size, again, 0.0
        self.lock = threading.Lock()
        self.table: pa.Table | None = None


class RowGroupCache:
    """Keep row groups that are read in parts. Thread-safe.

    It keeps a row group from the second read of a part, or from the first if most row groups are
    read again. Because a message is mostly read once, it drops a row group after as many rows were
    read as it has. To make room, it drops only row groups that nobody used for 30 s. Otherwise
    leases that walk over more files than fit would drop each one before its next use.
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
        self._read_once: OrderedDict[Hashable, int] = OrderedDict()  # the rows that were read
        self._score = 0  # row groups that were read again, less those that were not
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def table(
        self, key: Hashable, wanted: int, rows: int, size: int, decode: Callable[[], pa.Table]
    ) -> pa.Table | None:
        """Return a whole row group, or None to read a part alone.

        `wanted` is how many of its rows the caller wants, and `size` its decoded bytes by its
        footer. Only one of the threads that want it calls `decode`. After an error of `decode`,
        nothing is kept.
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
        """Drop a row group, because an unreadable file may be restored under its name."""
        with self._lock:
            self._drop(key)

    def _find(self, key: Hashable, wanted: int, rows: int, size: int) -> _Kept | None:
        kept, now = self._kept.get(key), self._clock()
        if kept is None:
            before = self._read_once.pop(key, 0)
            if before:
                self._count(again=True)
            if not (before or self._score >= _SURE) or not self._has_room(size, now):
                self._note(key, before + wanted)
                return None
            kept = self._kept[key] = _Kept(rows - before, size, again=before > 0)
            self._bytes += size
        elif not kept.again:
            kept.again = True
            self._count(again=True)
        kept.left -= wanted
        kept.used_at = now
        if kept.left <= 0:
            self._drop(key)
        return kept

    def _count(self, *, again: bool) -> None:
        self._score = max(-_SURE, min(2 * _SURE, self._score + (1 if again else -1)))

    def _note(self, key: Hashable, wanted: int) -> None:
        self._read_once[key] = wanted
        if len(self._read_once) > _MAX_READ_ONCE:
            self._read_once.popitem(last=False)
            self._count(again=False)

    def _has_room(self, size: int, now: float) -> bool:
        """Return whether a row group fits in. Drop idle ones if needed."""
        if self._bytes + size > self._max_bytes:
            idle = [k for k, kept in self._kept.items() if now - kept.used_at >= _IDLE_SECONDS]
            for key in idle:
                if not self._kept[key].again:
                    self._count(again=False)
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
