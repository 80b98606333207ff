"""Doors: where those on one machine who want to change the same ledger stand in line, so that they do not race each other.

Threads stand in line in order; processes at a lock on a file beside the tables, which the system takes back from who dies. A door is a
courtesy: who has waited for long enough goes in all the same, for the compare-and-swap behind it is what keeps the ledger right. Where
there is no lock on files (an object store), :mod:`spark_mq.turns` keeps order.
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
except ImportError:  # not on this system: processes race each other, as those on several machines do
    fcntl = None  # type: ignore[assignment]

__all__ = ["FairLock", "FileLock", "door_at"]

PATIENCE: Final = 2.0
"""Seconds until one goes in without its turn."""
SHUNNED: Final = 30.0
"""Seconds for which a lock is passed by after that: whoever has it is frozen, or busy with something long."""


class FileLock:
    """A lock between processes on two files: who waits for the second holds the first, so who comes back at once is behind the others."""

    def __init__(self, path: str) -> None:
        self._paths = (f"{path}.next", f"{path}.lock")
        self._files: list[int] = []
        self._shunned = 0.0

    def take(self, patience: float) -> bool:
        """Whether it could be had within `patience` seconds, and at all."""
        if fcntl is None or time.monotonic() < self._shunned or not self._opened():
            return False
        deadline = time.monotonic() + patience
        first, second = self._files
        if not self._lock(first, deadline):
            return False
        try:
            return self._lock(second, deadline)
        finally:
            fcntl.flock(first, fcntl.LOCK_UN)

    def give_back(self) -> None:
        fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def _opened(self) -> bool:
        if not self._files:
            try:
                os.makedirs(os.path.dirname(self._paths[0]), exist_ok=True)
                self._files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o666) for path in self._paths]
            except OSError:  # a disk that is full or read-only: no reason not to try without
                self._shunned = time.monotonic() + SHUNNED
        return bool(self._files)

    def _lock(self, file: int, deadline: float) -> bool:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                if now > deadline:
                    self._shunned = now + SHUNNED
                    return False
            except OSError:  # a file system without locks
                self._shunned = time.monotonic() + SHUNNED
                return False
            # Who has waited for longer looks more often, and so is likely to come first.
            time.sleep(max(0.0005, 0.005 / (1 + 20 * (now - started))))

    def __del__(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)


class FairLock:
    """Given to threads in the order in which they asked, and again to the thread that has it. ``lock``: what other processes see of it."""

    def __init__(self, lock: FileLock | None = None) -> None:
        self._lock = lock
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._line: deque[tuple[int, threading.Event]] = deque()

    @contextlib.contextmanager
    def turn(self, patience: float = PATIENCE) -> Iterator[None]:
        """Waits for its turn, for so many seconds at most, and has it until the end of the block."""
        if not self._enter(patience):
            yield
            return
        locked = False
        try:
            locked = self._depth == 1 and self._lock is not None and self._lock.take(patience)
            yield
        finally:
            if locked and self._lock is not None:
                self._lock.give_back()
            self._leave()

    def _enter(self, patience: float) -> bool:
        me, event = threading.get_ident(), threading.Event()
        with self._guard:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return True
            self._line.append((me, event))
        try:
            event.wait(patience)
        except BaseException:  # interrupted
            if not self._withdrew(me, event):
                self._leave()
            raise
        return not self._withdrew(me, event)

    def _withdrew(self, me: int, event: threading.Event) -> bool:
        """Steps out of the line, unless the door has been given."""
        with self._guard:
            if not event.is_set():
                self._line.remove((me, event))
            return not event.is_set()

    def _leave(self) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._line:
                self._owner, event = self._line.popleft()
                self._depth = 1
                event.set()


_doors: WeakValueDictionary[tuple[str, str], FairLock] = WeakValueDictionary()
_guard = threading.Lock()


def door_at(path: str, group: str) -> FairLock:
    """The door to a group's ledger in the table at a path: one in this process, whoever has a handle on the table."""
    with _guard:
        door = _doors.get((path, group))
        if door is None:
            lock = None if "://" in path else FileLock(os.path.join(os.path.dirname(path), "_locks", group))
            door = _doors[path, group] = FairLock(lock)
        return door
