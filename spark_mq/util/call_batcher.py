"""Group commit: what several threads hand in while one commits is committed by the next of them, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from spark_mq.errors import ContentionTimeout

__all__ = ["CallBatcher"]

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T, R]):
    """What one thread has handed in, and what came of it."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.done = False
        self.result: Any = None

    def finish(self, result: R | Exception) -> None:
        self.result, self.done = result, True


class CallBatcher(Generic[T, R]):
    """``run(items)`` does several items at once and returns a result or an exception for each.

    A thread that calls alone runs at once. Those that come meanwhile wait; then one of them runs for all. Where `run` itself raises, each
    item is run by itself: the error of one is not that of another.
    """

    def __init__(self, run: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self._turn = threading.Condition()
        self._busy = False
        self._waiting: list[_Call[T, R]] = []

    def do(self, item: T) -> R:
        """Does an item, together with those of other threads. Returns once it is done; raises what it raised."""
        call: _Call[T, R] = _Call(item)
        with self._turn:
            self._waiting.append(call)
            while self._busy and not call.done:
                self._turn.wait()
            calls: list[_Call[T, R]] = []
            if not call.done:
                self._busy, calls, self._waiting = True, self._waiting, []
        if calls:
            try:
                self._lead(calls)
            finally:
                with self._turn:
                    # Where this thread was interrupted, another of them takes over.
                    self._waiting[:0] = [left for left in calls if not left.done and left is not call]
                    self._busy = False
                    self._turn.notify_all()
        if isinstance(call.result, Exception):
            raise call.result
        result: R = call.result
        return result

    def _lead(self, calls: Sequence[_Call[T, R]]) -> None:
        try:
            for call, result in zip(calls, self._run([call.item for call in calls]), strict=True):
                call.finish(result)
        except Exception as error:
            if len(calls) == 1 or isinstance(error, ContentionTimeout):  # their time is up, for all alike
                for call in calls:
                    call.finish(error)
            else:
                for call in calls:
                    self._lead([call])
