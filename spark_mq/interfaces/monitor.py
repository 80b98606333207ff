"""Read queues again and again, for the pages of the web server and for ``spark-mq top``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final

import pyarrow as pa

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import QueueNotFound, SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.queue import Queue
from spark_mq.util.validation import validate_duration

_log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 1.0  # age of an overview that need not be read again
PAST_SECONDS: Final = 30.0  # age of a throughput that need not be read again, for its chart
FIND_SECONDS: Final = 10.0  # age of a list of queues that need not be read again
HOUR: Final = "1h"
# The ranges that charts offer, with the length of their intervals.
RANGES: Final[Mapping[str, str]] = {HOUR: "1m", "6h": "5m", "24h": "15m", "7d": "2h"}
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@cache
def _length_of(text: str) -> timedelta:
    """Return the duration of one of RANGES, for which a chart asks at each interval."""
    return timedelta(microseconds=validate_duration("range", text))


class _Opened:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self.at = float("-inf")
        self.overview: QueueOverview | None = None
        self.past_lock = threading.Lock()  # a first read of the history may take seconds
        self.past_at = dict.fromkeys(RANGES, float("-inf"))  # of the last try
        self.past: dict[str, Past] = {}


@dataclass(frozen=True, slots=True)
class Past:
    """The throughput of a queue by interval and group, up to a time."""

    range: str  # one of RANGES
    until: datetime
    rows: pa.Table
    publishes_since: datetime  # before it, nothing is known of publishes
    events_since: datetime  # nor of what the groups did

    @property
    def every(self) -> str:
        return RANGES[self.range]

    @property
    def length(self) -> timedelta:
        return _length_of(self.every)

    @property
    def intervals(self) -> int:
        return _length_of(self.range) // self.length

    @property
    def _first(self) -> int:
        return (self.until - _EPOCH) // self.length - self.intervals + 1

    def place(self, at: datetime) -> int:
        """Return the number of the interval of a time. The last one has the end."""
        return (at - _EPOCH) // self.length - self._first

    def starts(self, place: int) -> datetime:
        return _EPOCH + (self._first + place) * self.length


class QueueMonitor:
    """The queues under a path or URI, with their last overviews. Thread-safe."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        max_depth: int = 3,
        max_age: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = absolute_path(path)
        self._options = dict(storage_options or {})
        self._max_depth = max_depth
        self._max_age = max_age
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}
        self._found_at = float("-inf")
        self._opened: dict[str, _Opened] = {}

    def queues(self, max_age: float = FIND_SECONDS) -> dict[str, str]:
        """Return each queue's path by its name below the root, at most ``max_age`` seconds old."""
        with self._lock:
            if self._clock() - self._found_at > max_age:
                paths = Queue.find_all(
                    self.path, storage_options=self._options, max_depth=self._max_depth
                )
                self._found = {_name(self.path, path): path for path in paths}
                self._found_at = self._clock()
                for name in set(self._opened) - set(self._found):
                    del self._opened[name]
            return self._found

    def queue(self, name: str) -> Queue:
        return self._open(name).queue

    def _open(self, name: str) -> _Opened:
        path = self.queues().get(name) or self.queues(FRESH_SECONDS).get(name)
        if path is None:
            raise QueueNotFound(f"there is no queue {name!r} here", path=name)
        opened = self._opened.get(name)
        if opened is None:
            queue = Queue.open(path, storage_options=self._options)
            opened = self._opened.setdefault(name, _Opened(queue))
        return opened

    def overview(self, name: str) -> QueueOverview:
        """Return an overview that is no older than the monitor's `max_age`."""
        was_open = name in self._opened
        try:
            return self._overview(self._open(name))
        except SparkMQError:
            self.close(name)
            if not was_open:
                raise
        # The handle may be of a queue that was dropped and made again.
        return self._overview(self._open(name))

    def _overview(self, opened: _Opened) -> QueueOverview:
        with opened.lock:
            if opened.overview is None or self._clock() - opened.at > self._max_age:
                opened.overview = opened.queue.describe()
                opened.at = self._clock()
            return opened.overview

    def past(self, name: str, span: str) -> Past:
        """Return the throughput of a range. That of an hour is a second old at most."""
        max_age = FRESH_SECONDS if span == HOUR else PAST_SECONDS
        return self._past(self._open(name), span, max_age)

    def _past(self, opened: _Opened, span: str, max_age: float) -> Past:
        with opened.past_lock:
            now = self._clock()
            if span not in opened.past or now - opened.past_at[span] > max_age:
                opened.past_at[span] = now  # also if it fails, so that others have their turn
                queue = opened.queue
                rows = queue.throughput(since=span, every=RANGES[span])
                until = datetime.now(UTC)
                opened.past[span] = Past(span, until, rows, *queue._throughput_known_since())
            return opened.past[span]

    def last_hours(self, names: Iterable[str], most: int) -> dict[str, Past]:
        """Return the last hours of some queues, of which at most ``most`` are read again.

        Those are the ones that were read the longest ago. The next call reads others.
        """
        opened = {name: own for name in names if (own := self._opened.get(name)) is not None}
        oldest = sorted(opened.values(), key=lambda own: own.past_at[HOUR])
        now = self._clock()
        for behind in [own for own in oldest if now - own.past_at[HOUR] > PAST_SECONDS][:most]:
            try:
                self._past(behind, HOUR, PAST_SECONDS)
            except (SparkMQError, OSError) as error:  # its chart is missing or old
                _log.warning("the last hour of %s cannot be read: %s", behind.queue.path, error)
        return {name: own.past[HOUR] for name, own in opened.items() if HOUR in own.past}

    def forget(self, name: str) -> None:
        """Read the overview again at the next request, because the queue was changed."""
        if (opened := self._opened.get(name)) is not None:
            opened.at = float("-inf")

    def close(self, name: str) -> None:
        """Open the queue again at the next request."""
        self._opened.pop(name, None)

    def all(self) -> dict[str, QueueOverview | SparkMQError]:
        overviews: dict[str, QueueOverview | SparkMQError] = {}
        for name in self.queues():
            try:
                overviews[name] = self.overview(name)
            except SparkMQError as error:
                overviews[name] = error
        return overviews

    def by_path(self) -> dict[str, QueueOverview | None]:
        """Return each queue's overview by its path with all details, or None if unreadable."""
        return {path: self._details(name) for name, path in self.queues().items()}

    def _details(self, name: str) -> QueueOverview | None:
        try:
            self.overview(name)  # opens a queue again that was dropped and made again
            return self.queue(name).describe(lanes=True, durations=True)
        except SparkMQError:
            return None


def _name(root: str, path: str) -> str:
    """Return a queue's path below the root, or the root's last part, as its name."""
    return path[len(root) :].strip("/") or path.rstrip("/").rpartition("/")[2]
