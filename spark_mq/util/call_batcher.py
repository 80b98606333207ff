"""Run the concurrent calls of several threads as one call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from spark_mq.util.fair_lock import FairLock, Hold

T = TypeVar("T")
R = TypeVar("R")

# The longest wait for the calls of threads that called together before.
GATHER_SECONDS: Final = 0.004
_LOOK_SECONDS: Final = 0.0002


class _Call(Generic[T, R]):
    """The call of one thread, and its result."""

    def __init__(self, item: T, turn: Hold) -> None:
        self.item, self.turn = item, turn
        self.done = False
        self.result: Any = None

    def finish(self, result: R | Exception) -> None:
        """Note the result. The thread of the call goes on, if it waits."""
        self.result, self.done = result, True
        self.turn.give_up()


class CallBatcher(Generic[T, R]):
    """Batches the calls of threads while one call runs.

    A single call runs without a wait. Calls that arrive during a run wait, and the first of their
    threads then runs all of them. After a run of several calls the next one waits a moment for as
    many. `run` returns a result or an exception for each item. If it raises, each
    item runs again by itself, so no call fails because of another. An interrupt (Ctrl-C) at any
    line ends its own call only.
    """

    def __init__(self, run: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self._lock = FairLock()
        self.calls: list[_Call[T, R]] = []  # that run, or wait
        self._expected = 1  # the number of calls that lately came together

    def do(self, item: T) -> R:
        """Run an item with those of other threads. Raise the error of its run, if any."""
        call: _Call[T, R] = _Call(item, self._lock.hold(None))
        if any(other.turn.thread == call.turn.thread for other in self.calls.copy()):
            # A call within a call, such as that of a signal handler, would wait for itself.
            (call.result,) = self._run([item])
        else:
            self._share(call)
        if isinstance(call.result, Exception):
            raise call.result
        result: R = call.result
        return result

    def _share(self, call: _Call[T, R]) -> None:
        """Run a call with those of other threads, in this thread or another one."""
        # Twice, because one interrupt may cut one of them short, or come before its first step.
        try:
            try:
                self.calls.append(call)
                call.turn.acquire()
                if not call.done:
                    self._run_together(self._gathered())
            finally:
                self._leave(call)
        finally:
            self._leave(call)

    def _leave(self, call: _Call[T, R]) -> None:
        """Let the next thread run what is not done. May be called again."""
        with contextlib.suppress(ValueError):
            self.calls.remove(call)
        self._lock.abandon()

    def _gathered(self) -> list[_Call[T, R]]:
        """Return the calls to run, after a short wait for threads that called together before."""
        end = time.monotonic() + GATHER_SECONDS
        while len(self._open()) < self._expected and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
        calls = self._open()
        self._expected = max(len(calls), self._expected - 1)
        return calls

    def _open(self) -> list[_Call[T, R]]:
        return [call for call in self.calls.copy() if not call.done]

    def _run_together(self, calls: Sequence[_Call[T, R]]) -> None:
        try:
            results = self._run([call.item for call in calls])
        except Exception as error:
            results = [error] if len(calls) == 1 else list(map(self._result, calls))
        for call, result in zip(calls, results, strict=True):
            call.finish(result)

    def _result(self, call: _Call[T, R]) -> R | Exception:
        """Run a call by itself, after all have failed together."""
        try:
            (result,) = self._run([call.item])
        except Exception as error:
            return error
        return result
