"""Order the threads and processes of one machine that change the same ledger.

The lock only reduces contention. After a timeout the caller proceeds without it, and the
compare-and-swap commit keeps the ledger right. Threads get the lock in the order in which they
ask. Processes lock files beside the tables, and the system releases the lock of a dead process.
An object store has no file locks, so only the threads of a process are ordered there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final
from weakref import WeakValueDictionary

try:
    import fcntl
except ImportError:  # this system has no file locks, so its processes are not ordered
    fcntl = None  # type: ignore[assignment]

__all__ = ["FairLock", "FileLock", "fair_lock_for"]

TIMEOUT_SECONDS: Final = 2.0
"""How long a caller waits before it proceeds without the lock."""
SKIP_AFTER_TIMEOUT: Final = 30.0
"""Seconds without another try after a timeout, because the holder is frozen or busy."""


class FileLock:
    """A lock between processes. It keeps files open only while a caller waits or holds.

    There are two files. A caller that waits for the second one holds the first one. So a process
    that releases the lock and returns at once is behind the process that waits.

    Parameters
    ----------
    path
        The path of the files, without their suffixes ``.next`` and ``.lock``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: int | None = None
        self._skip_until = 0.0

    def acquire(self, timeout: float) -> bool:
        """Acquire the lock within some seconds. Return False without it."""
        if fcntl is None or time.monotonic() < self._skip_until:
            return False
        deadline = time.monotonic() + timeout
        try:
            with _opened(f"{self._path}.next") as turnstile:
                if not self._lock(turnstile, deadline):
                    return False
                self._held = self._lock_second(deadline)
        except OSError:  # a full or read-only disk, or a file system without locks
            self._skip()
        return self._held is not None

    def release(self) -> None:
        """Release the lock and close its file. Without the lock this does nothing."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _lock_second(self, deadline: float) -> int | None:
        """Return the open and locked second file, or None after the deadline."""
        file = _open(f"{self._path}.lock")
        locked = False
        try:
            locked = self._lock(file, deadline)
        finally:
            if not locked:
                os.close(file)
        return file if locked else None

    def _lock(self, file: int, deadline: float) -> bool:
        """Lock an open file until the deadline."""
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
            if now > deadline:
                self._skip()
                return False
            # A longer wait looks more often, and so is likely to end first.
            time.sleep(max(0.0005, 0.005 / (1 + 20 * (now - started))))

    def _skip(self) -> None:
        self._skip_until = time.monotonic() + SKIP_AFTER_TIMEOUT

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.release()


def _open(path: str) -> int:
    """Open a lock file. Create it and its folder if needed."""
    flags, mode = os.O_RDWR | os.O_CREAT, 0o666
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, mode)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a lock file for the block. Closing it releases its lock."""
    file = _open(path)
    try:
        yield file
    finally:
        os.close(file)


class FairLock:
    """A lock that threads get in the order in which they ask. It is reentrant.

    Parameters
    ----------
    lock
        The lock between processes. None to order threads only.
    """

    def __init__(self, lock: FileLock | None = None) -> None:
        self._lock = lock
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._queue: deque[tuple[int, threading.Event]] = deque()

    @contextlib.contextmanager
    def hold(self, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold the lock for the block. After the timeout the block runs without it.

        Parameters
        ----------
        timeout
            The longest wait in seconds, for threads and again for processes. Default 2.
        """
        if not self._acquire(timeout):
            yield
            return
        outermost = self._depth == 1
        try:
            if outermost and self._lock is not None:
                self._lock.acquire(timeout)
            yield
        finally:
            try:
                if outermost and self._lock is not None:
                    self._lock.release()
            finally:
                self._release()

    def _acquire(self, timeout: float) -> bool:
        """Wait for the lock. Return False after the timeout."""
        me, event = threading.get_ident(), threading.Event()
        with self._guard:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return True
            self._queue.append((me, event))
        try:
            event.wait(timeout)
        except BaseException:  # an interrupt
            if not self._withdraw(me, event):
                self._release()
            raise
        return not self._withdraw(me, event)

    def _withdraw(self, me: int, event: threading.Event) -> bool:
        """Leave the queue. Return False if this thread has the lock already."""
        with self._guard:
            if not event.is_set():
                self._queue.remove((me, event))
            return not event.is_set()

    def _release(self) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._queue:
                self._owner, event = self._queue.popleft()
                self._depth = 1
                event.set()


_locks: WeakValueDictionary[tuple[str, str], FairLock] = WeakValueDictionary()
_guard = threading.Lock()


def fair_lock_for(path: str, group: str) -> FairLock:
    """Return the one lock of this process for a group's ledger.

    Parameters
    ----------
    path
        The path of the table. An object store's path has a scheme, and gets no file lock.
    group
        The name of the consumer group.
    """
    with _guard:
        lock = _locks.get((path, group))
        if lock is None:
            files = None
            if "://" not in path:
                files = FileLock(os.path.join(os.path.dirname(path), "_locks", group))
            lock = _locks[path, group] = FairLock(files)
        return lock
