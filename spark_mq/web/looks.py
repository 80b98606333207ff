"""Look at queues at most once a second, for all pages together."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import QueueNotFound, SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.ledger.stats import GroupStats
from spark_mq.queue import Queue
from spark_mq.util.clock import to_seconds

__all__ = ["Looks", "Sample"]

FRESH_SECONDS: Final = 1.0  # age of an overview that need not be read again
FIND_SECONDS: Final = 10.0  # age of a list of queues that need not be read again
SAMPLES: Final = 720  # of a chart. One in five seconds makes an hour
CHARTS: Final = 200  # queues and groups whose samples are kept, the last that were looked at


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters and ages of a queue or a group at one moment."""

    at: float  # seconds since 1970
    published: int
    acked: int
    dead: int
    age: float  # seconds, of the oldest unsettled message
    lease_age: float  # seconds, of the oldest lease


class _Known:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self.at = float("-inf")
        self.overview: QueueOverview | None = None


class Looks:
    """The queues under a path or URI, with their last looks. Thread-safe."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        max_depth: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = absolute_path(path)
        self._options = dict(storage_options or {})
        self._max_depth = max_depth
        self._clock = clock
        self._start = time.time() - clock()
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}
        self._found_at = float("-inf")
        self._known: dict[str, _Known] = {}
        self._samples: OrderedDict[tuple[str, str | None], deque[Sample]] = OrderedDict()

    def queues(self, max_age: float = FIND_SECONDS) -> dict[str, str]:
        """Return each queue's path by its name on the page, at most ``max_age`` seconds old."""
        with self._lock:
            if self._clock() - self._found_at > max_age:
                paths = Queue.find_all(
                    self.path, storage_options=self._options, max_depth=self._max_depth
                )
                self._found = {_name(self.path, one): one for one in paths}
                self._found_at = self._clock()
                for name in set(self._known) - set(self._found):
                    del self._known[name]
            return self._found

    def queue(self, name: str) -> Queue:
        return self._opened(name).queue

    def _opened(self, name: str) -> _Known:
        path = self.queues().get(name) or self.queues(FRESH_SECONDS).get(name)
        if path is None:
            raise QueueNotFound(f"there is no queue {name!r} here", path=name)
        known = self._known.get(name)
        if known is None:
            opened = Queue.open(path, storage_options=self._options)
            known = self._known.setdefault(name, _Known(opened))
        return known

    def overview(self, name: str) -> QueueOverview:
        """Return an overview that is a second old at most."""
        was_open = name in self._known
        try:
            return self._overview(name, self._opened(name))
        except SparkMQError:
            self.close(name)
            if not was_open:
                raise
        # The handle may be of a queue that was dropped and made again.
        return self._overview(name, self._opened(name))

    def _overview(self, name: str, known: _Known) -> QueueOverview:
        with known.lock:
            if known.overview is None or self._clock() - known.at > FRESH_SECONDS:
                known.overview = known.queue.describe()
                known.at = self._clock()
                groups = list(known.overview.groups.values())
                self._sample(name, None, groups, known.overview.published)
            return known.overview

    def forget(self, name: str) -> None:
        """Look again at the next request, because the queue was changed."""
        if (known := self._known.get(name)) is not None:
            known.at = float("-inf")

    def close(self, name: str) -> None:
        """Open the queue again at the next request."""
        self._known.pop(name, None)

    def all(self) -> dict[str, QueueOverview | SparkMQError]:
        found: dict[str, QueueOverview | SparkMQError] = {}
        for name in self.queues():
            try:
                found[name] = self.overview(name)
            except SparkMQError as error:
                found[name] = error
        return found

    def by_path(self) -> dict[str, QueueOverview | None]:
        """Return each queue's overview with lanes by its path, or None if the look failed."""
        paths = self.queues()
        return {paths[name]: self._with_lanes(name, one) for name, one in self.all().items()}

    def _with_lanes(self, name: str, one: QueueOverview | SparkMQError) -> QueueOverview | None:
        if not isinstance(one, QueueOverview):
            return None
        try:
            return replace(one, lanes=self._opened(name).queue.describe(lanes=True).lanes)
        except SparkMQError:
            return None

    def samples(self, name: str, group: str | None = None) -> list[Sample]:
        """Return the last samples since the page's first look at a queue or a group."""
        overview = self.overview(name)
        if group is not None and (stats := overview.groups.get(group)) is not None:
            self._sample(name, group, [stats], 0)
        with self._lock:
            return list(self._samples.get((name, group), ()))

    def _sample(
        self, name: str, group: str | None, stats: list[GroupStats], published: int
    ) -> None:
        sample = _sum(self._start + self._clock(), stats, published)
        with self._lock:
            kept = self._samples.setdefault((name, group), deque(maxlen=SAMPLES))
            self._samples.move_to_end((name, group))
            if not kept or sample.at - kept[-1].at >= FRESH_SECONDS / 2:
                kept.append(sample)
            while len(self._samples) > CHARTS:
                self._samples.popitem(last=False)


def _name(root: str, path: str) -> str:
    """Return a queue's path below the root, or the root's last part, as its name on the page."""
    return path[len(root) :].strip("/") or path.rstrip("/").rpartition("/")[2]


def _sum(at: float, stats: list[GroupStats], published: int) -> Sample:
    return Sample(
        at,
        published,
        sum(one.acked for one in stats),
        sum(one.dead_lettered for one in stats),
        max((to_seconds(one.oldest_unsettled_age) or 0.0 for one in stats), default=0.0),
        max((to_seconds(one.oldest_lease_age) or 0.0 for one in stats), default=0.0),
    )
