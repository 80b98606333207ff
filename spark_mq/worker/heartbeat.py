"""Write a small file for each group of a worker at intervals, so that others see that it runs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from spark_mq.delta.store_errors import one_line
from spark_mq.storage.heartbeat_files import (
    Heartbeat,
    delete_old_heartbeats,
    heartbeat_path,
    write_heartbeat,
)
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.process import in_background
from spark_mq.util.validation import invalid, validate_duration
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.state import WorkState

_log = logging.getLogger("spark_mq.worker")

OFF: Final = "off"
LOOK_SECONDS: Final = 1.0  # until the first write, which spares short runs, and between two checks
_STOP_SECONDS: Final = 1.0  # for the end of a write that a slow store delays
_LEAST: Final = 30 * SECOND  # the least interval, and the default
_MOST: Final = 3600 * SECOND


def heartbeat_interval(given: Duration | None, *, is_local: bool) -> int | None:
    """Return the microseconds between two writes, or None if there are none."""
    if given is None:
        return _LEAST if is_local else None
    if given == OFF:
        return None
    interval = validate_duration("heartbeat", given)
    if not _LEAST <= interval <= _MOST:
        raise invalid("heartbeat", given, "is not valid: give 30s to 1h, or 'off'")
    return interval


class HeartbeatWriter:
    """Writes the file of a worker in one group. A failure disturbs nobody."""

    def __init__(self, feed: GroupFeed, state: WorkState, interval: int) -> None:
        self._feed, self._state, self._interval = feed, state, interval
        self._ledger, self._files = feed.ledger, feed.ledger.ledgers.files
        self._path = heartbeat_path(feed.ledger.name, f"{feed.worker}-{uuid.uuid4().hex[:12]}")
        self._started_at = self._ledger.now()
        self._tried_at: int | None = None
        self._failed = False

    def write_if_due(self) -> None:
        now, before = self._ledger.now(), self._tried_at
        if before is not None and 0 <= now - before < self._interval:  # a clock may be set back
            return
        self._tried_at = now
        try:
            note = Heartbeat.of_process(
                self._feed.worker,
                began=self._started_at,
                now=now,
                interval=self._interval,
                state="busy" if self._feed.is_busy() else "idle",
                settled=self._state.summary.settled,
            )
            write_heartbeat(self._files, self._path, note)
            if before is None and not self._files.is_local:
                delete_old_heartbeats(self._files)  # there a sweep would pay for each listing
        except Exception as error:
            self._log("written", error)

    def delete(self) -> None:
        if self._tried_at is None:
            return
        try:
            self._files.delete(self._path)
        except Exception as error:
            self._log("deleted", error)

    def _log(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if self._failed else logging.INFO
        self._failed = True
        text = "group %s: the heartbeat of the worker was not %s: %s"
        _log.log(level, text, self._ledger.name, what, one_line(error))


@contextmanager
def heartbeats(
    feeds: Sequence[GroupFeed], state: WorkState, given: Duration | None
) -> Iterator[None]:
    """Write heartbeats during the block, in a thread. Raise InvalidOption for a wrong interval."""
    are_local = [feed.ledger.ledgers.files.is_local for feed in feeds]
    intervals = [heartbeat_interval(given, is_local=is_local) for is_local in are_local]
    writers = [
        HeartbeatWriter(feed, state, interval)
        for feed, interval in zip(feeds, intervals, strict=True)
        if interval is not None
    ]
    if not writers:
        yield
        return
    # A slow store must delay neither the work nor its signals.
    with in_background(partial(_write_until, writers), "spark_mq heartbeat", _STOP_SECONDS):
        yield


def _write_until(writers: Sequence[HeartbeatWriter], ended: threading.Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        for writer in writers:
            writer.write_if_due()
    for writer in writers:
        writer.delete()
