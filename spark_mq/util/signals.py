"""Obey signals without a lock.

A signal interrupts the main thread at any line, even inside ``Event.wait``. So a handler that set
an event, logged or started a thread could wait for a lock that its own thread holds. It may only
put into a SimpleQueue, from which another thread or a later line takes.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any


def exit_on_sigterm() -> None:
    """Let SIGTERM end the process as sys.exit() does, until something else takes it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())


@contextlib.contextmanager
def taking_signals(take: Callable[[int], object], *numbers: int) -> Iterator[None]:
    """Give signals to `take`, which runs inside the handler, while the block runs.

    Only the main thread can do this. Elsewhere the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    if not callable(before.get(signal.SIGINT)):  # the program ignores Ctrl-C
        before.pop(signal.SIGINT, None)
    ours = {number: partial(_handle, take, theirs) for number, theirs in before.items()}
    try:
        for number, handler in ours.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, theirs in before.items():
            # The program may have set another handler of Ctrl-C meanwhile.
            if number != signal.SIGINT or signal.getsignal(number) is ours[number]:
                signal.signal(number, signal.SIG_DFL if theirs is None else theirs)


def _handle(take: Callable[[int], object], theirs: Any, number: int, frame: Any) -> None:
    if number == signal.SIGINT and theirs is not signal.default_int_handler:
        # The program's own handler may raise KeyboardInterrupt, which counts as Ctrl-C.
        try:
            theirs(number, frame)
        except KeyboardInterrupt:
            take(number)
    else:
        take(number)


@contextlib.contextmanager
def calling_on_signal(
    call: Callable[[int], object], *numbers: int, join_seconds: float | None = None
) -> Iterator[Callable[[int], object]]:
    """Call a function in a thread of its own for each signal that comes while the block runs.

    Yield a function that does the same for a number. The end of the block waits for the calls.
    """
    signals: SimpleQueue[int] = SimpleQueue()

    def run() -> None:
        while number := signals.get():
            call(number)

    thread = threading.Thread(target=run, name="spark_mq signals", daemon=True)
    thread.start()
    try:
        with taking_signals(signals.put, *numbers):
            yield signals.put
    finally:
        signals.put(0)
        thread.join(join_seconds)
