"""Run the concurrent calls of several threads as one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from spark_mq.errors import ContentionTimeout

__all__ = ["CallBatcher"]

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T, R]):
    """The call of one thread, and its result."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.done = False
        self.result: Any = None

    def finish(self, result: R | Exception) -> None:
        """Store the result."""
        self.result, self.done = result, True


class CallBatcher(Generic[T, R]):
    """Batches the calls of threads while one call runs.

    A single call runs at once. Calls that arrive during a run wait, and one of their threads
    then runs all of them. If `run` raises, each item runs again by itself, so that no call fails
    because of another.

    Parameters
    ----------
    run
        Takes several items and returns a result or an exception for each.
    """

    def __init__(self, run: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._busy = False
        self._waiting: list[_Call[T, R]] = []

    def do(self, item: T) -> R:
        """Run an item, together with those of other threads, and return its result.

        Raises
        ------
        Exception
            The error that `run` returned or raised for this item.
        """
        call: _Call[T, R] = _Call(item)
        calls = self._enqueue(call)
        if calls:
            try:
                self._run_batch(calls)
            finally:
                self._release(call, calls)
        if isinstance(call.result, Exception):
            raise call.result
        result: R = call.result
        return result

    def _enqueue(self, call: _Call[T, R]) -> list[_Call[T, R]]:
        """Wait until the call is done, or return the batch that this thread must run."""
        with self._condition:
            self._waiting.append(call)
            try:
                while self._busy and not call.done:
                    self._condition.wait()
            except BaseException:  # an interrupt: nobody waits for the result any more
                if call in self._waiting:
                    self._waiting.remove(call)
                raise
            if call.done:
                return []
            calls, self._waiting = self._waiting, []
            self._busy = True
            return calls

    def _release(self, own: _Call[T, R], calls: Sequence[_Call[T, R]]) -> None:
        """Let the next thread run. It takes over the calls of an interrupted thread."""
        with self._condition:
            self._waiting[:0] = [call for call in calls if not call.done and call is not own]
            self._busy = False
            self._condition.notify_all()

    def _run_batch(self, calls: Sequence[_Call[T, R]]) -> None:
        try:
            results = self._run([call.item for call in calls])
            for call, result in zip(calls, results, strict=True):
                call.finish(result)
        except Exception as error:
            # All calls of a batch share one timeout, so no second try.
            if len(calls) == 1 or isinstance(error, ContentionTimeout):
                for call in calls:
                    call.finish(error)
            else:
                for call in calls:
                    self._run_batch([call])
