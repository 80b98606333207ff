"""What a newcomer tries at the command line works, or the answer names what does."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.commands import Run

from spark_mq import Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "orders", durable=False)


def test_a_narrow_terminal_shows_the_whole_failure_of_letters(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish("order")
    queue.group("billing").lease("w").reject(error="a b c d e f g " * 9 + "x" * 70)
    queue.sweep()
    here = ["dlq", "failures", "-q", queue.path]
    shape = run(*here, "-o", "json").row["shape"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = re.sub(r"\x1b\[[\d;]*m", "", run(*here, COLUMNS="60").out)
    assert max(map(len, shown.splitlines())) <= 60
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
