"""Run the feeds and the pool of a worker until the work ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from spark_mq.operations.work_report import WorkSummary, why_left
from spark_mq.worker.feed import GroupFeed
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState
from spark_mq.worker.thread_watch import ThreadWatch, describe_wait

__all__ = ["WorkerRun"]

_log = logging.getLogger("spark_mq.worker")

_GIVE_BACK_SECONDS: Final = 10.0  # for the feeds to give back their messages after a second Ctrl-C


class WorkerRun:
    """One call of :meth:`spark_mq.ConsumerGroup.work`, with a feed for each group."""

    def __init__(
        self, feeds: Sequence[GroupFeed], pool: Pool, state: WorkState, poll: float
    ) -> None:
        self._feeds, self._pool, self._state, self._poll = feeds, pool, state, poll

    def run(self, grace: float) -> WorkSummary:
        """Work until the end, and then give running handlers `grace` seconds."""
        threads: list[threading.Thread] = []
        stop = self._state.stop
        watch = ThreadWatch(threads, stop, self._poll, lambda: self._report_wait(grace))
        for feed in self._feeds:
            threads.append(
                threading.Thread(
                    target=self._run, args=(feed, watch), name="spark_mq feed", daemon=True
                )
            )
        self._pool.start()
        watch.run(lambda: self._end(watch, threads, grace))
        watch.raise_end(self._state.error)
        if self._state.finished:
            ledgers = [feed.ledger for feed in self._feeds]
            self._state.summary.blocked_because = why_left(ledgers)
        return self._state.summary

    def _run(self, feed: GroupFeed, watch: ThreadWatch) -> None:
        try:
            feed.run()
        finally:
            watch.note_end()

    def _report_wait(self, grace: float) -> None:
        if running := [one for feed in self._feeds for one in feed.running()]:
            _log.warning("%s", describe_wait(running, grace))

    def _end(self, watch: ThreadWatch, threads: Sequence[threading.Thread], grace: float) -> None:
        self._state.end()
        watch.wait_for_end(grace)
        self._state.hurried = watch.hurried
        self._state.over.set()
        self._state.end()
        for thread in threads:
            thread.join(_GIVE_BACK_SECONDS if watch.hurried else 1.0)
        self._pool.stop()
