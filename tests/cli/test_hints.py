"""Errors and warnings at the command line name commands, not calls of Python."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.handles import lease

import spark_mq
from spark_mq import Queue
from spark_mq.cli.app import run
from spark_mq.cli.hints import HINTS, CommandFormatter

CALL = re.compile(r"\b(?:[Qq]ueue|group)\.[a-z_]+|\w+\(|\w=True")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish(["a", "b"])
    return queue


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        ("queue describe {q}-not", 3, "Create it with `spark-mq queue create`"),
        ("queue create {q}", 1, "give --exist-ok"),
        ("group describe none -q {q}", 3, "`spark-mq group create` creates a group"),
        ("queue configure {q} --set retry_delay=3s", 2, "Use `spark-mq group configure`"),
        ("group configure billing -q {q} --set retention=3d", 2, "use `spark-mq queue configure`"),
        ("group configure billing -q {q} --set order=key", 2, "queue create --lanes 64`"),
        ("lanes -g billing -q {q}", 2, "--lanes 64"),
    ],
)
def test_an_error_names_the_command_that_helps(
    queue: Queue, capsys: pytest.CaptureFixture[str], words: str, code: int, advice: str
) -> None:
    queue.group("billing").ensure()
    assert run(words.format(q=queue.path).split()) == code
    error = capsys.readouterr().err
    assert advice in error
    assert not CALL.search(error), error


def breaker_opens(queue: Queue) -> None:
    group = queue.group("billing")
    group.configure(breaker_threshold=1)
    lease(queue, 1, "billing").nack(error="boom")


def alike(queue: Queue) -> None:
    queue.group("billing").ensure()
    queue.group("biling").ensure()


def unrouted(queue: Queue) -> None:
    lease(queue, 1, "billing").reject(error="bad")
    queue.redrive()


@pytest.mark.parametrize(
    ("happens", "advice"),
    [
        (breaker_opens, "or run `spark-mq group resume`"),
        (alike, "`spark-mq group drop biling`"),
        (unrouted, "sweep first (`spark-mq sweep`)"),
    ],
)
def test_a_warning_names_the_command_that_helps(
    queue: Queue,
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[Queue], None],
    advice: str,
) -> None:
    happens(queue)
    lines = [CommandFormatter("%(message)s").format(one) for one in caplog.records
             if one.levelno >= logging.WARNING]  # fmt: skip
    assert any(advice in line for line in lines), lines
    assert not any(CALL.search(line) for line in lines), lines


def test_each_advice_is_one_that_the_library_gives() -> None:
    """So no entry of the table outlives its error."""
    root = Path(spark_mq.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.parent.name != "cli"]
    # A text may go on in the next line, and has the value in a placeholder.
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in sources))
    given = re.sub(r"%r|\{group!r\}", "'x'", joined)
    assert [call for call, _ in HINTS if not re.search(call, given)] == []
