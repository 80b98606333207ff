"""Errors and warnings name the call in Python and the command that help."""

from __future__ import annotations

import ast
import json
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.handles import lease

import spark_mq
from spark_mq import ConsumerGroup, Queue, QueueNotFound
from spark_mq.interfaces.cli.app import run
from spark_mq.interfaces.cli.output import CommandFormatter


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish(["a", "b"])
    return queue


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


def fill(group: ConsumerGroup) -> None:
    group.configure(max_tracked_ranges=1)
    group.lease("w")


@pytest.mark.parametrize(
    ("happens", "options", "command"),
    [
        (lambda group: group.pause("x"), [], "spark-mq group resume billing -q {q}"),
        (block, [], "spark-mq group resolve billing -q {q} --blocked --to retry"),
        (fill, [], "spark-mq group describe billing -q {q}"),
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
        (breaker_opens, "or call group.resume() or `spark-mq group resume billing -q {q}`"),
        (alike, "queue.drop_group('biling') or `spark-mq group drop biling -q {q}`"),
        (unrouted, "sweep first, by queue.sweep() or `spark-mq sweep -q {q}`"),
    ],
)
def test_a_warning_names_the_command_that_helps(
    queue: Queue, caplog: pytest.LogCaptureFixture, happens: Callable[[Queue], None], named: str
) -> None:
    happens(queue)
    lines = [CommandFormatter("%(message)s").format(record) for record in caplog.records
             if record.levelno >= logging.WARNING]  # fmt: skip
    assert any(named.format(q=queue.path) in line for line in lines), lines


def advised() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command that a text of the library names, with its place."""
    for path in Path(spark_mq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shell_command":
                words = [one.value if isinstance(one, ast.Constant) else "-" for one in node.args]
                yield f"{path.stem}:{node.lineno}", words


@pytest.mark.parametrize(("place", "words"), list(advised()))
def test_each_advised_command_is_there(
    place: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*(word for word in words[:2] if word.isalpha()), "--help"]) == 0, place
    out = capsys.readouterr().out
    for option in words:
        assert not re.match("--?[a-z]", option) or option in out, (place, option)


def test_an_error_keeps_its_data_on_its_way() -> None:
    with pytest.raises(QueueNotFound) as found:
        Queue.open("/no/queue/here")
    error = pickle.loads(pickle.dumps(found.value))
    assert (str(error), error.path) == (str(found.value), "/no/queue/here")
