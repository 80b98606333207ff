"""Progress: live on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from support.commands import Terminal
from support.handles import lease, until
from support.rule_variants import first, rule_variant

from spark_mq import ConsumerGroup, Message, ReceivedMessage, Reject, Retry
from spark_mq.interfaces.cli.output import FailureLines, Left, track
from spark_mq.interfaces.cli.workers import tracking_settled
from spark_mq.testing import memory_queue


def steps_of(call: Callable[[], object]) -> list[str]:
    said: list[str] = []
    with rule_variant("progress:step", first(lambda a: said.append(a.text))):
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


def test_a_command_says_that_it_runs_and_its_step() -> None:
    stream, terminal, queue = io.StringIO(), Terminal(), memory_queue()
    with track("sweeping", None, stream, pause=0.001):
        until(stream.getvalue)
        queue.sweep()
        until(lambda: "queue: 0s" in stream.getvalue())
    assert stream.getvalue().startswith("sweeping: 0s\n")
    assert "spark_mq progress" not in {thread.name for thread in threading.enumerate()}
    queue.publish("a")
    with track("purging", None, terminal):
        queue.purge(queue.name)
    assert "purging: drop files" in terminal.getvalue()
    assert "sweeping: chore 7 of 7: the dead-letter queue: 0s\n" in stream.getvalue()


def test_a_line_has_speed_share_and_time_left() -> None:
    now = 0.0
    with track("published", 200_000, io.StringIO(), clock=lambda: now) as shown:
        lines = []
        for _ in range(8):
            now += 1.0
            shown.finish(18_000)
            lines.append(str(shown))
        now += 300
        shown.finish(0)
    assert [lines[2], lines[5], str(shown)] == [
        "published: 54,000 of 200,000 messages, 18k msg/s, 27%, 8s left",
        "published: 108,000 of 200,000 messages, 18k msg/s, 54%, 5s left",
        "published: 144,000 of 200,000 messages, 72%",
    ]


def test_a_total_grows_with_what_is_done_and_one_message_is_one() -> None:
    """Messages may be published meanwhile."""
    lines = []
    with track("settled", 3, io.StringIO(), clock=lambda: 0.0) as shown:
        for done in (1, 2, 1):
            shown.finish(done)
            lines.append(str(shown))
    for total in (None, 1):
        with track("published", total, io.StringIO(), clock=lambda: 0.0) as shown:
            shown.finish(1)
        lines.append(str(shown))
    assert lines == [
        "settled: 1 of 3 messages, 33%", "settled: 3 of 3 messages, 100%",
        "settled: 4 of 4 messages, 100%", "published: 1 message",
        "published: 1 of 1 message, 100%",
    ]  # fmt: skip


def ticking() -> dict[str, Any]:
    """Options of progress that nobody sees, with a second between any two looks at the clock."""
    return {"stream": io.StringIO(), "clock": count().__next__}


@pytest.mark.parametrize("until_what", ["empty", "settled", None])
def test_a_worker_that_ends_counts_what_it_settles(until_what: str | None) -> None:
    queue, lines = memory_queue(), []
    queue.publish(["a", "b", "c"])
    group = queue.group()
    group.configure(max_delivery_attempts=2, retry_delay=0)

    def handle(message: Message) -> None:
        lines.append(str(shown))
        if message.text == "b":
            raise ValueError("no customer")

    with tracking_settled(queue, group, until_what, **ticking()) as shown:
        group.work(handle, mode="message", until=until_what or "empty")
    if until_what is None:
        assert shown is None
        return
    assert str(shown).startswith("settled: 3 of 3 messages")
    done = [int(line.split()[1]) for line in [*lines, str(shown)]]
    assert done == sorted(done), "a failure that is retried is not counted"
    assert done[-2] < 3
    queue.publish(Message("later", deliver_at="1h"))
    with tracking_settled(queue, group, until_what, **ticking()) as shown:
        assert ("of 1 message" in str(shown)) is (until_what == "settled")


def test_a_worker_shows_what_all_workers_of_its_group_have_settled() -> None:
    queue = memory_queue()
    queue.publish([str(number) for number in range(100)])
    group = queue.group()
    other, lines = group.ensure().lease("other", max_messages=60), []

    def handle(_: Any) -> None:
        lines.append(str(shown).partition(",")[0])
        other.ack()  # the second time it finds them settled

    with tracking_settled(queue, group, "empty", **ticking()) as shown:
        group.work(handle, mode="batch", max_messages=20, until="empty")
    assert lines == ["settled: 0 of 100 messages", "settled: 80 of 100 messages"]
    assert str(shown).startswith("settled: 100 of 100 messages")


def test_a_worker_without_a_time_left_says_how_many_wait_after_failures() -> None:
    now = 0.0
    lines, left = [], [Left(1, 1), Left(0, 2), Left(0, 1), Left(2, 0)]
    options: dict[str, Any] = {"clock": lambda: now, "left": lambda: left.pop(0)}
    with track("settled", 3, io.StringIO(), **options) as shown:
        for finished in (1, 0, 1, 0):
            now += 2.0
            if finished:
                shown.finish(1)
            else:
                shown.fail(2, "ValueError: no customer", None, None)
            lines.append(str(shown))
    assert lines == [
        "settled: 1 of 3 messages, 0.5 msg/s, 33%, 4s left, 1 waits until it is due",
        "settled: 1 of 3 messages, 2 wait until they are due (2 failures)",
        "settled: 2 of 3 messages, 1 waits until it is due (2 failures)",
        "settled: 2 of 4 messages, 0.25 msg/s, 50%, 8s left, 4 failures",
    ]


def test_the_last_change_within_a_second_is_shown_later() -> None:
    now = 10.0
    left = [Left(2), Left(0, 1)]
    options: dict[str, Any] = {"clock": lambda: now, "left": lambda: left.pop(0)}
    with track("settled", 2, io.StringIO(), **options) as shown:
        shown.finish(0)
        shown.finish(1)
        assert str(shown) == "settled: 0 of 2 messages"
        now += 1.0
        for _ in range(2):  # without a change nothing is asked
            assert str(shown) == "settled: 1 of 2 messages, 1 waits until it is due"


@pytest.mark.parametrize("until_what", ["empty", None])
def test_a_worker_prints_the_first_failure_of_each_kind_that_is_retried(
    capsys: pytest.CaptureFixture[str], until_what: str | None
) -> None:
    queue = memory_queue()
    first, _, third, _, lost = queue.publish(["11", "22", "x", "reject", "lost"]).sequences
    group = queue.group()
    group.configure(retry=["2h"], retry_jitter=0)

    def handle(message: ReceivedMessage) -> None:
        if message.text == "reject":
            raise Reject("no order")
        if message.text == "lost":
            raise Retry(delay="3h")
        raise (KeyError if message.text == "x" else ValueError)(f"{message.sequence} is unknown")

    with tracking_settled(queue, group, until_what, stream=io.StringIO()):
        group.work(handle, until="empty")
    shown, due = sorted(capsys.readouterr().err.splitlines()), "(its retry is due in"
    assert [re.sub(r"due in (\dh) .*", r"due in \1)", line) for line in shown] == [
        f"spark-mq: message {first} failed: ValueError: {first} is unknown {due} 1h)",
        f"spark-mq: message {third} failed: KeyError: '{third} is unknown' {due} 1h)",
        f"spark-mq: message {lost} failed: no reason given {due} 2h)",
    ]


def test_a_long_failure_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    FailureLines().fail(2, "no customer\n" + "x" * 1_000, None, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 300


def test_the_log_alone_shows_a_failure_if_it_has_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_mq")
    queue = memory_queue()
    queue.publish("a")
    with tracking_settled(queue, queue.group(), None):
        queue.group().work(lambda message: message.json(), until="empty")
    assert "failed" not in capsys.readouterr().err
    assert "InvalidPayload" in caplog.text


def test_a_redrive_and_a_replay_count_their_messages() -> None:
    queue = memory_queue()
    queue.publish(["a", "b", "c"])
    lease(queue, 3).reject(error="bad")
    queue.sweep()
    with track("replayed", None, io.StringIO(), clock=lambda: 0.0) as shown:
        queue.replay(lambda message: None, mode="message")
    assert str(shown) == "replayed: 3 of 3 messages, 100%"
    with track("redriven", 3, io.StringIO(), clock=lambda: 0.0) as shown:
        queue.redrive()
    assert str(shown) == "redriven: 3 of 3 messages, 100%"


def test_a_worker_goes_on_if_what_is_left_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = memory_queue()
    queue.publish(["a", "b"])
    group = queue.group()
    group.ensure()

    def refuse(_: ConsumerGroup) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(ConsumerGroup, "stats", refuse)
        with tracking_settled(queue, group, "empty", stream=io.StringIO()) as shown:
            summary = group.work(lambda message: None, until="empty")
        assert str(shown).startswith("settled: ")
    assert summary.acked == group.stats().acked == 2


def fail_at_bad(message: ReceivedMessage) -> None:
    if message.text == "bad":
        raise ValueError("no customer")


def test_only_what_failed_is_shown_as_failed() -> None:
    queue = memory_queue(max_delivery_attempts=2, retry_delay=0, breaker_threshold=None)
    queue.publish(["good", "bad"])
    with track("settled", 2, io.StringIO(), clock=lambda: 0.0) as shown:
        queue.group().work(fail_at_bad, until="settled")
    assert str(shown) == "settled: 2 of 2 messages, 100%, 2 failures"


class Unread(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_handler_does_not_fail_if_nobody_reads_the_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise good messages were nacked, and a failure was recorded as a broken pipe."""
    queue = memory_queue()
    queue.publish(["good", "bad"])
    group = queue.group()
    group.configure(max_delivery_attempts=2, retry_delay=0)
    monkeypatch.setattr("sys.stderr", Unread())
    with tracking_settled(queue, group, "settled", pause=0.001):
        summary = group.work(fail_at_bad, mode="message", until="settled")
    assert (summary.acked, summary.nacked) == (1, 2)
    queue.sweep()
    (error,) = queue.list_dead_letters()["error"].to_pylist()
    assert "no customer" in error
