"""Show on stderr how far a command is, as a bar on a terminal, otherwise every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from spark_mq.util.progress import Progress, listening
from spark_mq.util.show import show_age, show_count, show_number, show_short

__all__ = ["busy", "track"]

_PAUSE: Final = 3.0  # seconds between lines of progress, if stderr is no terminal
_WINDOW: Final = 30.0  # seconds whose messages make the speed
_LOOK: Final = 1.0  # seconds between looks at how many messages are left


class _Messages(Progress):
    """Counts messages, with their speed and the time that is left.

    With `left`, which returns how many are left or None, it counts also what others have finished.
    """

    def __init__(
        self,
        total: int | None,
        show: Callable[[_Messages], None],
        clock: Callable[[], float],
        left: Callable[[], int | None] | None = None,
    ) -> None:
        self.done, self.total = 0, total
        self._own, self._left, self._looked = 0, left, float("-inf")
        self._show, self._clock, self._lock = show, clock, threading.Lock()
        self._share: float | None = None
        self._points = deque([(clock(), 0)])  # the time and the number, one a second

    def expect(self, messages: int) -> None:
        self.total = messages

    def finish(self, messages: int, share: float | None = None) -> None:
        with self._lock:
            self._own += messages
            self._share = share
            now = self._clock()
            if self._left is None:
                self.done = self._own
            elif now - self._looked >= _LOOK:
                self._looked = now
                self._look(self._left())
            if self.total is not None:  # more may be published meanwhile
                self.total = max(self.total, self.done)
            while len(self._points) > 1 and now - self._points[1][0] >= _WINDOW:
                self._points.popleft()
            if now - self._points[-1][0] >= 1:
                self._points.append((now, self.done))
            self._show(self)

    def _look(self, left: int | None) -> None:
        if left is not None:
            self.total = max(self.total or 0, self._own + left)
            self.done = self.total - left

    def __str__(self) -> str:
        since, before = self._points[0]
        seconds = self._clock() - since
        speed = (self.done - before) / seconds if seconds > 0 else 0.0
        share = self.done / self.total if self.total else self._share
        of = f"{show_number(self.done)} of " if self.total else ""
        parts = [of + show_count(self.total or self.done, "message")]
        parts += [f"{show_short(speed)} msg/s"] if speed else []
        if share:
            parts.append(f"{share:.0%}")
            if speed and share < 1:
                parts.append(f"{show_age(self.done * (1 / share - 1) / speed)} left")
        return ", ".join(parts)


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
    """Show how many messages the operations in the block have finished, and yield their count.

    `left` returns how many are left, or None, if others finish some, too.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        with Bars(*columns, console=Console(file=stream), transient=True) as bars:
            bar = bars.add_task(what, total=total, text="")

            def draw(count: _Messages) -> None:
                bars.update(bar, completed=count.done, total=count.total, text=str(count))

            counted = _Messages(total, draw, clock, left)
            with listening(counted):
                yield counted
        return
    shown = clock()

    def write(count: _Messages) -> None:
        nonlocal shown
        if clock() - shown >= pause:
            shown = clock()
            _write_line(f"{what}: {count}", stream)

    counted = _Messages(total, write, clock, left)
    with listening(counted):
        yield counted


class _Steps(Progress):
    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show

    def step(self, text: str) -> None:
        self._show(text)


@contextmanager
def busy(what: str, stream: TextIO | None = None, *, pause: float = _PAUSE) -> Iterator[None]:
    """Show what runs, its step, and for how long."""
    stream = stream or sys.stderr
    at = what

    def show(text: str) -> None:
        nonlocal at
        at = f"{what}: {text}"

    if stream.isatty():
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bars(*columns, console=Console(file=stream), transient=True) as bars:
            bar = bars.add_task(what)
            with listening(_Steps(lambda text: bars.update(bar, description=f"{what}: {text}"))):
                yield
        return
    ended, started = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(pause):
            _write_line(f"{at}: {show_age(time.monotonic() - started)}", stream)

    thread = threading.Thread(target=report, name="spark_mq progress", daemon=True)
    thread.start()
    try:
        with listening(_Steps(show)):
            yield
    finally:
        ended.set()
        thread.join()


def _write_line(text: str, stream: TextIO) -> None:
    """Write a line of progress. The work must not fail if nobody reads it."""
    with suppress(OSError, ValueError):
        print(text, file=stream, flush=True)
