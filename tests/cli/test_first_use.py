"""What a newcomer tries at the command line works, or the answer names what does."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.commands import Run
from support.handles import lease

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


@pytest.mark.parametrize("words", [("work", "--until", "empty"), ("replay",)])
@pytest.mark.parametrize(
    "mistake",
    [
        ("message.json()", "batch", "(--mode message) if it takes one message"),
        ("message.ack()", "message", "(--mode batch) if it takes a lease"),
    ],
)
def test_a_handler_of_the_other_mode_gets_the_hint(
    run: Run, queue: Queue, tmp_path: Path, words: tuple[str, ...], mistake: tuple[str, str, str]
) -> None:
    body, mode, hint = mistake
    (tmp_path / f"newcomer_{mode}.py").write_text(f"def bill(message):\n    return {body}\n")
    group = queue.group("billing")
    group.configure(breaker_threshold=1)
    if words[0] == "replay":
        lease(queue, 4, "billing").ack()
    handler = (f"{tmp_path}/newcomer_{mode}.py:bill", "-q", queue.path, "-g", "billing")
    done = run(*words, "--mode", mode, *handler, expect=None)
    assert hint in done.out + done.err


def test_a_check_of_a_folder_judges_each_queue(run: Run, queue: Queue, tmp_path: Path) -> None:
    Queue.create(tmp_path / "idle", durable=False)
    here = ("check", "-q", tmp_path)
    assert run(*here).out == "healthy\n"
    queue.group("billing").pause("x")
    done = run(*here, expect=1).out.splitlines()
    assert done[0].split() == ["QUEUE", "CHECK", "GROUP", "REASON", "RUN"]
    assert done[1].startswith(queue.path)
    assert f"spark-mq group resume billing -q {queue.path}" in done[1]
    rows = run(*here, "-o", "json", expect=1).rows
    assert {Path(row["queue"]).name: row["healthy"] for row in rows} == {
        "idle": True, "orders": False,
    }  # fmt: skip
    log = tmp_path / "idle" / "messages" / "_delta_log"
    for file in log.glob("*.json"):
        file.write_bytes(b"{")
    broken = run(*here, "-o", "json", expect=1).rows
    checks = {Path(row["queue"]).name: [one["check"] for one in row["problems"]] for row in broken}
    assert checks == {"idle": ["unreadable"], "orders": ["blocked"]}
    assert "not a duration" in run(*here, "--max-age", "old", expect=2).err
    shutil.rmtree(tmp_path / "idle")
    shutil.rmtree(tmp_path / "orders")
    assert "there is no queue" in run(*here, expect=3).err


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
