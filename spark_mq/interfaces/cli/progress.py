"""Show on stderr how far a command is: live on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from spark_mq.util.background import in_background
from spark_mq.util.progress import Progress, listening
from spark_mq.util.show import show_age, show_count, show_number, show_short

__all__ = ["track"]

_PAUSE: Final = 10.0  # seconds between lines of progress, if stderr is no terminal
_WINDOW: Final = 30.0  # seconds whose messages make the speed
_LEFT_EACH: Final = 1.0  # seconds until `left` is asked again


class _Shown(Progress):
    """The step of an operation, and its messages with their speed and the time that is left."""

    def __init__(
        self,
        what: str,
        total: int | None,
        left: Callable[[], int | None] | None,
        clock: Callable[[], float],
    ) -> None:
        self._what, self._at, self._left, self._clock = what, what, left, clock
        self._done, self._total = 0, total
        self._share: float | None = None
        self._own, self._asked, self._lock = 0, float("-inf"), threading.Lock()
        self._points = deque([(clock(), 0)])  # the time and the number, one a second
        self._started = self._points[0][0]

    def step(self, text: str) -> None:
        self._at = f"{self._what}: {text}"

    def expect(self, messages: int) -> None:
        self._total = messages

    def finish(self, messages: int, share: float | None = None) -> None:
        with self._lock:
            self._own += messages
            self._share = share
            now = self._clock()
            if self._left is None:
                self._done = self._own
            elif now - self._asked >= _LEFT_EACH:
                self._asked = now
                if (left := self._left()) is not None:
                    self._total = max(self._total or 0, self._own + left)
                    self._done = self._total - left
            if self._total is not None:  # more may be published meanwhile
                self._total = max(self._total, self._done)
            while len(self._points) > 1 and now - self._points[1][0] >= _WINDOW:
                self._points.popleft()
            if now - self._points[-1][0] >= 1:
                self._points.append((now, self._done))

    def __str__(self) -> str:
        with self._lock:
            now, (since, before) = self._clock(), self._points[0]
            done, total, share = self._done, self._total, self._share
        if not (done or total):
            return f"{self._at}: {show_age(now - self._started)}"
        speed = (done - before) / (now - since) if now > since else 0.0
        share = done / total if total else share
        of = f"{show_number(done)} of " if total else ""
        parts = [of + show_count(total or done, "message")]
        parts += [f"{show_short(speed)} msg/s"] if speed else []
        if share:
            parts.append(f"{share:.0%}")
            if speed and share < 1:
                parts.append(f"{show_age(done * (1 / share - 1) / speed)} left")
        return f"{self._at}: {', '.join(parts)}"

    def __rich__(self) -> Text:
        return Text(str(self))


@contextmanager
def track(
    what: str,
    total: int | None = None,
    stream: TextIO | None = None,
    *,
    pause: float = _PAUSE,
    clock: Callable[[], float] = time.monotonic,
    left: Callable[[], int | None] | None = None,
) -> Iterator[Progress]:
    """Show the step and the finished messages of the operations in the block, and yield both.

    `left` returns how many messages are left, or None, if others finish some, too.
    """
    stream, shown = stream or sys.stderr, _Shown(what, total, left, clock)
    lines = Console(file=stream).status(shown, spinner="line") if stream.isatty() else None
    with listening(shown), lines or _lines(shown, stream, pause):
        yield shown


@contextmanager
def _lines(shown: _Shown, stream: TextIO, pause: float) -> Iterator[None]:
    """Print a line after each pause. The work must not fail if nobody reads them."""

    def report(ended: threading.Event) -> None:
        while not ended.wait(pause):
            with suppress(OSError, ValueError):
                print(shown, file=stream, flush=True)

    with in_background(report, "spark_mq progress"):
        yield
