"""Let few threads of a process decode files at the same time.

Decoding changes between Python and native code all the time. With more threads than cores, each
waits for Python's lock at each change, so all of them become slower.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_mq.util.process import call_in_forks

__all__ = ["ReadPermits", "read_permits"]

_TURN_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 1.0


class ReadPermits:
    """Share `number` permits among threads, in the order in which they ask. Thread-safe.

    A thread that has waited for `patience` seconds reads without a permit, because one file may
    take another thread very long.
    """

    def __init__(
        self,
        number: int,
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self._patience, self._clock = number, patience, clock
        self.reset()

    def reset(self) -> None:
        """Begin with free permits. A forked process has no threads that would free them."""
        self._lock = threading.Lock()
        self.held: set[threading.Lock] = set()
        self.waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """Wait for a permit. Yield a function to call before each file, which may let others in."""
        turn, began = threading.Lock(), 0.0

        def offer() -> None:
            nonlocal began
            if turn in self.held and self.waiting and self._clock() - began >= _TURN_SECONDS:
                self._leave(turn)
                self._take(turn)
                began = self._clock()

        # Twice, because Ctrl-C at any line must not keep the permit, also within the first one.
        try:
            try:
                self._take(turn)
                began = self._clock()
                yield offer
            finally:
                self._leave(turn)
        finally:
            self._leave(turn)

    def _take(self, turn: threading.Lock) -> None:
        """Wait for a permit, or for as long as the patience lasts."""
        with self._lock:
            if len(self.held) < self.number:
                self.held.add(turn)
                return
            turn.acquire(False)
            self.waiting.append(turn)
        if not turn.acquire(timeout=self._patience):
            with self._lock:
                if turn in self.waiting:
                    self.waiting.remove(turn)

    def _leave(self, turn: threading.Lock) -> None:
        """Give up a permit, or the place in the line. A second call changes nothing."""
        with self._lock:
            if turn in self.waiting:
                self.waiting.remove(turn)
            self.held.discard(turn)
            while self.waiting and len(self.held) < self.number:
                following = self.waiting.popleft()
                self.held.add(following)
                following.release()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


read_permits: Final = ReadPermits(max(2, _cores()))
call_in_forks(read_permits.reset)
