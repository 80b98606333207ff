"""Order the threads of a process that would slow each other down.

They change the same table, or decode files. The lock only reduces contention: after a timeout the
caller proceeds without it, and the compare-and-swap commit keeps the ledger right. Threads get the
lock in the order in which they ask.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from spark_mq.util.process import OnePerKey

TIMEOUT_SECONDS: Final = 2.0  # a caller waits this long before it proceeds without the lock
TURN_SECONDS: Final = 0.05  # a thread that offers the lock keeps it so long


class FairLock:
    """A reentrant lock that `places` threads may have, in the order in which they ask."""

    def __init__(self, *, places: int = 1) -> None:
        self.places = places
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

    def hold(self, timeout: float | None = TIMEOUT_SECONDS) -> Hold:
        """Return a context manager. After the timeout, if any, its block runs without the lock."""
        return Hold(self, timeout)

    def abandon(self) -> None:
        """Release all locks of this thread, with those of interrupted releases."""
        me = threading.get_ident()
        for hold in [*self._holds, *self._queue]:
            if hold.thread == me:
                hold.release()

    def _enter(self, hold: Hold) -> None:
        with self._guard:
            hold.is_nested = hold.thread in self.owners
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

    def _give_up(self, hold: Hold) -> None:
        with self._guard:
            if hold in self._queue and hold.event is not None:
                hold.event.set()
                self._queue.remove(hold)

    def _leave(self, hold: Hold) -> None:
        """Give the lock to the next threads. A second call completes an interrupted one."""
        with self._guard:
            if hold in self._queue:
                self._queue.remove(hold)
            self._holds = [held for held in self._holds if held is not hold]
            while self._queue and self._has_place(self._queue[0]):
                following = self._queue[0]
                if following not in self._holds:
                    self._holds = [*self._holds, following]
                assert following.event is not None
                following.event.set()
                self._queue.popleft()


class Hold:
    """Holds a lock for one block. If an interrupt skips its release, the thread calls abandon()."""

    def __init__(self, lock: FairLock, timeout: float | None) -> None:
        self.thread = threading.get_ident()
        self.timeout = timeout
        self.event: threading.Event | None = None  # set when it has the lock after a wait
        self.is_nested = False  # whether its thread had the lock already
        self._fair = lock
        self._began = 0.0

    def acquire(self) -> None:
        """Wait for the lock. After the timeout the caller continues without it."""
        self._fair._enter(self)
        self._began = time.monotonic()

    def give_up(self) -> None:
        """Let its thread continue without the lock, if it waits."""
        self._fair._give_up(self)

    def offer(self) -> None:
        """Let the threads that wait go first, unless this one has just got the lock."""
        fair = self._fair
        is_long = time.monotonic() - self._began >= TURN_SECONDS
        if fair.waiting and is_long and self in fair._holds:
            self.release()
            self.acquire()

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        self._fair._leave(self)

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


_locks: OnePerKey[str, FairLock] = OnePerKey(lambda _: FairLock())


def fair_lock_for(path: str) -> FairLock:
    """Return this process's one lock for a table."""
    return _locks.get(path)
