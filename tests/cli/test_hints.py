"""Errors and warnings at the command line name commands, not calls of Python."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.handles import lease

import spark_mq
from spark_mq import ConsumerGroup, Queue, QueueNotFound
from spark_mq.interfaces.cli.app import run
from spark_mq.interfaces.cli.output import CommandFormatter, text_for_commands
from spark_mq.util import advice
from spark_mq.util.advice import CREATE_QUEUE, Advice, drop_group, resume_group

CALL = re.compile(r"\b(?:[Qq]ueue|group)\.[a-z_]+|\w+\(|\w=True")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish(["a", "b"])
    return queue


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ("queue describe {q}-not", 3, "Create it with `spark-mq queue create {q}-not`"),
        ("queue create {q}", 1, "give --exist-ok"),
        ("queue create {q} --exist-ok --lanes 4", 1, "give --exist-ok without these settings"),
        ("group describe none -q {q}", 3, "`spark-mq group create none -q {q}` creates a group"),
        (
            "queue configure {q} --set retry_delay=3s",
            2,
            "Use `spark-mq group configure GROUP -q {q}`",
        ),
        (
            "group configure billing -q {q} --set retention=3d",
            2,
            "use `spark-mq queue configure {q}`",
        ),
        ("group configure billing -q {q} --set order=key", 2, "queue create PATH --lanes 64`"),
        ("lanes -g billing -q {q}", 2, "queue create PATH --lanes 64`"),
        ("lanes -g billing --lane 9 -q {q}", 2, "queue create PATH --lanes 64`"),
        ("peek -g biling -q {q}", 3, "`spark-mq group create biling -q {q}`"),
        ("schedule pause x -q {q}", 3, "`spark-mq schedule add -q {q}`"),
        ("dlq show -q {q}", 2, "`spark-mq dlq list -q {q}`"),
    ],
)
def test_an_error_names_the_command_that_helps(
    queue: Queue, capsys: pytest.CaptureFixture[str], words: str, code: int, named: str
) -> None:
    queue.group("billing").ensure()
    assert run(words.format(q=queue.path).split()) == code
    error = capsys.readouterr().err
    assert named.format(q=queue.path) in error
    assert not CALL.search(error), error


def test_an_error_of_a_worker_names_its_queue_and_group(
    queue: Queue, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text("def bad(lease):\n    raise ValueError('boom')\n")
    queue.group("billing").configure(breaker_threshold=1)
    words = ["work", f"{tmp_path}/failing.py:bad", "-g", "billing", "-q", queue.path]
    run([*words, "--until", "empty"])
    assert f"`spark-mq group resume billing -q {queue.path}`" in capsys.readouterr().err


def block(group: ConsumerGroup) -> None:
    group.configure(max_delivery_attempts=1, on_max_deliveries="block")
    group.lease("w").nack()


def kill(group: ConsumerGroup) -> None:
    group.lease("w").reject(error="bad")


@pytest.mark.parametrize(
    ("happens", "options", "command"),
    [
        (lambda group: group.pause("x"), [], "spark-mq group resume billing -q {q}"),
        (block, [], "spark-mq group unblock billing -q {q} --to retry"),
        (lambda group: None, ["--max-unswept", "1us"], "spark-mq sweep -q {q}"),
        (lambda group: None, ["--max-age", "1us"], "spark-mq group describe billing -q {q}"),
        (kill, ["--max-dead", "0"], "spark-mq dlq failures -q {q}"),
    ],
)
def test_a_check_says_which_command_helps(
    queue: Queue,
    capsys: pytest.CaptureFixture[str],
    happens: Callable[[ConsumerGroup], None],
    options: list[str],
    command: str,
) -> None:
    group = queue.group("billing")
    group.ensure()
    happens(group)
    here = ["check", "-q", queue.path, *options]
    assert run(here) == 1
    assert command.format(q=queue.path) in capsys.readouterr().out
    assert run([*here, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["problems"]
    assert [one["command"] for one in found] == [command.format(q=queue.path)]


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
    ("happens", "named"),
    [
        (breaker_opens, "or run `spark-mq group resume billing -q {q}`"),
        (alike, "`spark-mq group drop biling -q PATH`"),
        (unrouted, "sweep first (`spark-mq sweep -q PATH`)"),
    ],
)
def test_a_warning_names_the_command_that_helps(
    queue: Queue,
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[Queue], None],
    named: str,
) -> None:
    happens(queue)
    lines = [CommandFormatter("%(message)s").format(one) for one in caplog.records
             if one.levelno >= logging.WARNING]  # fmt: skip
    assert any(named.format(q=queue.path) in line for line in lines), lines
    assert not any(CALL.search(line) for line in lines), lines


ADVICE = [one for one in vars(advice).values() if isinstance(one, Advice)]


@pytest.mark.parametrize("one", [*ADVICE, drop_group("x"), resume_group("x", "/q")], ids=str)
def test_each_advice_names_a_command_that_there_is(
    one: Advice, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in re.findall(r"`spark-mq ([^`]+)", one.command):
        named = words.split()
        command = named[: 2 if named[0] in ("queue", "group", "schedule") else 1]
        assert re.search(r"\{queue\}|PATH|-q /q", words), "whose queue is it?"
        assert run([*command, "--help"]) == 0
        assert " ".join(command) in capsys.readouterr().out
    for option in re.findall(r"--(?:force|message-id|key|exist-ok)\b", one.command):
        words = ["queue", "create"] if option == "--exist-ok" else ["group", "discard"]
        assert run([*words, "--help"]) == 0
        assert option in capsys.readouterr().out


def test_each_advice_is_one_that_the_library_gives() -> None:
    """So no advice outlives its error."""
    root = Path(spark_mq.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.name != "advice.py"]
    given = "\n".join(path.read_text() for path in sources)
    unused = [name for name in advice.__all__ if not re.search(rf"\b{name}\b", given)]
    assert unused == []


def test_an_error_keeps_its_advice_on_its_way() -> None:
    with pytest.raises(QueueNotFound) as found:
        Queue.open("/no/queue/here")
    error = pickle.loads(pickle.dumps(found.value))
    assert error.advice == (CREATE_QUEUE,)
    assert "Queue.create" in str(error)
    for shown in (error, wrapped(error)):
        assert "`spark-mq queue create PATH`" in text_for_commands(shown)
        assert "Queue.create" not in text_for_commands(shown)


def wrapped(error: Exception) -> Exception:
    try:
        raise RuntimeError(f"stopped: {error}") from error
    except RuntimeError as caught:
        return caught
