"""Do what keeps a queue well beside the work: write heartbeats, and sweep.

A heartbeat is a small file for each group of a worker, which shows others that it runs. Of the
workers of a queue, one at a time sweeps it.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from spark_mq.delta.store_errors import one_line
from spark_mq.maintenance.sweep import run_sweep
from spark_mq.operations.context import QueueContext
from spark_mq.storage.heartbeat_files import (
    Heartbeat,
    delete_old_heartbeats,
    heartbeat_path,
    read_heartbeats,
    write_heartbeat,
)
from spark_mq.util.clock import SECOND, Duration
from spark_mq.util.process import in_background
from spark_mq.util.validation import invalid, validate_duration
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.state import WorkState

_log = logging.getLogger("spark_mq.worker")

OFF: Final = "off"
LOOK_SECONDS: Final = 1.0  # until the first time, which spares short runs, and between two checks
_STOP_SECONDS: Final = 1.0  # for the end of what runs, which may go on in its own thread
_HEARTBEAT: Final = 30 * SECOND  # the least interval, and the default
_MOST: Final = 3600 * SECOND
_PLACE: Final = "~sweep"  # of the files that say who sweeps, beside those of groups
_MAX_PAUSE: Final = 10 * SECOND  # until the next try of who gave way
BUSY, DONE = "busy", "idle"


def _interval(option: str, given: Duration, least: int, valid: str) -> int:
    interval = validate_duration(option, given)
    if not least <= interval <= _MOST:
        raise invalid(option, given, f"is not valid: give {valid}")
    return interval


def heartbeat_interval(given: Duration | None, *, is_local: bool) -> int | None:
    """Return the microseconds between two writes, or None if there are none."""
    if given is None:
        return _HEARTBEAT if is_local else None
    if given == OFF:
        return None
    return _interval("heartbeat", given, _HEARTBEAT, "30s to 1h, or 'off'")


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


def sweep_interval(given: Duration) -> int:
    """Return the microseconds between two sweeps. Raise InvalidOption."""
    return _interval("sweep", given, SECOND, "1s to 1h")


class _Sweeper:
    """Sweeps one queue, unless another process has done so within the interval."""

    def __init__(self, queue: QueueContext, interval: int) -> None:
        self._queue, self._interval = queue, interval
        self._id = uuid.uuid4().hex
        self._look_at = 0  # when to look again, in microseconds since 1970
        self._running = threading.Lock()
        self._failed = False

    def sweep(self, *, last: bool = False) -> None:
        """Sweep if it is due. The `last` one only minds who sweeps now.

        A failure disturbs nobody. The next sweep goes on from there.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            self._sweep(last)
        except Exception as error:
            level = logging.INFO if self._failed else logging.WARNING
            self._failed = True
            text = "the sweep of queue %s failed, and is tried again: %s"
            _log.log(level, text, self._queue.path, one_line(error))
        finally:
            self._running.release()

    def _sweep(self, last: bool) -> None:
        now = self._queue.now()
        if not last and 0 <= self._look_at - now <= self._interval:  # a clock may be set back
            return
        self._look_at = now + self._interval  # also after a failure
        fresh = self._fresh(now, last)
        if fresh:
            self._look_at = max(sweeper.seen_at for sweeper in fresh) + self._interval
            return
        self._write(now, now, BUSY)
        # Each writes before it looks again, so of two that begin at once one sees the other.
        if self._fresh(now, last=True):
            self._queue.ledgers.files.delete(heartbeat_path(_PLACE, self._id))
            pause = min(self._interval, _MAX_PAUSE)
            self._look_at = now + int(random.random() * pause)  # both may have given way
            return
        try:
            report = run_sweep(self._queue)
        finally:
            ended = self._queue.now()
            self._write(now, ended, DONE)
            self._look_at = ended + self._interval
        self._failed = False
        _log.info("swept queue %s: %s", self._queue.path, report)

    def _fresh(self, now: int, last: bool) -> list[Heartbeat]:
        """Return the sweeps that count. Delete the files of those that are long over."""
        files, fresh = self._queue.ledgers.files, list[Heartbeat]()
        for sweeper in read_heartbeats(files, _PLACE):
            own = sweeper.worker_id == self._id
            if abs(now - sweeper.seen_at) < self._interval:
                if not (last and (own or sweeper.state == DONE)):
                    fresh.append(sweeper)
            elif not own and sweeper.is_gone(now):
                files.delete(heartbeat_path(_PLACE, sweeper.worker_id))
        return fresh

    def _write(self, began: int, now: int, state: str) -> None:
        note = Heartbeat.of_process(
            self._id, began=began, now=now, interval=self._interval, state=state
        )
        write_heartbeat(self._queue.ledgers.files, heartbeat_path(_PLACE, self._id), note)


class Sweeps:
    """The sweeps of a process: of each queue once in an interval, in a thread of their own."""

    def __init__(self, queues: Iterable[QueueContext], interval: int) -> None:
        by_path = {queue.path: queue for queue in queues}
        self._sweepers = [_Sweeper(queue, interval) for queue in by_path.values()]
        self._interval = interval
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._began = False

    def run(self) -> None:
        """Sweep what is due now."""
        for sweeper in self._sweepers:
            sweeper.sweep()

    def run_until(self, ended: threading.Event) -> None:
        """Sweep what is due until the event is set."""
        while not ended.wait(LOOK_SECONDS):
            self.run()

    def run_last(self) -> None:
        """Sweep once more, because the work has ended."""
        for sweeper in self._sweepers:
            sweeper.sweep(last=True)

    def follow(self) -> None:
        """Sweep in a thread after some work, within the interval. Do not wait for it."""
        with self._lock:
            if self._timer is not None:
                return
            seconds = self._interval / SECOND if self._began else LOOK_SECONDS
            self._began = True
            self._timer = threading.Timer(seconds, self._run_once)
            self._timer.name, self._timer.daemon = "spark_mq sweep", True
            self._timer.start()

    def _run_once(self) -> None:
        with self._lock:
            self._timer = None  # what is done from now on needs another sweep
        self.run()


@contextmanager
def sweeping(
    queues: Iterable[QueueContext], given: Duration | None, state: WorkState
) -> Iterator[None]:
    """Sweep during the block, and once more if its work ends by itself. Raise InvalidOption."""
    if given is None:
        yield
        return
    sweeps = Sweeps(queues, sweep_interval(given))
    # Handlers must not wait for a sweep, and neither must the end of their work.
    with in_background(sweeps.run_until, "spark_mq sweep", _STOP_SECONDS):
        yield
    if state.finished:
        sweeps.run_last()
