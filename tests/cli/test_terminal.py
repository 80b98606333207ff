"""Texts of others reach a terminal, JSON and logs without what could steer or fake them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run, started

from spark_mq import Message, Queue, Reject

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202egnp.exe\nspark-mq: forged\x85\u2028\ufeff\U000e0041"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue with the text in everything that a publisher or a worker may choose."""
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish([
        Message(EVIL + name, key=EVIL, message_id=EVIL + name, headers={EVIL: EVIL})
        for name in ("bad", "nacked", "leased", "unread")
    ])  # fmt: skip
    taken = queue.group("billing").lease("w", max_messages=3, visibility_timeout="1h")
    bad, nacked, _ = (message.sequence for message in taken.messages)
    taken.reject([bad], error=EVIL)
    taken.nack([nacked], error=EVIL, delay="1h")
    queue.sweep()
    queue.group("billing").pause(EVIL)
    stuck = queue.group("stuck")
    stuck.configure(max_delivery_attempts=1, on_max_deliveries="block", breaker_threshold=1)
    stuck.lease("w").nack(error=EVIL)
    return queue


def commands(queue: Queue) -> list[list[str]]:
    path, group = ["-q", queue.path], ["-g", "billing"]
    (letter,) = queue.newest_dead_letters()["dead_letter_sequence"].to_pylist()
    return [
        ["peek", *path], ["peek", "-f", *path, "--after", "earliest", "-n", "3"],
        ["group", "describe", "billing", "leases", *path],
        ["trace", *path, "--key", EVIL], ["trace", "--now", *path, "--message-id", EVIL + "nacked"],
        ["group", "describe", "billing", "lanes", *path], ["changes", *path], ["check", *path],
        ["top", *path, "--count", "1"],
        ["queue", "list", str(Path(queue.path).parent)], ["queue", "describe", *path],
        ["queue", "describe", queue.path, "groups"], ["group", "describe", *path, *group],
        ["group", "describe", *path, "-g", "stuck"], ["dlq", "list", *path],
        ["dlq", "list", *path, str(letter)], ["dlq", "list", *path, "--message-id", EVIL],
        ["dlq", "list", *path, "--where", EVIL], ["dlq", "redrive", *path, "--where", EVIL],
        ["group", "describe", *path, "-g", EVIL], ["peek", "-q", EVIL],
        [EVIL], ["peek", "--" + EVIL],
    ]  # fmt: skip


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_command_prints_what_steers_a_terminal(run: Run, queue: Queue, output: str) -> None:
    printed = ""
    for words in commands(queue):
        done = run(*words, "-o", output, expect=None)
        printed += done.out
        for line in (done.out + done.err).split("\n"):
            assert line.isprintable(), (words, line)
            assert not line.startswith("spark-mq: forged"), (words, line)
    assert printed.count("owned") > 10, "the texts are there"


def test_json_keeps_each_character(run: Run, queue: Queue) -> None:
    rows = run("peek", "-q", queue.path, "-o", "json").rows
    assert [row["key"] for row in rows] == [EVIL] * 4
    assert rows[0]["headers"] == {EVIL: EVIL}


def test_the_log_of_a_command_has_only_safe_lines(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(f"def fail(message):\n    raise ValueError({EVIL!r})\n")
    words = ("work", "failing:fail", "--until", "empty", "-q", queue.path, "-g", "other")
    with started("-v", *words, folder=tmp_path) as command:
        lines = command.communicate(timeout=120)[1].split("\n")
    assert any("Traceback" in line for line in lines)
    assert sum("owned" in line for line in lines) > 1
    assert all(line.isprintable() for line in lines)


def test_no_log_of_the_library_has_what_steers_a_terminal(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="spark_mq")
    billing, stuck = queue.group("billing"), queue.group("stuck")
    stuck.configure(on_max_deliveries="dead_letter")

    def handle(held: Any) -> None:
        raise Reject(EVIL)

    for group in (billing, stuck):
        group.work(handle, mode="batch", until="empty")
        group.pause(EVIL)
    texts = [record.getMessage() for record in caplog.records]
    texts += [group.stats().blocked_because for group in (billing, stuck)]
    assert sum("owned" in text for text in texts) > 3
    assert [text for text in texts if not text.isprintable()] == []


def test_a_long_text_does_not_widen_the_cells_of_others(run: Run, tmp_path: Path) -> None:
    """One key of 20 MB made `peek` print 200 MB of blanks."""
    queue, long = Queue.create(tmp_path / "q", durable=False, lanes=2), "k" * 1_000_000
    queue.publish([Message("x", key=long, message_id=long), *["y"] * 9])
    group = queue.group("g")
    group.configure(order="key")
    sequence = queue.peek()[0].sequence
    where = ["-q", queue.path]
    for words in (["peek"], ["peek", "-f", "--after", "earliest", "-n", "10"],
                  ["group", "describe", "g", "lanes"],
                  ["trace", str(sequence)], ["trace", "--now", str(sequence)]):  # fmt: skip
        assert len(run(*words, *where).out) < 100_000, words
    group.lease("w", max_messages=10).reject([sequence], error="bad")
    queue.sweep()
    for words in (["list"], ["failures"], ["redrive", "--dry-run"], ["list", "0"]):
        assert len(run("dlq", *words, *where, expect=None).out) < 100_000, words
    assert len(queue.trace(sequence)._repr_html_()) < 100_000
    assert len(str(queue.trace(sequence))) < 100_000
