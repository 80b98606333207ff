"""Progress: a bar or a spinner on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.handles import until

from spark_mq import Message
from spark_mq.cli.output import busy, track
from spark_mq.cli.workers import counting
from spark_mq.testing import memory_queue
from spark_mq.util.show import showing_steps, step


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


def test_a_busy_command_says_that_it_runs() -> None:
    stream = Heard()
    with busy("sweeping", stream, pause=0.001):
        assert stream.written.wait(10)
    assert stream.getvalue().startswith("sweeping: 0 s\n")
    assert "spark_mq progress" not in {thread.name for thread in threading.enumerate()}


def steps_of(call: Callable[[], object]) -> list[str]:
    said: list[str] = []
    with showing_steps(said.append):
        call()
    return said


def test_a_sweep_and_a_purge_say_which_step_they_have_reached() -> None:
    queue = memory_queue()
    queue.publish(["a", "b"])
    for name in ("one", "two"):
        queue.group(name).ensure()
    assert steps_of(queue.sweep) == [
        "chore 1 of 7: index commits",
        "chore 2 of 7: publish schedules",
        "chore 3 of 7: groups, 0 of 2 done",
        "chore 3 of 7: groups, 1 of 2 done",
        "chore 4 of 7: complete batches",
        "chore 5 of 7: trim",
        "chore 6 of 7: archive and clean",
        "chore 7 of 7: the dead-letter queue",
    ]
    assert steps_of(lambda: queue.purge(queue.name)) == [
        "groups, 0 of 2 done",
        "groups, 1 of 2 done",
        "drop files",
    ]


def test_the_step_is_shown() -> None:
    stream, terminal = Heard(), Terminal()
    with busy("sweeping", stream, pause=0.001):
        step("chore 1 of 7: index commits")
        until(lambda: "commits: 0 s" in stream.getvalue())
    with busy("purging", terminal):
        step("groups, 0 of 2 done")
    assert "sweeping: chore 1 of 7: index commits: 0 s\n" in stream.getvalue()
    assert "purging: groups, 0 of 2 done" in terminal.getvalue()


def test_a_short_command_says_nothing() -> None:
    stream = io.StringIO()
    with busy("sweeping", stream):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_shows_a_spinner() -> None:
    stream = Terminal()
    with busy("purging", stream):
        pass
    assert "purging" in stream.getvalue()


def test_lines_are_not_printed_more_often_than_every_few_seconds() -> None:
    now = 0.0
    stream = io.StringIO()
    with track("published", 50, stream, clock=lambda: now) as show:
        for done in range(50):
            now += 1.0
            show(done)
    assert stream.getvalue().splitlines() == [
        f"published: {done} of 50 messages" for done in range(2, 50, 3)
    ]


def test_a_total_grows_with_what_is_done_and_one_message_is_one() -> None:
    """Messages may be published meanwhile, or delivered again."""
    stream = io.StringIO()
    with track("worked", 3, stream, pause=0) as show:
        for done in (1, 3, 4):
            show(done)
    for total in (None, 1):
        with track("published", total, stream, pause=0) as show:
            show(1)
    assert stream.getvalue().splitlines() == [
        "worked: 1 of 3 messages", "worked: 3 of 3 messages", "worked: 4 of 4 messages",
        "published: 1 message", "published: 1 of 1 message",
    ]  # fmt: skip


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_that_ends_counts_its_messages(ends: bool) -> None:
    queue, stream = memory_queue(), io.StringIO()
    queue.publish(["a", "b", "c"])
    group = queue.group()
    handled: list[Any] = []
    with counting(handled.append, queue, group, ends=ends, stream=stream, pause=0) as counted:
        group.work(counted, max_messages=2, until="empty")
    assert len(handled) == 2
    shown = ["worked: 2 of 3 messages", "worked: 3 of 3 messages"]
    assert stream.getvalue().splitlines() == (shown if ends else [])


class Unread(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_handler_does_not_fail_if_nobody_reads_the_progress() -> None:
    """Otherwise good messages were nacked, and a failure was recorded as a broken pipe."""
    queue = memory_queue()
    queue.publish(["good", "bad"])
    group = queue.group()
    group.configure(max_delivery_attempts=2, retry_delay=0)

    def handle(message: Message) -> None:
        if message.text == "bad":
            raise ValueError("no customer")

    with counting(handle, queue, group, ends=True, stream=Unread(), pause=0) as counted:
        summary = group.work(counted, mode="message", until="settled")
    assert (summary.acked, summary.nacked) == (1, 2)
    queue.sweep()
    (error,) = queue.list_dead_letters()["error"].to_pylist()
    assert "no customer" in error


def test_a_busy_command_goes_on_if_nobody_reads_the_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: failed.append(args.exc_value))
    failed: list[Any] = []
    tried = threading.Event()

    class Tried(Unread):
        def write(self, text: str) -> int:
            tried.set()
            return super().write(text)

    with busy("sweeping", Tried(), pause=0.001):
        assert tried.wait(10)
    assert failed == []
