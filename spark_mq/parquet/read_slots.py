"""Let few threads of a process decode files at the same time.

Decoding changes between Python and native code all the time. More threads than cores then wait for
Python's lock at each change, and all of them together become slower.
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

__all__ = ["ReadSlots", "read_slots"]

_TURN_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 1.0


class ReadSlots:
    """Share some slots among threads, in the order in which they ask. Thread-safe.

    Parameters
    ----------
    number
        How many threads may read at the same time.
    patience
        Seconds until a thread reads without a slot. One file may take others very long. Default: 1.
    clock
        Returns the time in seconds.
    """

    def __init__(
        self,
        number: int,
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._number, self._patience, self._clock = number, patience, clock
        self.reset()

    def reset(self) -> None:
        """Begin with free slots. A forked process has no threads that would free them."""
        self._lock = threading.Lock()
        self._free = self._number
        self._waiting: deque[threading.Lock] = deque()

    @contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """Wait for a slot. Yield a function that offers it to others from time to time.

        The reader calls the function before each file. It waits for the next turn if this one has
        lasted 50 ms and others wait.
        """
        owned, began = False, 0.0

        def offer() -> None:
            nonlocal owned, began
            if owned and self._waiting and self._clock() - began >= _TURN_SECONDS:
                owned = False
                self._give()
                owned, began = self._take(), self._clock()

        try:
            owned, began = self._take(), self._clock()
            yield offer
        finally:
            if owned:
                self._give()

    def _take(self) -> bool:
        """Wait for a slot. Return False if none became free in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            if turn.acquire(timeout=self._patience):
                return True
        except BaseException:
            if not self._leave(turn):
                self._give()
            raise
        return not self._leave(turn)

    def _leave(self, turn: threading.Lock) -> bool:
        """Stop waiting. Return False if a slot was handed over meanwhile."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        return False

    def _give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


read_slots: Final = ReadSlots(max(2, _cores()))
"""The slots of this process."""
call_in_forks(read_slots.reset)
