"""Run the feeds of one call and their pool until the work ends."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue

from spark_mq.per_message.feed import GroupFeed
from spark_mq.per_message.pool import Pool
from spark_mq.per_message.state import WorkState
from spark_mq.worker_loop import WorkSummary

__all__ = ["MessageWork"]


class MessageWork:
    """One call that handles single messages.

    Parameters
    ----------
    feeds
        One for each group.
    pool
        Calls the handlers of all feeds.
    state
        What the feeds share.
    poll
        Seconds between looks at the event that ends the work.
    """

    def __init__(
        self, feeds: Sequence[GroupFeed], pool: Pool, state: WorkState, poll: float
    ) -> None:
        self._feeds, self._pool, self._state, self._poll = feeds, pool, state, poll
        self._news: SimpleQueue[bool] = SimpleQueue()
        """Wakes the thread that runs the work. True: SIGTERM. A signal handler may call its put."""

    def run(self, grace: float) -> WorkSummary:
        """Work until the end, and give running handlers `grace` seconds then."""
        threads = [
            threading.Thread(target=self._run, args=(feed,), name="spark_mq feed", daemon=True)
            for feed in self._feeds
        ]
        self._pool.start()
        with self._on_sigterm():
            for thread in threads:
                thread.start()
            try:
                while any(t.is_alive() for t in threads) and not self._state.stop.is_set():
                    self._wait_for_news()
            finally:
                self._end(threads, grace)
        if self._state.error is not None:
            raise self._state.error
        return self._state.summary

    def _run(self, feed: GroupFeed) -> None:
        try:
            feed.run()
        finally:
            self._news.put(False)

    def _wait_for_news(self) -> None:
        with contextlib.suppress(Empty):
            if self._news.get(timeout=self._poll):
                self._state.stop.set()

    def _end(self, threads: Sequence[threading.Thread], grace: float) -> None:
        self._state.end()
        deadline = time.monotonic() + grace
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._state.over.set()
        self._state.end()
        for thread in threads:
            thread.join(1.0)
        self._pool.stop()

    @contextlib.contextmanager
    def _on_sigterm(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(*_: object) -> None:
            # Not an Event: this thread may hold the lock that its set() needs.
            self._news.put(True)

        before = signal.signal(signal.SIGTERM, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
