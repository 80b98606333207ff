"""Share state between the feeds of one worker."""

from __future__ import annotations

import threading
from typing import Protocol

from spark_mq.operations.work_report import WorkSummary

__all__ = ["WorkState"]


class _Feed(Protocol):
    def wake(self) -> None: ...


class WorkState:
    """The shared state of the feeds of one worker. Thread-safe."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.over = threading.Event()  # set after shutdown_timeout; nothing is settled later
        self.hurried = False  # set before `over`: feeds give back the tasks of running handlers
        self.finished = False  # the work ended by itself, by the option ``until``
        self.error: BaseException | None = None
        self.summary = WorkSummary()
        self._lock = threading.Lock()
        self._activity = 0
        self._idle: dict[_Feed, int | None] = {}

    def add(self, feed: _Feed) -> None:
        self._idle[feed] = None

    def note_activity(self) -> None:
        """Note a lease or a settle, so that idle feeds look again."""
        with self._lock:
            self._activity += 1

    def activity(self) -> int:
        """Return a number that grows with each activity."""
        with self._lock:
            return self._activity

    def all_idle(self, feed: _Feed, since: int) -> bool:
        """Note that a feed had nothing to do since an activity. Return whether all have."""
        with self._lock:
            self._idle[feed] = since
            return all(at == self._activity for at in self._idle.values())

    def fail(self, error: BaseException) -> None:
        """End the work with an error. The first one counts."""
        with self._lock:
            self.error = self.error or error
        self.end()

    def end(self) -> None:
        """End the work, so that no feed leases anything more."""
        self.stop.set()
        for feed in list(self._idle):
            feed.wake()

    def finish(self) -> None:
        """End the work because nothing is left that may be leased."""
        self.finished = not self.stop.is_set()
        self.end()

    def count(self, verb: str, messages: int) -> None:
        with self._lock:
            self.summary.count(verb, messages)

    def count_lease(self) -> None:
        with self._lock:
            self.summary.leases += 1

    def count_failure(self) -> None:
        with self._lock:
            self.summary.failed += 1
