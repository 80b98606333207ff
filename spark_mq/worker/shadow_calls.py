"""Call a handler with the messages of a shadow replay, and note the verdicts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from spark_mq.errors import HandlerTimeout, InvalidHandlerResult
from spark_mq.operations.pauses import LOCAL_POLL
from spark_mq.util.failures import to_failure
from spark_mq.util.progress import progress
from spark_mq.util.show import show_duration
from spark_mq.worker.decisions import Verdict, verdict_of_error
from spark_mq.worker.open_tasks import LaneChains
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import Done, Task, TaskOptions, Tasks, verdict_on_result
from spark_mq.worker.time_limit import TimeLimit

__all__ = ["ShadowCalls"]

PATIENCE_SECONDS: Final = 5.0  # with handlers that all hang


class ShadowCalls:
    """Calls a handler with tasks by a pool, and notes the verdicts. The feed of its tasks."""

    def __init__(self, tasks: Tasks, rules: TaskOptions, pool: Pool, state: WorkState) -> None:
        self._tasks, self._policy, self._pool, self._state = tasks, rules.policy, pool, state
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._progress = progress()
        self._waiting, self._running = dict[Task, None](), dict[Task, None]()
        self._chains: LaneChains[Task] = LaneChains()
        self._done: list[Done] = []
        self.seconds: dict[Task, float] = {}
        self.stopped_because = ""  # once no handler can be called
        self._stuck = 0.0, ""  # since when all handlers hang, and their limit
        self._time_limit = None
        if rules.timeout is not None:
            self._time_limit = TimeLimit(rules.timeout, self._oldest, self._end_late, state.fail)
        state.add(self._changed)

    def __enter__(self) -> ShadowCalls:
        self._pool.start()
        if self._time_limit is not None:
            self._time_limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting.clear()
        if self._time_limit is not None:
            self._time_limit.stop()
        self._pool.stop()

    def run(self, tasks: Sequence[tuple[Task, int | None]]) -> list[Done]:
        """Return the tasks with their verdicts, fewer if the replay must end. Raise its error."""
        with self._lock:
            self._waiting.update((task, None) for task, _ in tasks)
            for task, lane in tasks:
                if lane is None or self._chains.add(lane, task):
                    self._pool.submit(task)
        while not self._is_over():
            self._changed.wait(LOCAL_POLL)
            self._changed.clear()  # before the next look, so that no change in between is missed
        if self._state.error is not None:
            raise self._state.error
        with self._lock:
            done, self._done = self._done, []
        return done

    def _is_over(self) -> bool:
        with self._lock:
            if self._state.error is not None:
                return True
            if self._state.stop.is_set():
                self._waiting.clear()
            if self._waiting and self._is_stuck():
                return True
            return not (self._waiting or self._running)

    def _is_stuck(self) -> bool:
        """Return whether all handlers hang, so that the replay must end."""
        # A coroutine that was cancelled needs a moment to end.
        since, limit = self._stuck
        if self._pool.concurrency or time.monotonic() < since + PATIENCE_SECONDS:
            return False
        self.stopped_because = (
            f"all handlers have exceeded their time limit of {limit} and still run"
        )
        return True

    # -- in the pool's threads

    def claim(self, task: Task) -> bool:
        with self._lock:
            if task not in self._waiting or self._state.stop.is_set():
                return False
            del self._waiting[task]
            task.started = time.monotonic()
            self._running[task] = None
            return True

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        with self._lock:  # or the pool would count it as given up after it has returned
            if task not in self._running:
                return 0.0
        self._end(task, result, error)
        return 0.0

    def _end(self, task: Task, result: Any, error: BaseException | None) -> None:
        seconds = time.monotonic() - task.started
        try:
            verdict = self._verdict(task, result, error)
        except BaseException as wrong:  # of the program, as in a worker
            self._state.fail(wrong)
            return
        with self._lock:
            if task not in self._running:
                return  # it exceeded its time limit meanwhile
            del self._running[task]
            self._note(task, verdict, seconds)

    def _note(self, task: Task, verdict: Verdict, seconds: float) -> None:
        self._done.append((task, verdict))
        self._progress.finish(len(task.lease) if task.message is None else 1)
        self.seconds[task] = seconds
        if (following := self._chains.remove(task)) is not None:
            self._pool.submit(following)
        if not (self._waiting or self._running):
            self._changed.set()

    def _verdict(self, task: Task, result: Any, error: BaseException | None) -> Verdict:
        if error is None:
            return verdict_on_result(self._tasks, task, result, self._policy)
        failure = to_failure(error)
        if task.message is None and isinstance(failure, InvalidHandlerResult):
            raise failure
        return verdict_of_error(failure, self._policy)

    # -- in the thread of the time limit

    def _oldest(self) -> Task | None:
        with self._lock:
            return next(iter(self._running), None)

    def _end_late(self, task: Task, error: HandlerTimeout) -> None:
        """Let a task fail that exceeds the time limit, and refuse what its handler returns."""
        seconds = time.monotonic() - task.started
        with self._lock:
            if task not in self._running:
                return
            del self._running[task]  # before its coroutine ends as one that was cancelled
            self._pool.give_up(task)
            if not self._pool.concurrency:
                self._stuck = time.monotonic(), show_duration(error.data["timeout"])
            self._note(task, verdict_of_error(error, self._policy), seconds)
