"""Share state and totals between the feeds of one worker, and say why it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from spark_mq.ledger.budget import RATE_LIMIT, limit_in
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.operations.work_report import PAST
from spark_mq.util.records import Record
from spark_mq.util.show import show_count

_log = logging.getLogger("spark_mq.worker")


@dataclass(slots=True)
class WorkSummary(Record):
    """The results of a worker loop.

    They include what a handler settled itself by its lease, such as by ``lease.reject``.

    Attributes
    ----------
    leases, failed
        Leases whose messages were handed to the handler, and messages whose handler failed. With
        ``mode="batch"``, `failed` counts leases.
    settled, acked, rejected
        Messages that ended, and how many of them were acked and how many became dead.
    nacked
        Messages given back after a failure. They are redelivered, except after their last attempt.
    released
        Messages given back uncounted, for later.
    blocked_because
        Why the loop ended by ``until="empty"`` although messages are due: a pause, the breaker, a
        cap or a blocking message. Otherwise an empty string.
    """

    leases: int = 0
    failed: int = 0
    settled: int = 0
    acked: int = 0
    rejected: int = 0
    nacked: int = 0
    released: int = 0
    blocked_because: str = ""


class _Stop(threading.Event):
    """The end of one worker. It is set with its caller's event, which may stop other workers.

    To `wait` is to wait for the worker's own end, which follows that event within a poll.
    """

    def __init__(self, given: threading.Event | None) -> None:
        super().__init__()
        self._given = given

    def is_set(self) -> bool:
        return super().is_set() or (self._given is not None and self._given.is_set())


class WorkState:
    """The shared state of the feeds of one worker. Thread-safe."""

    def __init__(self, given: threading.Event | None) -> None:
        self.stop = _Stop(given)
        self.over = threading.Event()  # set after shutdown_timeout; nothing is settled later
        self.hurried = False  # set before `over`: feeds give back the tasks of running handlers
        self.finished = False  # the work ended by itself, by the option ``until``
        self.error: BaseException | None = None
        self.summary = WorkSummary()
        self._lock = threading.Lock()
        self._activity = 0
        self._idle: dict[threading.Event, int | None] = {}

    def add(self, wake: threading.Event) -> None:
        """Add a feed, named by the event that wakes it."""
        self._idle[wake] = None

    def note_look(self, wake: threading.Event) -> None:
        """Note that a feed looks again, and may lease something before the others notice."""
        with self._lock:
            self._idle[wake] = None

    def note_activity(self) -> None:
        """Note a settle, so that idle feeds look again."""
        with self._lock:
            self._activity += 1

    def activity(self) -> int:
        """Return a number that grows with each activity."""
        with self._lock:
            return self._activity

    def all_idle(self, wake: threading.Event, since: int) -> bool:
        """Note that a feed had nothing to do since an activity. Return whether all have."""
        with self._lock:
            self._idle[wake] = since
            return all(at == self._activity for at in self._idle.values())

    def fail(self, error: BaseException) -> None:
        """End the work with an error. The first one counts."""
        with self._lock:
            self.error = error if self.error is None else self.error
        self.end()

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the work."""
        self.stop.wait(seconds)

    def end(self) -> None:
        """End the work, so that no feed leases anything more."""
        self.stop.set()
        for wake in list(self._idle):
            wake.set()

    def finish(self) -> None:
        """End the work because nothing is left that may be leased."""
        self.finished = not self.stop.is_set()
        self.end()

    def count(self, what: str, number: int = 1) -> None:
        """Add to a total: "leases", "failed", or what a verb did to messages."""
        name, summary = PAST.get(what, what), self.summary
        with self._lock:
            setattr(summary, name, getattr(summary, name) + number)
            summary.settled = summary.acked + summary.rejected


def has_ended(ledger: GroupLedger, until: str) -> bool:
    """Return whether a worker ends now that there is nothing to lease."""
    rules = ledger.last_settings
    limited = rules.rate_limit is not None or rules.byte_rate_limit is not None
    if until == "empty" and not limited:
        return True
    stats = ledger.stats()
    if until == "empty":  # then messages that wait for a rate limit are due
        why = stats.blocked_because
        return not stats.ready or (why != "" and limit_in(why) != RATE_LIMIT)
    return not (stats.ready or stats.delayed or stats.leased or stats.blocked)


def why_left(ledgers: Sequence[GroupLedger]) -> str:
    """Return why groups keep due messages after the end, and log it. Empty if none does."""
    reasons = []
    for ledger in ledgers:
        try:
            stats = ledger.stats()
        except OUTAGES as error:
            _log.warning("group %s: its counts cannot be read at the end: %s", ledger.name, error)
            continue
        if (why := stats.blocked_because) and (stats.ready or stats.blocked):
            text = "group %s leases nothing, so the work ends: %s. Ready: %s, blocked: %d"
            _log.warning(text, ledger.name, why, show_count(stats.ready, "message"), stats.blocked)
            reasons.append(why if len(ledgers) == 1 else f"group {ledger.name}: {why}")
    return "; ".join(reasons)
