"""Progress: a bar or a spinner on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq.cli import output, workers
from spark_mq.testing import memory_queue


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Heard(io.StringIO):
    """A stream that sets an event if something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if "\n" in text:
            self.written.set()
        return size


def test_a_busy_command_says_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PROGRESS_SECONDS", 0.001)
    stream = Heard()
    with output.busy("sweeping", stream):
        assert stream.written.wait(10)
    assert stream.getvalue().startswith("sweeping: 0 s\n")
    assert "spark_mq progress" not in {thread.name for thread in threading.enumerate()}


def test_a_short_command_says_nothing() -> None:
    stream = io.StringIO()
    with output.busy("sweeping", stream):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_shows_a_spinner() -> None:
    stream = Terminal()
    with output.busy("purging", stream):
        pass
    assert "purging" in stream.getvalue()


def test_lines_are_not_printed_more_often_than_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with output.track("published", 50, stream) as show:
        for done in range(50):
            now += 1.0
            show(done)
    assert stream.getvalue().splitlines() == [
        f"published: {done} of 50 messages" for done in range(2, 50, 3)
    ]


@pytest.mark.parametrize("until_empty", [True, False])
def test_a_worker_that_ends_counts_its_messages(
    monkeypatch: pytest.MonkeyPatch, until_empty: bool
) -> None:
    queue, shown = memory_queue(), list[int]()
    queue.publish(["a", "b", "c"])

    class Track:
        def __init__(self, what: str, total: int | None) -> None:
            assert (what, total) == ("worked", 3)

        def __enter__(self) -> Callable[[int], None]:
            return shown.append

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(workers, "track", Track)
    group = queue.group().ensure()
    handled: list[Any] = []
    with workers._progress(group, handled.append, until_empty) as counted:
        group.work(counted, max_messages=2, until_empty=True)
    assert len(handled) == 2
    assert shown == ([2, 3] if until_empty else [])
