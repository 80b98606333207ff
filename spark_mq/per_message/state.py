"""Share state and options between the feeds of one call."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.acquire import Acquire
from spark_mq.operations.work_report import WorkSummary

__all__ = ["Feed", "FeedOptions", "WorkState"]


class Feed(Protocol):
    """A part of a call that leases and settles until the end."""

    def wake(self) -> None:
        """Wake the feed's thread, because the work ends."""


class WorkState:
    """The shared state of the feeds of one call. Thread-safe."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.over = threading.Event()  # set after the graceful timeout; nothing is settled later
        self.hurried = False  # set before `over`: feeds give back the messages of running handlers
        self.finished = False  # the work ended by itself, by the option ``until``
        self.error: BaseException | None = None
        self.summary = WorkSummary()
        self.lock = threading.Lock()
        self._activity = 0
        self._idle: dict[Feed, int | None] = {}

    def add(self, feed: Feed) -> None:
        self._idle[feed] = None

    def note_activity(self) -> None:
        """Note a lease or a settle, so that idle feeds look again."""
        with self.lock:
            self._activity += 1

    def activity(self) -> int:
        """Return a number that grows with each activity."""
        with self.lock:
            return self._activity

    def all_idle(self, feed: Feed, since: int) -> bool:
        """Note that a feed had nothing to do since an activity. Return whether all have."""
        with self.lock:
            self._idle[feed] = since
            return all(at == self._activity for at in self._idle.values())

    def fail(self, error: BaseException) -> None:
        """End the work with an error. The first one counts."""
        with self.lock:
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
        with self.lock:
            self.summary.count(verb, messages)


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How a feed leases and settles. Times are seconds, ``limit`` is microseconds."""

    lease: Acquire  # its max_messages is the most that the feed holds
    policy: HandlerPolicy
    limit: int
    poll: float
    settle_delay: float  # how long a finished message may wait for others before its settle
    until: str | None = None  # None, "empty" or "settled"
