"""Show progress on stderr: a bar or a spinner on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from spark_mq.util.steps import showing_steps

__all__ = ["busy", "track"]

_PAUSE: Final = 3.0  # seconds between lines of progress, if stderr is no terminal


@contextmanager
def track(
    what: str,
    total: int | None = None,
    stream: TextIO | None = None,
    *,
    pause: float = _PAUSE,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], object]]:
    """Show progress, and yield a function that takes the messages done so far."""
    stream = stream or sys.stderr
    if stream.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(show_speed=True),
            TextColumn("{task.completed:,.0f} messages"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    shown = clock()

    def update(done: int) -> None:
        nonlocal shown
        if clock() - shown >= pause:
            shown = clock()
            of = "" if total is None else f" of {total:,}"
            _write_line(f"{what}: {done:,}{of} messages", stream)

    yield update


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
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            task = bar.add_task(what)
            with showing_steps(lambda text: bar.update(task, description=f"{what}: {text}")):
                yield
        return
    ended, started = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(pause):
            _write_line(f"{at}: {time.monotonic() - started:.0f} s", stream)

    thread = threading.Thread(target=report, name="spark_mq progress", daemon=True)
    thread.start()
    try:
        with showing_steps(show):
            yield
    finally:
        ended.set()
        thread.join()


def _write_line(text: str, stream: TextIO) -> None:
    """Write a line of progress. The work must not fail if nobody reads it."""
    with suppress(OSError, ValueError):
        print(text, file=stream, flush=True)
