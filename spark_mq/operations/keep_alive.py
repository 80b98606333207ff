"""Extend a lease while its handler runs, up to a limit, because a handler may hang forever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_mq.errors import LeaseLost
from spark_mq.util.clock import SECOND

__all__ = ["LeaseKeepAlive"]

_log = logging.getLogger(__name__)

_TEN_YEARS: Final = 10 * 365 * 86_400.0


class LeaseKeepAlive:
    """Extends one lease in the background, each third of its timeout. Times are microseconds.

    `extend` sets the deadline to now + its argument, and raises LeaseLost if nothing is held.
    """

    def __init__(self, extend: Callable[[int], object], timeout: int, limit: int) -> None:
        self._extend = extend
        self._timeout = timeout
        self._end = time.monotonic() + limit / SECOND
        self.stopped = threading.Event()
        self._ended = False  # at the limit
        self._lock = threading.Lock()
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="spark_mq keep-alive", daemon=True)
        thread.start()
        return thread

    def remove_limit(self) -> None:
        """Extend without a limit from now on, because done work waits for its settle."""
        with self._lock:
            self._end = time.monotonic() + _TEN_YEARS
            if self._ended and not self.stopped.is_set():
                self._ended, self._thread = False, self._start()

    def stop(self) -> None:
        """Stop. No extension starts after this returns."""
        self.stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(self._timeout / SECOND / 3):
            with self._lock:  # or nobody would go on after a removal of the limit just now
                left = round((self._end - time.monotonic()) * SECOND)
                self._ended = left <= 0
            if left <= 0:
                _log.warning(
                    "a lease reached its longest duration. Its unsettled messages expire and are "
                    "redelivered"
                )
                return
            try:
                self._extend(min(self._timeout, left))
            except LeaseLost:
                return  # all of it is settled or lost, so there is nothing to keep
            except Exception as error:  # a store that fails for now must not end this
                _log.warning("could not extend a lease, trying again: %s", error)
