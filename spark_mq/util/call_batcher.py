"""Run the concurrent calls of several threads as one call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from spark_mq.errors import ContentionTimeout

__all__ = ["CallBatcher"]

T = TypeVar("T")
R = TypeVar("R")

# The longest wait for the calls of threads that called together before.
GATHER_SECONDS: Final = 0.004
_LOOK_SECONDS: Final = 0.0002


class _Call(Generic[T, R]):
    """The call of one thread, and its result."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.thread = threading.get_ident()
        self.done = False
        self.result: Any = None
        # The calls that its thread runs. Empty while another thread leads.
        self.batch: list[_Call[T, R]] = []
        self._gate = threading.Lock()
        self._gate.acquire()

    def finish(self, result: R | Exception) -> None:
        self.result, self.done = result, True

    def wait(self) -> None:
        """Wait until another thread wakes this call, or not at all if one already has."""
        self._gate.acquire()

    def wake(self) -> None:
        """Wake the thread of this call. The next wait returns, also if nobody waits now."""
        with contextlib.suppress(RuntimeError):  # somebody has woken it already
            self._gate.release()


class CallBatcher(Generic[T, R]):
    """Batches the calls of threads while one call runs.

    A single call runs without a wait. Calls that arrive during a run wait, and one of their threads
    then runs all of them. After a run of several calls the next one waits a moment for as many.
    `run` returns a result or an exception for each item. If it raises, except a ContentionTimeout,
    each item runs again by itself, so no call fails because of another. An interrupt (Ctrl-C) at
    any line ends its own call only.
    """

    def __init__(self, run: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._leader: _Call[T, R] | None = None
        self.waiting: list[_Call[T, R]] = []
        self._expected = 1  # the number of calls that lately came together

    def do(self, item: T) -> R:
        """Run an item with those of other threads. Raise the error of its run, if any."""
        call: _Call[T, R] = _Call(item)
        leader = self._leader
        if leader is not None and leader.thread == call.thread:
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
                self._join(call)
                if call.batch:
                    try:
                        results = self._run([batched.item for batched in call.batch])
                    except Exception as error:
                        self._run_apart(call.batch, error)
                    else:
                        for batched, result in zip(call.batch, results, strict=True):
                            batched.finish(result)
            finally:
                self._leave(call)
        finally:
            self._leave(call)

    def _join(self, call: _Call[T, R]) -> None:
        """Wait until the call is done, or must run a batch, which it then has."""
        with self._lock:
            self.waiting.append(call)
        while True:
            with self._lock:
                if call.done:
                    return
                if self._leader is None:
                    self._leader = call
                    break
            call.wait()
        self._gather()
        with self._lock:
            call.batch = self.waiting
            self.waiting = []
            self._expected = max(len(call.batch), self._expected - 1)

    def _gather(self) -> None:
        """Wait a moment for the threads that called together before."""
        end = time.monotonic() + GATHER_SECONDS
        while len(self.waiting) < self._expected and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)

    def _leave(self, call: _Call[T, R]) -> None:
        """Let the next thread run, with the calls of an interrupted one. May be called again."""
        with self._lock:
            # In this order, so that a second call completes an interrupted one. As long as this
            # call leads, no other thread runs the calls that it puts back.
            for batched in call.batch:
                if batched.done:
                    batched.wake()
            waiting = {id(batched) for batched in self.waiting}
            undone = [
                batched for batched in call.batch if not batched.done and id(batched) not in waiting
            ]
            self.waiting = [batched for batched in (*undone, *self.waiting) if batched is not call]
            call.batch = []
            if self._leader is call:
                self._leader = None
            if self._leader is None and self.waiting:
                self.waiting[0].wake()

    def _run_apart(self, calls: Sequence[_Call[T, R]], error: Exception) -> None:
        """Run each call by itself after all have failed together."""
        # All calls of a batch share one timeout, so no second try.
        if len(calls) == 1 or isinstance(error, ContentionTimeout):
            for call in calls:
                call.finish(error)
            return
        for call in calls:
            try:
                (result,) = self._run([call.item])
            except Exception as own:
                call.finish(own)
            else:
                call.finish(result)
