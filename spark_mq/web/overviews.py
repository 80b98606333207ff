"""Read overviews of queues at most once a second, for all pages together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from spark_mq.delta.object_store import absolute_path
from spark_mq.errors import QueueNotFound, SparkMQError
from spark_mq.inspect import QueueOverview
from spark_mq.queue import Queue

__all__ = ["OverviewCache"]

FRESH_SECONDS: Final = 1.0  # age of an overview that need not be read again
FIND_SECONDS: Final = 10.0  # age of a list of queues that need not be read again


class _Opened:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self.at = float("-inf")
        self.overview: QueueOverview | None = None


class OverviewCache:
    """The queues under a path or URI, with their last overviews. Thread-safe."""

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
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}
        self._found_at = float("-inf")
        self._opened: dict[str, _Opened] = {}

    def queues(self, max_age: float = FIND_SECONDS) -> dict[str, str]:
        """Return each queue's path by its name on the page, at most ``max_age`` seconds old."""
        with self._lock:
            if self._clock() - self._found_at > max_age:
                paths = Queue.find_all(
                    self.path, storage_options=self._options, max_depth=self._max_depth
                )
                self._found = {_name(self.path, one): one for one in paths}
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
        """Return an overview that is a second old at most."""
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
            if opened.overview is None or self._clock() - opened.at > FRESH_SECONDS:
                opened.overview = opened.queue.describe()
                opened.at = self._clock()
            return opened.overview

    def forget(self, name: str) -> None:
        """Read the overview again at the next request, because the queue was changed."""
        if (opened := self._opened.get(name)) is not None:
            opened.at = float("-inf")

    def close(self, name: str) -> None:
        """Open the queue again at the next request."""
        self._opened.pop(name, None)

    def all(self) -> dict[str, QueueOverview | SparkMQError]:
        found: dict[str, QueueOverview | SparkMQError] = {}
        for name in self.queues():
            try:
                found[name] = self.overview(name)
            except SparkMQError as error:
                found[name] = error
        return found

    def by_path(self) -> dict[str, QueueOverview | None]:
        """Return each queue's overview with lanes by its path, or None if it cannot be read."""
        paths = self.queues()
        return {paths[name]: self._with_lanes(name, one) for name, one in self.all().items()}

    def _with_lanes(self, name: str, one: QueueOverview | SparkMQError) -> QueueOverview | None:
        if not isinstance(one, QueueOverview):
            return None
        try:
            return replace(one, lanes=self.queue(name).describe(lanes=True).lanes)
        except SparkMQError:
            return None


def _name(root: str, path: str) -> str:
    """Return a queue's path below the root, or the root's last part, as its name on the page."""
    return path[len(root) :].strip("/") or path.rstrip("/").rpartition("/")[2]
