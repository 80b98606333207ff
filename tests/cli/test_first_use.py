"""What a newcomer tries at the command line works, or the answer names what does."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.commands import Run

from spark_mq import Message, Queue

LONG = "KeyError: 'orders/2026/" + "x" * 60 + "'"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = Queue.create(tmp_path / "orders", durable=False)
    queue.publish([Message(f'{{"id": {n}}}', key=f"customer-{n}", message_id=f"id-{n}")
                   for n in range(4)])  # fmt: skip
    return queue


@pytest.mark.parametrize("error", ["no luck", "KeyError: 'x'", LONG, "a b c d e f g " * 9])
@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_the_whole_failure_of_letters(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, error: str, width: int
) -> None:
    group = queue.group("billing")
    group.lease("w", max_messages=4).reject(error=error)
    queue.sweep()
    here = ["dlq", "failures", "-q", queue.path]
    shape = run(*here, "-o", "json").row["shape"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = re.sub(r"\x1b\[[\d;]*m", "", run(*here, COLUMNS=str(width)).out)
    assert max(map(len, shown.splitlines())) <= width
    assert Counter(shape.replace(" ", "")) <= Counter(shown), "no character is cut off"
    assert "…" not in shown.replace(shape, "")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("dlq", "list", "--where", "true"), "--where='true'"),
        (("dlq", "redrive", "--yes", "--where", "true"), "--where='true'"),
        (("dlq", "discard", "--yes", "--where", "true"), "--where='true'"),
        (("replay", "json:loads", "--where", "true"), "--where='true'"),
        (("dlq", "redrive", "--yes", "--transform", "value"), "--transform='value'"),
    ],
)
def test_without_duckdb_the_command_offers_only_what_it_takes(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], option: str
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    said = run(*words, "-q", queue.path, expect=2).err
    other = ", or give a function, as MODULE:FUNCTION" if "--transform" in words else ""
    needs = f"{option} is SQL, which needs duckdb. Run: pip install 'spark-mq[sql]'{other}\n"
    assert said == f"spark-mq: error: {needs}"
