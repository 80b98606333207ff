"""Keeps a lease alive while its work runs, up to a limit from its start: what hangs for ever must
not hold messages for ever."""

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
    """Extends one lease in the background, a third of its timeout before each deadline at the
    latest.

    ``extend(timeout)`` sets the deadline to now + timeout (microseconds) and raises LeaseLost once
    nothing is held. Ends by itself
    then, after `limit` microseconds from now, or with :meth:`stop`.
    """

    def __init__(self, extend: Callable[[int], object], timeout: int, limit: int) -> None:
        self._extend = extend
        self._timeout = timeout
        self._end = time.monotonic() + limit / SECOND
        self.stopped = threading.Event()
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="spark_mq keep-alive", daemon=True)
        thread.start()
        return thread

    def remove_limit(self) -> None:
        """Extend without a limit from now on: the work is done, and only its settle waits."""
        self._end = time.monotonic() + _TEN_YEARS
        if not self._thread.is_alive() and not self.stopped.is_set():
            self._thread = self._start()

    def stop(self) -> None:
        """No extension starts after this returns."""
        self.stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(self._timeout / SECOND / 3):
            left = round((self._end - time.monotonic()) * SECOND)
            if left <= 0:
                _log.warning(
                    "a lease reached its longest duration; what is not settled in time goes to "
                    "someone else"
                )
                return
            try:
                self._extend(min(self._timeout, left))
            except LeaseLost:
                return  # all of it is settled, or it was lost: there is nothing left to keep
            except Exception as error:  # a store that fails for now must not end this
                _log.warning("could not extend a lease, trying again: %s", error)
