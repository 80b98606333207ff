"""Find the handlers that exceed the time limit of a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from spark_mq.errors import HandlerTimeout
from spark_mq.util.show import show_duration
from spark_mq.worker.tasks import Task

__all__ = ["TimeLimit"]


class TimeLimit:
    """Calls `on_late`, in a thread of its own, with each task that runs for too long.

    `oldest` returns the running task that began first, or None. Without seconds, no task is late.
    """

    def __init__(
        self,
        seconds: float | None,
        oldest: Callable[[], Task | None],
        on_late: Callable[[Task, HandlerTimeout], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._seconds = float("inf") if seconds is None else seconds
        self._oldest, self._on_late, self._fail = oldest, on_late, fail
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark_mq time limit", daemon=True)

    def start(self) -> None:
        if self._seconds < float("inf"):
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        try:
            while True:
                task = self._oldest()
                # A task that begins meanwhile cannot be late before.
                since = time.monotonic() if task is None else task.started
                if self._ended.wait(max(0.0, since + self._seconds - time.monotonic())):
                    return
                if task is not None:
                    self._on_late(task, self._error(task))
        except BaseException as error:
            self._fail(error)

    def _error(self, task: Task) -> HandlerTimeout:
        limit = timedelta(seconds=self._seconds)
        text = f"the handler of {task} exceeded its time limit of {show_duration(limit)}"
        return HandlerTimeout(text, timeout=limit)
