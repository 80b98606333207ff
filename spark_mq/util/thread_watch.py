"""Wait for worker threads, and obey signals meanwhile.

The main thread waits. The signals are SIGTERM and Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

__all__ = ["ThreadWatch", "describe_wait"]

_SHOWN: Final = 5
"""Handlers that a text names."""


class ThreadWatch:
    """Waits for threads until their end, a signal or an event.

    SIGTERM and the first Ctrl-C set the event. A second Ctrl-C ends the wait for the threads. From
    the third on, Ctrl-C raises KeyboardInterrupt immediately.

    Parameters
    ----------
    threads
        The threads. Each calls :meth:`note_end` as its last action.
    stop
        Ends the work once it is set.
    poll
        Seconds between looks at the event.
    on_interrupt
        Called once, in the waiting thread, after the first Ctrl-C.
    """

    def __init__(
        self,
        threads: Sequence[threading.Thread],
        stop: threading.Event,
        poll: float,
        on_interrupt: Callable[[], None],
    ) -> None:
        self._threads, self._stop, self._poll = threads, stop, poll
        self._on_interrupt = on_interrupt
        self._signals: SimpleQueue[int] = SimpleQueue()
        """Signal numbers. 0 means that a thread has ended.

        A signal handler may call its put, but not the set of an Event. The interrupted thread may
        hold the lock that set needs.
        """
        self._ended = 0
        self._interrupts = 0
        self._reported = False

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._interrupts > 0

    @property
    def hurried(self) -> bool:
        """Return whether Ctrl-C was pressed twice.

        Then the work has to end without a delay.
        """
        return self._interrupts > 1

    def note_end(self) -> None:
        """Note that a thread has ended."""
        self._signals.put(0)

    def run(self, finish: Callable[[], None]) -> None:
        """Start the threads, wait for the end, and call `finish`.

        It waits until the work has to end. SIGTERM and Ctrl-C are obeyed meanwhile.
        """
        with self.signals():
            for thread in self._threads:
                thread.start()
            try:
                self._wait_for_stop()
            finally:
                finish()

    def raise_end(self, error: BaseException | None) -> None:
        """Raise KeyboardInterrupt after Ctrl-C, or a thread's error.

        It raises nothing without either.
        """
        if self.interrupted:
            raise KeyboardInterrupt from error
        if error is not None:
            raise error

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Obey SIGTERM and Ctrl-C in the block.

        Only the main thread can. A program's own handler of SIGINT is called. It may raise
        KeyboardInterrupt, which counts as Ctrl-C at any line.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self._on_signal)}
        theirs = signal.getsignal(signal.SIGINT)
        ours: Any = self._on_signal
        if callable(theirs) and theirs is not signal.default_int_handler:
            ours = partial(self._on_own_signal, theirs)
        try:
            if callable(theirs):
                before[signal.SIGINT] = signal.signal(signal.SIGINT, ours)
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is not ours:  # the program has set another one
                before.pop(signal.SIGINT, None)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait_for_stop(self) -> None:
        """Wait until the work has to end.

        An event, a signal, or the end of all threads ends it.
        """
        while self._alive() and not self._stop.is_set():
            self._take_signal(self._poll)

    def wait_for_end(self, seconds: float) -> None:
        """Wait for the end of all threads, for some seconds.

        A second Ctrl-C ends the wait.
        """
        deadline = time.monotonic() + seconds
        while self._alive() and not self.hurried:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._take_signal(min(left, self._poll))

    def _alive(self) -> bool:
        # A thread that has noted its end is alive for a moment still.
        noted = self._ended >= len(self._threads)
        return not noted and any(thread.is_alive() for thread in self._threads)

    def _take_signal(self, seconds: float) -> None:
        number = 0
        with contextlib.suppress(Empty):
            number = self._signals.get(timeout=seconds)
            self._ended += number == 0
        if number:
            self._stop.set()
        if number == signal.SIGINT and not self._reported:
            self._reported = True
            self._on_interrupt()

    def _on_signal(self, number: int, _: Any) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            raise KeyboardInterrupt
        self._signals.put(number)

    def _on_own_signal(self, theirs: Callable[[int, Any], Any], number: int, frame: Any) -> None:
        try:
            theirs(number, frame)
        except KeyboardInterrupt:
            self._on_signal(number, frame)


def describe_wait(running: Sequence[tuple[str, float]], seconds: float) -> str:
    """Return the work that a worker waits for after Ctrl-C.

    The text also has the longest wait.

    Parameters
    ----------
    running
        Each handler's work, and its start in monotonic seconds.
    seconds
        The longest wait.
    """
    now = time.monotonic()
    shown = [f"{work} (running for {now - since:.1f} s)" for work, since in running[:_SHOWN]]
    more = [f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else []
    handlers = "1 handler" if len(running) == 1 else f"{len(running)} handlers"
    return (
        f"Ctrl-C: waiting up to {seconds:g} s for {handlers}: {', '.join(shown + more)}. "
        "Press Ctrl-C again to end at once and give their messages back"
    )
