"""Look at a table in an object store once for all waiting threads of this process.

A look costs a request. So what waits for commits of other processes shares it: all handles, and all
groups. The next commit has a known name, because versions have no gaps.
"""

from __future__ import annotations

import threading
from typing import Final

from spark_mq.delta.actions import LOG_FOLDER, log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.util.clock import Instant
from spark_mq.util.notifier import notifier_for
from spark_mq.util.process import OnePerKey

# So often a look lists the log, which shows if it was cleaned, replaced or damaged meanwhile.
LIST_SECONDS: Final = 60.0


class SharedLook:
    """Notices the commits of other processes, and wakes all that wait. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._notifier = notifier_for(path)
        self._lock = threading.Lock()
        self._newest = -1  # the highest version that anybody in this process knows
        self._looked_at: Instant | None = None
        self._listed_at: Instant | None = None
        self._listed: tuple[int, str | None] | None = None  # the newest commit then, and its tag

    def due_in(self, log: DeltaLog, every: float) -> float:
        """Return the seconds until the last look is `every` seconds old."""
        return max(0.0, every - log.clock.since(self._looked_at))

    def has_news(self, log: DeltaLog, known: int, every: float) -> bool:
        """Return whether a commit after `known` may be there, by a look each `every` seconds."""
        with self._lock:
            self._newest = max(self._newest, log.state.version)
            if self._newest > known:
                return True
            if self.due_in(log, every) > 0:
                return False
            started = log.clock.now()
            if log.clock.since(self._listed_at) >= LIST_SECONDS:
                news = self._list(log)
                self._listed_at = started
            else:
                news = log.store.exists(log_path(self._newest + 1)) or (
                    log.store.is_local and not log.store.exists(log_path(self._newest))
                )
            self._looked_at = started
        if news:
            self._notifier.notify()
        return news

    def _list(self, log: DeltaLog) -> bool:
        """Return whether the log does not end as it did, by one request."""
        newest, known = log_path(self._newest), self._listed
        names = {info.path: info.etag for info in log.store.list(LOG_FOLDER)}
        self._listed = self._newest, names.get(newest)
        same = known is None or known[0] != self._newest or known == self._listed
        beyond = any(name > newest and name.endswith(".json") for name in names)
        return beyond or newest not in names or not same


_looks: Final = OnePerKey(SharedLook)


def shared_look_for(path: str) -> SharedLook:
    return _looks.get(path)
