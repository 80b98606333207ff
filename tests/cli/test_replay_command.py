"""``spark-mq replay``: its report, its exit codes, and its use as a check of a change."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.commands import Run

from spark_mq import Queue

HANDLERS = """
from spark_mq import Reject

def same(lease):
    return [
        {"sequence": message.sequence, "outcome": "reject", "error": "bad"}
        for message in lease.messages if message.value == b"bad"
    ]

def fixed(lease):
    return None

def broken(message):
    if message.value != b"bad":
        raise KeyError(message.text)

async def broken_async(message):
    if message.value == b"good":
        return Reject("\\x1b[31m no")
"""


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    (tmp_path / "changed.py").write_text(HANDLERS)
    made = Queue.create(tmp_path / "orders")
    made.publish(["good", "bad", "fine"])
    for verb in ("ack", "reject", "ack"):
        lease = made.group("billing").lease("w")
        assert lease is not None
        getattr(lease, verb)()
    made.sweep()
    return made


def test_the_report_is_text_or_json(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path, "-g", "billing")
    text = run("replay", "changed:fixed", *here, "--mode", "batch").out
    assert text.splitlines()[0] == "shadow replay of group billing: 3 messages"
    assert "1  better: a dead letter or dropped then, and acked now" in text
    row = run("replay", "changed:broken", *here, "-o", "json").row
    assert (row["group"], row["replayed"], row["worse"], row["better"]) == ("billing", 3, 2, 1)
    (error,) = row["errors"]
    assert (error["messages"], error["error"]) == (2, "KeyError: 'good'")
    words = ("replay", "changed:broken_async", *here, "--concurrency", 2)
    assert "\x1b" not in run(*words).out


def test_fail_if_worse_exits_with_1_only_for_a_worse_outcome(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path, "-g", "billing", "--since", "-1d", "--fail-if-worse")
    run("replay", "changed:same", *here, "--mode", "batch")
    run("replay", "changed:fixed", *here)
    worse = ("replay", "changed.py:broken", *here)
    assert "2 worse" in run(*worse, expect=1).out
    run(*worse, "--where", "outcome = 'dead_lettered'")
    assert "fine" in run(*worse, "--limit", 1, expect=1).out
    run(*worse[:-1])  # without --fail-if-worse
    assert run("replay", "changed:fixed", *here, "--until", "1h", "-o", "json").row["replayed"] == 0


def test_min_messages_fails_a_replay_of_fewer(run: Run, queue: Queue) -> None:
    words = ("replay", "changed:same", "-q", queue.path, "-g", "billing", "--fail-if-worse")
    words = (*words, "--mode", "batch")
    run(*words, "--min-messages", 3)
    few = run(*words, "--min-messages", 4, expect=1)
    assert "3 messages replayed, fewer than --min-messages 4: give an earlier --since" in few.err
    assert few.out.startswith("shadow replay of group billing: 3 messages")
    none = run(*words, "--until", "1h", "--min-messages", 1, "-o", "json", expect=1)
    assert none.row["replayed"] == 0
    assert "min-messages" in run(*words, "--min-messages", "-1", expect=2).err


def test_a_wrong_argument_exits_with_2_and_a_missing_group_with_3(run: Run, queue: Queue) -> None:
    words = ("replay", "changed:fixed", "-q", queue.path, "-g", "billing")
    for wrong in (
        ("--since", "soon"), ("--mode", "x"), ("--where", "colour = 1"), ("--on-error", "raise"),
        ("--rows", "nowhere/rows.parquet"), ("--limit", "0"),
    ):  # fmt: skip
        assert wrong[0].removeprefix("--").replace("-", "_") in run(
            *words, *wrong, expect=2
        ).err.replace("-", "_")
    assert "cannot be used" in run("replay", "none:fixed", *words[2:], expect=2).err
    run("replay", "changed:fixed", "-q", queue.path, "-g", "biling", expect=3)
    assert queue.groups() == ["billing"]


def test_a_row_for_each_message_is_written_to_a_file(
    run: Run, queue: Queue, tmp_path: Path
) -> None:
    words = ("replay", "changed:broken", "-q", queue.path, "-g", "billing")
    run(*words, "--rows", tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["change"].to_pylist() == ["worse", "better", "worse"]
