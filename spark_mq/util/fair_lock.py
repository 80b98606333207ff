"""Order the threads and processes of one machine that would slow each other down.

They change the same ledger, or decode files. The lock only reduces contention: after a timeout the
caller proceeds without it, and the compare-and-swap commit keeps the ledger right. Threads get the
lock in the order in which they ask. Writers of a ledger also lock files beside the tables, and the
system releases the lock of a dead process. An object store has no file locks, so only the threads
of a process are ordered there.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections import deque
from typing import Final

from spark_mq.util.process import OnePerKey

try:
    import fcntl
except ImportError:  # this system has no file locks, so its processes are not ordered
    fcntl = None  # type: ignore[assignment]

__all__ = ["FairLock", "FileLock", "Hold", "fair_lock_for"]

TIMEOUT_SECONDS: Final = 2.0  # a caller waits this long before it proceeds without the lock
TURN_SECONDS: Final = 0.05  # a thread that offers the lock keeps it so long
SKIP_AFTER_TIMEOUT: Final = 30.0  # seconds without another try: the holder is frozen or busy
_NEXT_POLL: Final = 0.002  # seconds between two tries to become the process that is next
_LOCK_POLL: Final = 0.0003  # the same for the one process that is next, because a commit takes 2 ms


class FileLock:
    """A lock between processes, in the files ``.next`` and ``.lock`` at a path.

    A caller that waits for the second file holds the first one. So a process that releases the lock
    and asks again immediately comes after the process that waits. The files are open only while a
    caller waits or holds.
    """

    _file: io.FileIO | None = None  # of the class: __del__ also runs after an interrupted __init__

    def __init__(self, path: str) -> None:
        self._path = path
        self._skip_until = 0.0

    def acquire(self, timeout: float) -> bool:
        """Acquire the lock within some seconds. Return False without it."""
        if fcntl is None or time.monotonic() < self._skip_until:
            return False
        deadline = time.monotonic() + timeout
        try:
            with _open(f"{self._path}.next") as next_file:
                if not self._lock(next_file.fileno(), deadline, _NEXT_POLL):
                    return False
                # Kept before it is locked. After an interrupt, the release closes it.
                self._file = _open(f"{self._path}.lock")
                if self._lock(self._file.fileno(), deadline, _LOCK_POLL):
                    return True
        except OSError:  # a full or read-only disk, or a file system without locks
            self._skip()
        self.release()
        return False

    def release(self) -> None:
        """Release the lock and close its file. Without the lock this does nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a network disk: the file is closed all the same
                self._file.close()
            self._file = None

    def _lock(self, file: int, deadline: float, poll: float) -> bool:
        """Lock an open file until the deadline. Wait at most `poll` seconds between tries."""
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
            time.sleep(max(_LOCK_POLL, poll / (1 + 20 * (now - started))))

    def _skip(self) -> None:
        self._skip_until = time.monotonic() + SKIP_AFTER_TIMEOUT

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.release()


def _open(path: str) -> io.FileIO:
    """Open a lock file. Create it and its folder if needed. Closing it releases its lock."""
    try:
        return io.FileIO(path, "ab")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return io.FileIO(path, "ab")


class FairLock:
    """A lock that `places` threads may have. They get it in the order in which they ask.

    It is reentrant. Without the lock between processes it orders threads only.
    """

    def __init__(self, lock: FileLock | None = None, *, places: int = 1) -> None:
        self.places = places
        self._lock = lock
        self.reset()

    def reset(self) -> None:
        """Begin free. A forked process has no threads that would release it."""
        self._guard = threading.Lock()
        self._holds: list[Hold] = []  # the outermost of a thread first
        self._queue: deque[Hold] = deque()

    @property
    def owners(self) -> set[int]:
        """Return the ids of the threads that have the lock."""
        return {hold.thread for hold in self._holds}

    @property
    def waiting(self) -> int:
        """Return how many threads wait."""
        return len(self._queue)

    def hold(self, timeout: float = TIMEOUT_SECONDS) -> Hold:
        """Return a context manager. After the timeout, its block runs without the lock."""
        return Hold(self, timeout)

    def abandon(self) -> None:
        """Release all locks of this thread, with those of interrupted releases."""
        me = threading.get_ident()
        for hold in [*self._holds, *self._queue]:
            if hold.thread == me:
                hold.release()

    def _enter(self, hold: Hold) -> None:
        with self._guard:
            if self._has_place(hold):
                self._holds = [*self._holds, hold]
                return
            hold.event = threading.Event()
            self._queue.append(hold)
        hold.event.wait(hold.timeout)
        with self._guard:
            if hold in self._queue:  # the time is up
                self._queue.remove(hold)

    def _has_place(self, hold: Hold) -> bool:
        owners = self.owners
        return len(owners) < self.places or hold.thread in owners

    def _leave(self, hold: Hold) -> None:
        """Give the lock to the next threads. A second call completes an interrupted one."""
        with self._guard:
            if hold in self._queue:
                self._queue.remove(hold)
            self._holds = [one for one in self._holds if one is not hold]
            while self._queue and self._has_place(self._queue[0]):
                following = self._queue[0]
                if following not in self._holds:
                    self._holds = [*self._holds, following]
                assert following.event is not None
                following.event.set()
                self._queue.popleft()


class Hold:
    """Holds a lock for one block. If an interrupt skips its release, the thread calls abandon()."""

    def __init__(self, lock: FairLock, timeout: float) -> None:
        self.thread = threading.get_ident()
        self.timeout = timeout
        self.event: threading.Event | None = None  # set when it has the lock after a wait
        self._fair = lock
        self._has_file = False
        self._began = 0.0

    def acquire(self) -> None:
        """Wait for the lock. After the timeout the caller continues without it."""
        fair = self._fair
        fair._enter(self)
        if fair._lock is not None and fair._holds == [self]:
            self._has_file = True  # before, so that the release closes the file in any case
            fair._lock.acquire(self.timeout)
        self._began = time.monotonic()

    def offer(self) -> None:
        """Let the threads that wait go first, unless this one has just got the lock."""
        fair = self._fair
        is_long = time.monotonic() - self._began >= TURN_SECONDS
        if fair.waiting and is_long and self in fair._holds:
            self.release()
            self.acquire()

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        fair = self._fair
        if self._has_file and fair._lock is not None:
            fair._lock.release()
            self._has_file = False
        fair._leave(self)

    def __enter__(self) -> Hold:
        try:
            self.acquire()
            return self
        except BaseException:  # an interrupt
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        finally:
            self.release()


def _make_lock(key: tuple[str, str]) -> FairLock:
    path, group = key
    if "://" in path:
        return FairLock(None)
    return FairLock(FileLock(os.path.join(os.path.dirname(path), "_locks", group)))


_locks: OnePerKey[tuple[str, str], FairLock] = OnePerKey(_make_lock)


def fair_lock_for(path: str, group: str) -> FairLock:
    """Return this process's one lock for a group's ledger. An object store gets no file lock."""
    return _locks.get((path, group))
