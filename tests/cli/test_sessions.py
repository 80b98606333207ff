"""Sessions of commands: what each says, on stderr too, and how it ends, as somebody approved it.

In ``sessions/`` a line that begins with ``$`` is a command, with its variables before it and its
stdin behind ``<<<``. ``APPROVE=1`` writes what the commands say now, to be read in a diff.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.approved import SHORT_SPANS, assert_approved, without_what_varies
from support.commands import Run
from support.stocked_queue import stocked_queue

from spark_mq import Message, Queue

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.txt"))
MODULE = """
from spark_mq import Reject
from spark_mq.integrations.formats import Json

ORDER = Json()

def good(message):
    return None

def picky(lease):
    return [
        {"sequence": message.sequence, "outcome": "reject", "error": "bad\\x1b[31m"}
        for message in lease.messages if message.value == b"bad"
    ]

def settles(lease):
    lease.reject([message.sequence for message in lease.messages if message.value == b"bad"])

def fails(lease):
    lease.nack(error="broken")

def broken(message):
    if message.value != b"bad":
        raise KeyError(message.text)

async def evil(message):
    if message.value == b"good":
        return Reject("\\x1b[31m no")

def bill(message):
    print(message.data["customer"])

def upper(message):
    return message.value.upper()

def refuse(message):
    raise ValueError(message.key)

def leaves(message):
    raise SystemExit(0)

def reads(message):
    return message.json()

def acks(lease):
    return lease.ack()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the stocked queue `orders`, a damaged one, no queues, functions and lines."""

    def message(name: str) -> Message:
        return Message(name, key=f"key-{name}", message_id=f"id-{name}")

    stocked_queue(tmp_path / "orders", message, "bad")
    (tmp_path / "handlers.py").write_text(MODULE)
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    (tmp_path / "lines.jsonl").write_text('{"id": "1", "n": 1}\n\n{"id": "2"}\n')
    (tmp_path / "marked.jsonl").write_text('\ufeff{"n": 1}\n{"n": 2}\n')
    for path in ("table", "started/messages"):
        (tmp_path / path / "_delta_log").mkdir(parents=True)
    damaged = Queue.create(tmp_path / "damaged" / "q", durable=False)
    Path(damaged.path, "messages", "_delta_log", f"{0:020}.json").write_bytes(b"{")
    return tmp_path


def said(run: Run, line: str, folder: Path) -> str:
    """What a command prints. A line of stderr begins with ``2>``."""
    command, _, stdin = line.partition(" <<< ")
    words = shlex.split(command)
    given = [word for word in words if re.match("SPARK_MQ_[A-Z_]+=", word)]
    variables = dict(word.split("=", 1) for word in given)
    done = run(
        *words[len(variables) :], stdin=stdin.encode().decode("unicode_escape"), expect=None,
        **variables,
    )  # fmt: skip
    errors = [f"2> {line}" for line in done.err.splitlines()]
    ends = [f"exit {done.code}"] if done.code else []
    text = "\n".join([*done.out.splitlines(), *errors, *ends])
    return without_what_varies(text, folder, spans=SHORT_SPANS)


@pytest.mark.parametrize("path", SESSIONS, ids=[path.stem for path in SESSIONS])
def test_commands_say_what_was_approved(folder: Path, run: Run, path: Path) -> None:
    lines = re.findall(r"^\$ (.*)$", path.read_text(encoding="utf-8"), re.M)
    assert_approved(path, [(line, said(run, line, folder)) for line in lines])


def test_a_replay_writes_a_row_for_each_message(folder: Path, run: Run) -> None:
    group = ("-q", "orders", "-g", "new", "--mode")
    run("work", "handlers:picky", *group, "batch", "--until", "empty", "--max-messages", 10)
    run("sweep", "-q", "orders")
    run("replay", "handlers:broken", *group, "message", "--rows", "rows.parquet")
    changes = pq.read_table(folder / "rows.parquet")["change"].to_pylist()
    assert changes == ["worse", "worse", "better", "worse", "worse"]
