"""A deadline for a main thread that may wait for itself."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Ends a deadlock of the main thread."""

    def give_up(*_: object) -> None:
        raise AssertionError("the main thread waits for itself")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
