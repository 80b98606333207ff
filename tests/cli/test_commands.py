"""Each command: exit code, table, JSON, errors, environment. Some run as a process."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from support.commands import Done, Run, run_program, started
from support.deadlines import no_longer_than
from support.handles import until
from support.limits import Limits
from support.stocked_queue import sequence_of, stocked_queue
from support.working import working

from spark_mq import Message, Queue
from spark_mq.interfaces.cli.app import run as run_here
from spark_mq.interfaces.cli.command import COMMANDS, complete_queues, stopping
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.setting_fields import settings_of

HANDLER = """
import pathlib
import threading

from spark_mq import Reject

def good(lease):
    return None

def picky(lease):
    return [
        {"sequence": message.sequence, "outcome": "reject", "error": "bad\\x1b[31m"}
        for message in lease.messages if message.value == b"bad"
    ]

def settles(lease):
    lease.reject([message.sequence for message in lease.messages if message.value == b"bad"])

def leaves(lease):
    raise SystemExit(0)

def one(message):
    if message.value == b"bad":
        raise Reject("bad")

async def one_async(message):
    one(message)

def slow(lease):
    pathlib.Path("started").touch()
    while not pathlib.Path("go_on").exists():
        threading.Event().wait(0.01)
"""


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    def message(name: str) -> Message:
        return Message(name, key=f"key-{name}", message_id=f"id-{name}")

    return stocked_queue(tmp_path / "orders", message, "bad")


@pytest.fixture
def handlers(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "handlers.py").write_text(HANDLER)
    return "handlers"


def test_queues_are_created_listed_and_dropped(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "shop" / "orders"
    made = run("queue", "create", path, "--set", "max_in_flight=7", "--set", "durable=false",
               "--retention", "2d", "-o", "json")  # fmt: skip
    assert made.row == {"queue": str(path), "name": "orders"}
    settings = Queue.open(path).settings
    assert (settings.group.max_in_flight, settings.durable) == (7, False)
    assert settings.retention == timedelta(days=2)
    assert "there is a queue" in run("queue", "create", path, expect=1).err
    run("queue", "create", path, "--exist-ok", "--set", "max_in_flight=7", "--set",
        "durable=false", "--retention", "2d")  # fmt: skip
    assert run("queue", "list", tmp_path, "-o", "json").rows == [
        {"queue": str(path), "published": 0, "groups": 0, "dead_letters": 0, "error": None}
    ]
    table = run("queue", "list", tmp_path).out.splitlines()
    assert table[0].split() == ["QUEUE", "PUBLISHED", "GROUPS", "DEAD", "LETTERS"]
    assert table[1].split() == [str(path), "0", "0", "0"]
    assert "--yes" in run("queue", "drop", path, expect=2).err
    assert path.exists()
    assert run("queue", "drop", path, "--yes", "-o", "json").row["files_deleted"] > 0
    assert not path.exists()
    assert "no queue" in run("queue", "describe", path, expect=3).err


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("visibility_timeout", "2m", timedelta(minutes=2)),
        ("max_delivery_attempts", "7", 7),
        ("max_delivery_attempts", "none", None),
        ("retention", "0", timedelta(0)),
        ("dead_letter_path", "./letters", "./letters"),
        ("lanes", "8", 8),
    ],
)
def test_a_common_setting_of_a_new_queue_has_its_own_option(
    run: Run, tmp_path: Path, name: str, text: str, value: object
) -> None:
    option, given = f"--{name.replace('_', '-')}", text.replace("./", f"{tmp_path}/q/")
    run("queue", "create", tmp_path / "q", option, given)
    settings = Queue.open(tmp_path / "q").settings
    assert getattr(settings if hasattr(settings, name) else settings.group, name) == value


def test_a_wrong_setting_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    done = run("queue", "create", tmp_path / "q", "--set", "max_in_fligth=7", expect=2)
    assert "max_in_fligth" in done.err
    assert "max_in_flight" in done.err
    assert not done.out
    assert "NAME=VALUE" in run("queue", "create", tmp_path / "q", "--set", "x", expect=2).err
    assert "nope" in run("nope", expect=2).err
    assert "--queue" in run("peek", expect=2).err


def test_a_queue_is_configured(run: Run, queue: Queue) -> None:
    row = run("queue", "configure", queue.path, "--set", "retention=3d", "-o", "json").row
    assert (row["retention"], row["group"]["visibility_timeout"]) == (259_200.0, 60.0)
    assert Queue.open(queue.path).settings.retention == timedelta(days=3)
    assert "retention" in run("queue", "configure", queue.path).out
    changes = ("--set", "retention=2h", "--set", "message_ttl=30d")
    shown = run("queue", "configure", queue.path, *changes).out
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (lines["retention"], lines["message_ttl"]) == ("3d -> 2h", "- -> 30d")
    assert (lines["durable"], lines["group.visibility_timeout"]) == ("no", "1m")
    assert shown.count("->") == 2
    assert not set("{}[]") & set(shown)
    assert "->" not in run("queue", "configure", queue.path, *changes).out
    refused = run("queue", "configure", queue.path, "--set", "durable=false", expect=2).err
    assert "fixed when the queue is created" in refused


def test_a_purge_drops_all_messages(run: Run, queue: Queue) -> None:
    assert "--yes" in run("queue", "purge", queue.path, expect=2).err
    assert run("queue", "purge", queue.path, "-y", "-o", "json").row["files_dropped"] == 1
    queue.publish(["x", "y"])
    row = run("queue", "purge", queue.path, "-y", "-o", "json").row
    assert row == {"queue": queue.path, "messages_dropped": 2, "files_dropped": 1}
    assert queue.group("billing").stats().ready == 0


def test_groups_are_configured_and_dropped(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path)
    after = run("group", "configure", "billing", *here, "--set", "retry_delay=5m", "--set",
                "max_delivery_attempts=none", "--set", "retry_jitter=0.5", "-o",
                "json").row  # fmt: skip
    assert (after["retry_delay"], after["max_delivery_attempts"]) == (300.0, None)
    assert queue.group("billing").settings.retry_jitter == 0.5
    limits = ("--set", "rate_limit=5/m", "--set", "retry=1s,2m", "--set", "max_in_flight_bytes=64m")
    text = run("group", "configure", "billing", *here, *limits).out
    assert re.search(r"rate_limit +- -> 5/m", text)
    assert re.search(r"retry +exponential -> 1s, 2m", text)
    text = run("group", "pause", "billing", *here, "--until", "30m", "--reason", "backup").out
    assert re.search(r"paused since .* until .*: backup", text)
    run("group", "resume", "billing", *here)
    text = run("group", "configure", "billing", *here, "--set", "retry_delay=1m").out
    assert [line.split(maxsplit=1) for line in text.splitlines() if "->" in line] == [
        ["retry_delay", "5m -> 1m"],
    ]  # fmt: skip
    new = ("group", "configure", "new", *here, "-o", "json")
    assert "--create" in run(*new, "--start", "latest", expect=2).err
    made = run(*new, "--create", "--start", "latest", "--set", "retry_delay=5m").row
    assert (made["group"], made["created"], made["retry_delay"]) == ("new", True, 300.0)
    assert run(*new, "--create", "--start", "earliest").row["created"] is False
    assert queue.group("new").stats().ready == 0
    assert "--yes" in run("group", "drop", "new", *here, expect=2).err
    run("group", "drop", "new", *here, "--yes")
    missing = run("group", "drop", "new", *here, "--yes", expect=3)
    assert "audit, billing" in missing.err
    assert queue.groups() == ["audit", "billing"]


def test_a_seek_changes_nothing_without_execute(run: Run, queue: Queue) -> None:
    here, target = ("-q", queue.path, "-o", "json"), sequence_of(queue, "bad")
    before = queue.group("billing").stats()
    row = run("group", "seek", "billing", "--to-sequence", target, *here).row
    assert (row["position"], row["executed"], row["fenced_leases"]) == (target, False, 1)
    assert (row["skipped"], row["delivered_again"]) == (1, 2)
    assert queue.group("billing").stats().leased == before.leased
    done = run("group", "seek", "billing", "--to-sequence", target, "-y", *here).row
    assert done == {**row, "executed": True}
    assert queue.group("billing").stats().ready == 3
    earliest = run("group", "seek", "billing", "--to-earliest", *here).row
    assert earliest["position"] == sequence_of(queue, "acked")
    assert run("group", "seek", "billing", "--to-datetime", "2020-01-01T00:00:00Z", *here).row
    assert "one of --to-earliest" in run("group", "seek", "billing", *here, expect=2).err
    assert "2020" in run("group", "seek", "billing", "--to-datetime", "2020", *here, expect=2).err


def test_a_group_is_paused_and_resumed(run: Run, queue: Queue) -> None:
    here = ("billing", "-q", queue.path, "-o", "json")
    paused = run("group", "pause", *here, "--reason", "repairs").row
    assert "repairs" in paused["blocked_because"]
    assert queue.group("billing").lease("w") is None
    check = run("check", "-q", queue.path, expect=1)
    assert "repairs" in check.out
    assert run("group", "resume", *here).row["blocked_because"] == ""
    assert queue.group("billing").lease("w").messages[0].value == b"unread"


def test_a_schedule_is_made_listed_paused_resumed_and_removed(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path, "-o", "json")
    rule = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--jitter", "5m")
    more = ("--key", "k", "--header", "a=b", "--priority", "2", "--catch-up", "all")
    made = run("schedule", "add", "nightly", "run", *rule, *more, *here).row
    assert (made["cron"], made["timezone"]) == ("0 2 * * *", "Europe/Berlin")
    assert made["next_at"] is not None
    assert (made["catch_up"], made["jitter"], made["starts_at"]) == ("all", 300, None)
    (one,) = queue.schedules()
    assert (one.value, one.key, one.headers, one.priority) == (b"run", "k", {"a": "b"}, 2)
    assert (one.catch_up, one.jitter) == ("all", timedelta(minutes=5))
    starts = ("--starts-at", "2030-01-01T00:00:00Z")
    run("schedule", "add", "often", "-", "--every", "15m", *starts, *here, stdin="\xff from stdin")
    listed = run("schedule", "list", *here).rows
    assert [row["name"] for row in listed] == ["nightly", "often"]
    assert listed[1]["value"] == "\xff from stdin"
    assert listed[1]["next_at"].startswith("2030-01-01T00:00:00")
    assert "every 15m" in run("schedule", "list", "-q", queue.path).out
    paused = run("schedule", "pause", "nightly", *here, "--reason", "repairs").row
    assert (paused["pause_reason"], paused["next_at"]) == ("repairs", None)
    assert "repairs" in run("schedule", "list", "-q", queue.path).out
    assert run("schedule", "resume", "nightly", *here).row["paused_at"] is None
    assert "--yes" in run("schedule", "remove", "nightly", *here, expect=2).err
    assert run("schedule", "remove", "nightly", "--yes", *here).row["removed"] == "nightly"
    missing = run("schedule", "pause", "oftn", *here, expect=3).err
    assert "Did you mean 'often'?" in missing
    assert f"`spark-mq schedule add oftn -q {queue.path}`" in missing
    wrong = run("schedule", "add", "x", "y", "--cron", "61 * * * *", *here, expect=2).err
    assert "cron='61 * * * *' has the minute '61': give 0 to 59" in wrong
    wrong = run(
        "schedule", "add", "x", "y", "--every", "1h", "--starts-at", "2030", *here, expect=2
    )
    assert "--starts-at" in wrong.err


def test_a_batch_is_published_closed_and_listed(run: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    done = Queue.create(tmp_path / "done", durable=False)
    queue.group("g").ensure()
    here = ("-q", queue.path, "-o", "json")
    publish = ("publish", "--batch-id", "import-7", *here)
    assert run(*publish, stdin="1\n2\n").row["published"] == 2
    assert "there is no consumer group 'gg'" in (
        run("close-batch", "import-7", "--to", done.path, "--group", "gg", *here, expect=3).err
    )
    closed = run("close-batch", "import-7", "--to", done.path, "--group", "g", *here).row
    assert (closed["state"], closed["messages"], closed["groups"]) == ("closed", 2, ["g"])
    assert "is closed" in run(*publish, stdin="3\n", expect=1).err
    (one,) = run("queue", "describe", queue.path, "batches", "-o", "json").rows
    assert (one["name"], one["settled"], one["to"]) == ("import-7", 0, done.path)
    assert "import-7" in run("queue", "describe", queue.path, "batches").out
    while (lease := queue.group("g").lease("w")) is not None:
        lease.ack()
    assert run("sweep", *here).row["completed_batches"] == 1
    (message,) = done.peek()
    assert message.headers["spark_mq.batch_id"] == "import-7"


def test_a_blocked_group_is_unblocked(run: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    group = queue.group("g")
    group.configure(max_delivery_attempts=1, on_max_deliveries="block")
    queue.publish(["poison", "next"])
    group.lease("w").nack(error="broken")
    check = run("check", "-q", queue.path, expect=1)
    assert "blocked" in check.out
    resolve = ("group", "resolve", "g", "--blocked", "-q", queue.path, "-o", "json")
    assert "--yes" in run(*resolve, "--to", "discard", expect=2).err
    assert "--blocked" in run(*resolve, "--to", "retry", "--key", "x", expect=2).err
    assert run(*resolve, "--to", "retry").row == {"group": "g", "retried": 1}
    assert run("check", "-q", queue.path).out == "healthy\n"


def test_lines_are_published_from_files_and_stdin(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    (tmp_path / "lines.jsonl").write_text('{"id": "1", "n": 1}\n\n{"id": "2"}\n')
    done = run("publish", "-q", path, "--create", "--key-field", "id", "lines.jsonl", "-",
               stdin='{"id": 3}', SPARK_MQ_OUTPUT="json")  # fmt: skip
    assert done.row == {"queue": str(path), "published": 3, "duplicates": 0, "skipped_lines": 0}
    queue = Queue.open(path)
    found = [(one.key, one.value) for one in queue.peek()]
    assert found == [("1", b'{"id": "1", "n": 1}'), ("2", b'{"id": "2"}'), ("3", b'{"id": 3}')]
    bad = run("publish", "-q", path, stdin='{"id": 4}\nnot json\n', expect=2)
    assert "stdin:2 is not JSON" in bad.err
    assert queue.stats()["published"] == 3
    run("publish", "-q", path, "--raw", stdin="not json\n")
    assert (
        "no field 'id'" in run("publish", "-q", path, "--id-field", "id", stdin="{}", expect=2).err
    )
    assert "none.jsonl" in run("publish", "-q", path, "none.jsonl", expect=2).err
    assert [one.value for one in queue.peek(after=queue.peek()[2].sequence)] == [b"not json"]


def test_a_repeated_publish_of_a_producer_goes_on_behind_its_last_line(
    run: Run, tmp_path: Path
) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    first = ("publish", "-q", queue.path, "--producer-id", "day1", "-o", "json")
    assert run(*first, stdin="1\n2\n").row["published"] == 2
    again = run(*first, stdin="1\n2\n3\n").row
    assert (again["published"], again["skipped_lines"]) == (1, 2)
    assert [one.value for one in queue.peek()] == [b"1", b"2", b"3"]


def test_what_peek_prints_can_be_published_again(run: Run, queue: Queue, tmp_path: Path) -> None:
    queue.publish(Message(b"\xff\x00", headers={"kind": "odd"}))
    shown = run("peek", "-q", queue.path, "-o", "json").out
    run("publish", "-q", tmp_path / "copy", "--create", "--envelope", stdin=shown)
    copy = Queue.open(tmp_path / "copy").peek()
    original = queue.peek()
    assert [one.value for one in copy] == [one.value for one in original]
    assert [one.message_id for one in copy] == [one.message_id for one in original]
    assert copy[-1].headers == {"kind": "odd"}


def test_messages_are_changed_without_a_lease(run: Run, queue: Queue) -> None:
    def change(how: str, *words: object, **more: Any) -> Done:
        here = ("-q", queue.path, "-o", "json")
        return run("group", "resolve", "billing", *words, "--to", how, *here, **more)

    def state(name: str) -> str:
        (found,) = queue.group("billing").peek(message_id=f"id-{name}")
        return found.state

    assert change("retry", sequence_of(queue, "nacked")).row["retried"] == 1
    assert state("nacked") == "ready"
    assert change("retry", "--key", "key-bad").row["retried"] == 1
    assert state("bad") == "ready"
    assert "--yes" in change("discard", "--message-id", "id-unread", expect=2).err
    assert "--message-id" in change("discard", "--yes", expect=2).err
    held = change("discard", sequence_of(queue, "leased"), "--yes", expect=1).err
    assert "use force=True (--force)" in held
    here = (sequence_of(queue, "leased"), sequence_of(queue, "unread"), "--reason", "a test")
    assert change("discard", *here, "--force", "--yes").row["discarded"] == 2
    assert (state("leased"), state("unread")) == ("settled", "settled")
    log = Path(queue.path, "leases", "_delta_log")
    assert "a test" in max(log.glob("*.json")).read_text()
    ids = ("--message-id", "id-bad", "--message-id", "id-nacked", "--reason", "of no use")
    assert change("dead_letter", *ids, "--yes").row["dead"] == 2
    assert (state("bad"), state("nacked")) == ("dead", "dead")
    assert {one.error for one in queue.group("billing").last_errors()} == {"of no use"}
    assert change("discard", 12, "--yes", expect=2)
    assert run("group", "resolve", "none", 12, "--to", "discard", "-y", "-q", queue.path, expect=3)


def test_dead_letters_are_repaired_by_sql_or_a_function(
    run: Run, queue: Queue, tmp_path: Path
) -> None:
    here = ("-q", queue.path)
    run("sweep", *here)
    sql = "CAST(value AS TEXT) || ' no more'"
    trial = run("dlq", "redrive", *here, "--transform", sql, "--dry-run")
    assert "1 would be redriven (1 to group billing). The transform fails for 0" in trial.err
    assert trial.out.splitlines()[1].split()[-5:-1] == ["bad", "bad", "no", "more"]
    assert (
        "its values are INTEGER"
        in run("dlq", "redrive", *here, "--transform", "7", "-y", expect=2).err
    )
    assert "--transform" in run("dlq", "redrive", *here, "--transform", "no:f", "-y", expect=2).err
    file = tmp_path / "repairs.py"
    file.write_text("def f(m): raise ValueError(m.key)\ndef g(m): return m.value.upper()\n")
    words = ("dlq", "redrive", *here, "--transform", f"{file}:f", "-y", "-o", "json")
    failed = run(*words, expect=1).row
    assert (failed["redriven"], failed["failed"]) == (0, 1)
    assert failed["failures"] == {"ValueError: key-bad": 1}
    (file.parent / "shapes.py").write_text(
        "from spark_mq.integrations.formats import Json\nORDER = Json()\n"
    )
    checked = (*here, "--transform", f"{file}:g", "--format", f"{file.parent}/shapes.py:ORDER")
    trial = run("dlq", "redrive", *checked, "--dry-run")
    assert "0 would be redriven. The transform fails for 1" in trial.err
    assert (
        "1 letter: the format refuses it: not JSON: Expecting value at character <n>" in trial.err
    )
    assert run("dlq", "redrive", *checked, "-y", "-o", "json", expect=1).row["failed"] == 1
    wrong = run("dlq", "redrive", *checked[:-1], f"{file}:g", "-y", expect=2)
    assert "format='g' cannot encode and decode" in wrong.err
    assert "has no format 'no'" in run("dlq", "redrive", *checked[:-1], f"{file}:no", expect=2).err
    done = run("dlq", "redrive", *here, "--transform", f"{file}:g", "-y", "-o", "json").row
    assert (done["redriven"], done["failed"]) == (1, 0)
    assert queue.peek(message_id="id-bad")[-1].value == b"BAD"


def test_dead_letters_are_listed_shown_and_redriven(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path)
    assert run("dlq", "list", *here, "-o", "json").rows == []
    unswept = run("dlq", "failures", *here).err
    assert "not among these: 1 dead message waiting for a sweep" in unswept
    assert (
        "1 dead message (1 waiting for a sweep)"
        in run("check", *here, "--max-dead", 0, expect=1).out
    )
    assert run("sweep", *here, "-o", "json").row["routed"] == 1
    assert "waiting for a sweep" not in run("dlq", "failures", *here).err
    (letter,) = run("dlq", "list", *here, "-o", "json").rows
    assert (letter["value"], letter["error"], letter["consumer_group"]) == ("bad", "bad", "billing")
    (failure,) = run("dlq", "failures", *here, "-o", "json").rows
    assert (failure["shape"], failure["messages"]) == ("bad", 1)
    assert run("dlq", "list", *here, "--where", failure["where"], "-o", "json").row == letter
    heads, cells = run("dlq", "failures", *here).out.splitlines()
    assert heads.split()[:4] == ["LETTERS", "GROUP", "REASON", "FAILURE"]
    assert "key-bad (1)" in cells
    shown = run("dlq", "list", letter["dead_letter_sequence"], *here)
    assert "key-bad" in shown.out
    assert "no dead letter" in run("dlq", "list", 1, *here, expect=3).err
    assert "--message-id id-bad" in run("dlq", "list", "id-bad", *here, expect=2).err
    assert run("dlq", "list", "--message-id", "id-bad", *here).out == shown.out
    assert "no dead letter" in run("dlq", "list", "--message-id", "it's", *here, expect=3).err
    table = run("dlq", "list", *here, "--where", "message_id IN ('id-bad', 'x')").out.splitlines()
    assert table[0].split()[:3] == ["LETTER", "SEQUENCE", "ID"]
    assert table[1].split()[1:3] == [str(letter["sequence"]), "id-bad"]
    by_sequence = f"sequence IN ({letter['sequence']}, 7)"
    assert run("dlq", "list", *here, "--where", by_sequence, "-o", "json").row == letter
    trial = run("dlq", "redrive", *here, "--dry-run", "-o", "json")
    assert trial.rows == [letter]
    assert "1 would be redriven (1 to group billing)" in trial.err
    asked = run("dlq", "redrive", *here, expect=2).err
    assert "Redrive 1 dead letter of this queue (1 to group billing)?" in asked
    assert "--yes" in asked
    wrong = run("dlq", "redrive", *here, "--where", "nope = 1", "--yes", expect=2)
    assert "nope" in wrong.err
    untyped = run("dlq", "redrive", *here, "--where", "key = 7", "--dry-run", expect=2).err
    assert "ConversionException" in untyped
    none = run("dlq", "redrive", *here, "--where", "reason = 'other'", "-y", "-o", "json")
    assert none.row["redriven"] == 0
    done = run("dlq", "redrive", *here, "--where", "reason = 'rejected'", "-y", "-o", "json")
    assert done.row["redriven"] == 1
    assert run("dlq", "list", *here, "-o", "json").rows == []
    assert [one.value for one in queue.peek(message_id="id-bad")] == [b"bad"] * 2


def test_dead_letters_are_discarded_after_a_count(run: Run, queue: Queue) -> None:
    here = ("-q", queue.path)
    run("sweep", *here)
    where = ("--where", "error = 'bad'")
    counted = run("dlq", "discard", *here, *where, "--dry-run", "-o", "json").row
    assert counted == {"group": "billing", "messages": 1}
    asked = run("dlq", "discard", *here, *where, expect=2).err
    assert f"Discard 1 dead letter (1 of group billing) of {queue.path}?" in asked
    assert "--yes" in asked
    assert "--where" in run("dlq", "discard", *here, "-y", expect=2).err
    assert len(run("dlq", "list", *here, "-o", "json").rows) == 1
    none = run("dlq", "discard", *here, "--where", "error = 'other'", "-o", "json").row
    assert none["discarded"] == 0
    assert run("dlq", "discard", *here, *where, "-y", "-o", "json").row["discarded"] == 1
    assert run("dlq", "list", *here, "-o", "json").rows == []
    assert run("dlq", "redrive", *here, "-y", "-o", "json").row["redriven"] == 0


def test_work_calls_a_function_until_the_queue_is_empty(
    run: Run, queue: Queue, handlers: str
) -> None:
    here = ("-q", queue.path, "-g", "new", "--until", "empty", "-o", "json", "--mode", "batch")
    here = (*here, "--max-messages", "10")
    row = run("work", f"{handlers}:picky", *here).row
    assert (row["leases"], row["settled"], row["rejected"]) == (1, 5, 1)
    assert queue.group("new").stats().acked == 4
    own = run("work", "handlers.py:settles", *here, "-g", "own").row
    assert (own["settled"], own["acked"], own["rejected"]) == (5, 4, 1)
    # What a handler says cannot steer a terminal.
    assert "\x1b" not in run("trace", "--message-id", "id-bad", "-q", queue.path).out
    assert run("work", "handlers.py:good", *here, "--heartbeat", "off").row["leases"] == 0
    assert (
        "heartbeat='5s'"
        in run("work", "handlers.py:good", *here, "--heartbeat", "5s", expect=2).err
    )
    for wrong in ("handlers", "handlers:none", "none:good", "none.py:good"):
        assert "cannot be used" in run("work", wrong, *here, expect=2).err


def test_work_creates_no_group_if_asked_so(run: Run, queue: Queue, handlers: str) -> None:
    words = ("work", "handlers:good", "-q", queue.path, "--until", "empty", "--no-create-group")
    assert "'billing'" in run(*words, "-g", "biling", expect=3).err
    assert "biling" not in queue.groups()
    run(*words, "-g", "billing")


def test_work_with_a_wrong_option_creates_no_group(run: Run, queue: Queue, handlers: str) -> None:
    words = ("work", "handlers:good", "-q", queue.path, "-g", "new", "--until", "empty")
    for name, value in (("--on-error", "nak"), ("--ack", "nak"), ("--visibility-timeout", "x")):
        assert value in run(*words, name, value, expect=2).err
        assert "new" not in queue.groups()


def test_work_calls_a_function_for_each_message_until_all_are_settled(
    run: Run, queue: Queue, handlers: str
) -> None:
    words = ("work", "-q", queue.path, "-o", "json")
    how = {"one": ("--threads", 4), "one_async": ("--concurrency", 4)}
    for function, more in how.items():
        group = ("-g", f"new-{function}", "--until", "settled")
        row = run(*words, f"handlers:{function}", *group, *more).row
        assert (row["acked"], row["rejected"]) == (4, 1)
    for wrong in (("--until", "never"), ("--mode", "x")):
        assert wrong[1] in run(*words, "handlers:one", "-g", "not", *wrong, expect=2).err
    assert "not" not in queue.groups()


def test_work_counts_an_exit_of_the_function_as_a_failure(
    run: Run, queue: Queue, handlers: str, tmp_path: Path
) -> None:
    queue.group("new").configure(breaker_threshold=None)
    here = ("-q", queue.path, "-g", "new", "--until", "empty", "-o", "json")
    row = run("work", f"{handlers}:leaves", *here).row
    assert (row["failed"], row["nacked"], row["acked"]) == (5, 5, 0)
    assert queue.group("new").stats().delayed == 5
    error = run(
        "work", "handlers:leaves", *here, "--on-error", "raise", "-g", "other", expect=1
    ).err
    assert "the handler raised SystemExit: 0" in error
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    assert "its import raised SystemExit: 0" in run("work", "leaving:one", *here, expect=2).err


def test_work_that_leaves_messages_exits_with_1_and_the_cause(
    run: Run, queue: Queue, handlers: str
) -> None:
    here = ("-q", queue.path, "-g", "new", "--until", "empty", "-o", "json")
    queue.group("new").pause("migration")
    done = run("work", "handlers:good", *here, expect=1)
    assert "migration" in done.row["blocked_because"]
    assert "migration" in done.err
    assert "Ready: 5 messages" in done.err
    queue.group("new").resume()
    assert run("work", "handlers:good", *here).row["blocked_because"] == ""


@pytest.mark.slow
def test_work_and_sweep_end_cleanly_after_sigterm(
    queue: Queue, handlers: str, tmp_path: Path
) -> None:
    for words in (["work", "handlers:good", "-g", "new"], ["sweep", "--every", "1h"]):
        process = started(*words, "-q", queue.path, "-o", "json", folder=tmp_path)
        if words[0] == "sweep":
            assert json.loads(process.stdout.readline())["archived_commits"] > 0
        else:
            while queue.group("new").ensure().stats().acked < 5:
                assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_sigterm_ends_a_command_whose_thread_holds_the_lock_of_its_event() -> None:
    with no_longer_than(60), stopping() as stop:
        with stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("sweep", "--every", "1s", "-o", "json"), id="sweep"),
        pytest.param(("web", "--port", "0"), id="web"),
        pytest.param(("work", "handlers:good"), id="work", marks=pytest.mark.slow),
    ],
)
def test_many_sigterms_at_random_moments_end_a_command(
    queue: Queue, handlers: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    where = [str(tmp_path)] if words[0] == "web" else ["-q", queue.path]
    process = started("-v", *words, *where, folder=tmp_path)
    said = process.stdout if words[0] == "sweep" else process.stderr
    assert said.readline()
    deadline, pause = time.monotonic() + 60, random.Random(1)
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail("the process waits for itself")
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause.random() / 1_000)
    process.communicate()
    # A signal after the end of the work ends the process as it would any other.
    assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_work_with_130_and_without_a_traceback(
    queue: Queue, handlers: str, tmp_path: Path, presses: int
) -> None:
    words = ("work", "handlers:slow", "--mode", "batch", "-q", queue.path, "-g", "new")
    process = started(*words, folder=tmp_path)
    until((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    assert "waiting up to 30 s for 1 handler: lease " in process.stderr.readline()
    if presses == 1:
        (tmp_path / "go_on").touch()
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    stats = queue.group("new").stats()
    assert (stats.acked, stats.ready, stats.leased) == ((1, 4, 0) if presses == 1 else (0, 5, 0))


def test_top_shows_states_workers_and_errors(run: Run, queue: Queue) -> None:
    text = run("top", "-q", queue.path, "--interval", "10ms").out
    assert "published 5 (0/s)" in text
    billing = next(line for line in text.splitlines() if line.startswith("billing")).split()
    assert billing[6:8] == ["0.0", "0.0"], "ACKED/S and DEAD/S, although the output is a pipe"
    one, two = run("top", "-q", queue.path, "-o", "json", "--count", 2, "--interval", "10ms").rows
    assert one["published_per_second"] is None
    assert two["published_per_second"] == 0
    busiest = two["groups"][0]
    assert (busiest["group"], busiest["acked_per_second"]) == ("billing", 0)
    assert [row["worker_id"] for row in two["workers"]] == ["worker-7"]


def test_idle_workers_are_listed_and_shown_by_top(run: Run, queue: Queue, limits: Limits) -> None:
    limits(heartbeat_look=0.005)
    group = queue.group("audit")
    with working(group, worker_id="idle-1"):
        until(group.workers)
        rows = run("queue", "describe", queue.path, "workers", "-o", "json").rows
        assert [(row["group"], row["worker_id"], row["state"]) for row in rows] == [
            ("audit", "idle-1", "idle"), ("billing", "worker-7", "busy"),
        ]  # fmt: skip
        assert (rows[0]["process_id"], rows[0]["processes"]) == (os.getpid(), 1)
        heads, line = run(
            "group", "describe", "audit", "workers", "-q", queue.path
        ).out.splitlines()
        assert heads.split()[:7] == [
            "WORKER", "GROUP", "STATE", "LEASES", "MESSAGES", "OLDEST", "SEEN",
        ]  # fmt: skip
        assert re.match(r"idle-1 +audit +idle +0 +0 +- +\d+s +1 ", line)
        frame = run("top", "-q", queue.path, "-o", "json", "--count", 1).row
        assert [row["state"] for row in frame["workers"]] == ["busy", "idle"]
        assert re.search(r"^idle-1 +audit +idle ", run("top", "-q", queue.path).out, re.M)
    assert [
        row["worker_id"]
        for row in run("queue", "describe", queue.path, "workers", "-o", "json").rows
    ] == ["worker-7"]


@pytest.mark.slow
def test_a_process_exits_as_its_command_says(process: Run, queue: Queue) -> None:
    assert process("check", "-q", queue.path).out == "healthy\n"
    assert "too_many_dead" in process("check", "-q", queue.path, "--max-dead", 0, expect=1).out
    assert "no consumer" in process("peek", "-q", queue.path, "-g", "none", expect=3).err
    assert "--set" in process("queue", "configure", queue.path, "--set", "x", expect=2).err


def test_check_exits_with_1_and_the_reason(run: Run, queue: Queue) -> None:
    here = ("check", "-q", queue.path)
    assert run(*here).out == "healthy\n"
    done = run(*here, "--max-dead", 0, "--max-age", "1us", "-o", "json", expect=1)
    checks = [problem["check"] for problem in done.row["problems"]]
    assert sorted(checks) == ["too_many_dead", "too_old"]
    assert "too_many_dead" in run(*here, "--max-dead", 0, expect=1).out
    unswept = run(*here, "--max-unswept", "1us", expect=1)
    assert "not swept" in unswept.out
    assert run(*here, "--max-unswept", "none").code == 0


@pytest.mark.slow
def test_metrics_are_what_prometheus_reads(queue: Queue) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    pytest.importorskip("starlette")
    process = started("web", queue.path, "--port", "0")
    address = process.stderr.readline().split()[-1] + "metrics"
    with urlopen(address, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    families = {one.name: one for one in parser.text_string_to_metric_families(text)}
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset({"queue": queue.path, **labels}.items())]

    stats = queue.group("billing").stats()
    for state in ("ready", "delayed", "leased", "dead", "blocked"):
        shown = value("spark_mq_messages", group="billing", state=state)
        assert shown == getattr(stats, state)
    assert value("spark_mq_settled_total", group="audit", outcome="acked") == 5
    assert value("spark_mq_published_total") == 5
    assert value("spark_mq_up") == 1
    assert value("spark_mq_blocked", group="billing") == 0
    assert value("spark_mq_oldest_lease_age_seconds", group="billing") >= 0
    assert families["spark_mq_settled"].type == "counter"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_a_port_in_use_is_refused(run: Run, queue: Queue) -> None:
    pytest.importorskip("starlette")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = run("web", queue.path, "--port", port, expect=2).err
    assert error.startswith(f"spark-mq: error: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in error


def test_peek_follows_messages_and_ends(run: Run, queue: Queue) -> None:
    rows = run("peek", "-f", "-q", queue.path, "--after", "earliest", "-n", 2, "-o", "json").rows
    assert [row["value"] for row in rows] == ["acked", "nacked"]
    after = sequence_of(queue, "leased")
    text = run("peek", "-f", "-q", queue.path, "--after", after, "-n", 1).out
    assert text.split()[-1] == "unread"
    for wrong in ("x", "²", "9" * 5_000):
        assert "--after" in run("peek", "-f", "-q", queue.path, "--after", wrong, expect=2).err


def test_a_few_options_are_read_from_the_environment(run: Run, queue: Queue, handlers: str) -> None:
    where = {"SPARK_MQ_QUEUE": queue.path, "SPARK_MQ_GROUP": "billing"}
    rows = run("peek", "--state", "dead", SPARK_MQ_OUTPUT="json", **where).rows
    assert [row["message_id"] for row in rows] == ["id-bad"]
    run("group", "describe", "audit", SPARK_MQ_QUEUE=queue.path)
    assert run("peek", SPARK_MQ_STORAGE_OPTION="a=b c", expect=2, **where).err.count("'c'") == 1
    work = {"SPARK_MQ_HANDLER": "handlers:one", "SPARK_MQ_MODE": "message",
            "SPARK_MQ_THREADS": "2", "SPARK_MQ_WORKER_ID": "me"}  # fmt: skip
    options = {**work, **where, "SPARK_MQ_GROUP": "new", "SPARK_MQ_VERBOSE": "1"}
    assert "group 'new' is created" in run("work", "--until", "empty", **options).err
    assert re.search(r"\bme\b", run("trace", "--message-id", "id-bad", **where).out)


def environment_variables() -> dict[str, set[str]]:
    """The variables that options and arguments of each command read."""
    return {
        name: {
            parameter.default.envvar
            for parameter in inspect.signature(entry.function()).parameters.values()
        }
        - {None}
        for name, entry in COMMANDS.items()
    }


def test_each_variable_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    table = page.partition("## Environment")[2].partition("## ")[0].partition("| --- |")[2]
    root = {"SPARK_MQ_DEBUG", "SPARK_MQ_VERBOSE", "SPARK_MQ_WEB_PASSWORD", "SPARK_MQ_WEB_TOKEN"}
    read = set().union(*environment_variables().values(), root)
    assert set(re.findall(r"SPARK_MQ_[A-Z_]+", table)) == read


def test_a_variable_is_never_an_argument_of_what_destroys(
    run: Run, queue: Queue, handlers: str
) -> None:
    """`group drop -y` dropped the group of the worker whose variables were set."""
    asking = {
        name
        for name, entry in COMMANDS.items()
        if "yes" in inspect.signature(entry.function()).parameters
    }
    assert asking > {"queue drop", "queue purge", "group drop", "group resolve", "dlq discard"}
    for name in (*asking, "group seek"):
        assert not environment_variables()[name]
    variables = {
        "SPARK_MQ_" + name.upper().replace("-", "_"): value
        for name, value in (("queue", queue.path), ("group", "billing"), ("yes", "1"),
                            ("force", "1"), ("execute", "1"), ("where", "true"))
    }  # fmt: skip
    for words in ("group drop -y", "group drop audit -y", f"group drop audit -q {queue.path}",
                  "queue drop -y", "queue purge -y", "dlq discard -y",
                  "group seek latest"):  # fmt: skip
        run(*words.split(), expect=2, **variables)
    assert Queue.open(queue.path).groups() == queue.groups()


@pytest.mark.slow
def test_the_variables_of_a_kubernetes_service_change_nothing(queue: Queue) -> None:
    pytest.importorskip("starlette")
    process = started("web", queue.path, "--port", "0", SPARK_MQ_PORT="tcp://10.0.0.1:9465")
    assert "listening on" in process.stderr.readline()
    process.terminate()
    assert process.communicate(timeout=60) == ("", "")


@pytest.mark.slow
def test_a_pipe_that_closes_early_is_no_error(queue: Queue) -> None:
    Queue.open(queue.path).publish(["x" * 1000] * 3_000)
    process = started("peek", "-q", queue.path, "-n", "5000", "-o", "json")
    assert json.loads(process.stdout.readline())["value"] == "acked"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()


def test_a_table_in_a_pipe_is_not_cut(run: Run, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / ("long" * 30), durable=False)
    line = run("queue", "list", tmp_path, COLUMNS="40").out.splitlines()[1]
    assert line.startswith(queue.path)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands(shell: str) -> None:
    words = {"COMP_WORDS": "spark-mq queue ", "COMP_CWORD": "2",
             "_TYPER_COMPLETE_ARGS": "spark-mq queue ",
             "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    done = completed(f"complete_{shell}", words)
    assert {"list", "create", "describe", "purge", "drop"} <= set(
        done.replace('"', " ").replace(":", " ").replace("\t", " ").split()
    )


def completed(how: str, words: dict[str, str]) -> str:
    program = (
        "import sys; sys.argv = ['spark-mq']; from spark_mq.interfaces.cli import main; main()"
    )
    return run_program(program, **words, _SPARK_MQ_COMPLETE=how).out


@pytest.mark.slow
def test_completion_offers_the_groups_of_the_queue(queue: Queue) -> None:
    text = f"spark-mq replay --queue {queue.path} --group "
    done = completed("complete_bash", {"COMP_WORDS": text, "COMP_CWORD": "5"})
    assert done.split() == ["audit", "billing"]
    text = f"spark-mq peek --queue {queue.path} --group billing --state d"
    done = completed("complete_bash", {"COMP_WORDS": text, "COMP_CWORD": "7"})
    assert done.split() == ["delayed", "dead"]


def completion_of(text: str) -> list[str]:
    """What bash shows for a line that ends where the cursor is."""
    place = str(len(text.split(" ")) - 1)
    return completed("complete_bash", {"COMP_WORDS": text, "COMP_CWORD": place}).split()


@pytest.mark.slow
def test_completion_offers_queues_and_folders(queue: Queue, tmp_path: Path) -> None:
    Queue.create(tmp_path / "shop" / "returns", durable=False)
    (tmp_path / "shop" / "file").touch()
    (tmp_path / ".hidden").mkdir()
    within = [f"{tmp_path}/orders", f"{tmp_path}/shop/"]
    assert completion_of(f"spark-mq peek -q {tmp_path}/") == within
    assert complete_queues(f"{tmp_path}/") == within
    shop = [f"{tmp_path}/shop/", f"{tmp_path}/shop/returns"]
    assert complete_queues(f"{tmp_path}/s") == shop
    assert complete_queues(f"{tmp_path}/orders/") == [f"{tmp_path}/orders/dead_letters"]
    assert complete_queues("s3://bucket/") == complete_queues(f"{tmp_path}/none/x") == []


@pytest.mark.slow
def test_completion_offers_the_settings_that_a_command_changes() -> None:
    default = settings_of(GroupSettings)["retry_delay"].shown_default
    given = "spark-mq group configure billing -q x --set retry_d"
    assert completion_of(given) == ["retry_delay=", f"retry_delay={default}"]
    assert completion_of("spark-mq queue configure x --set retry_d") == []


@pytest.mark.slow
def test_a_missing_extra_is_named_in_one_line() -> None:
    program = (
        "import sys; sys.modules['typer'] = None; from spark_mq.interfaces.cli import main; main()"
    )
    done = run_program(program)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'spark-mq[cli]'" in done.err


def test_lines_have_dedup_ids_in_a_field_or_an_envelope(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    run("queue", "create", path, "--set", "dedup_until=settled")
    lines = '{"job": "a"}\n{"job": 2}\n{"job": null}\n{"job": "a"}\n'
    done = run("publish", "-q", path, "--dedup-field", "job", "-o", "json", stdin=lines)
    assert (done.row["published"], done.row["duplicates"]) == (3, 1)
    again = '{"value": "x", "dedup_id": "2"}\n{"value": "y", "dedup_id": "b"}\n'
    done = run("publish", "-q", path, "--envelope", "-o", "json", stdin=again)
    assert (done.row["published"], done.row["duplicates"]) == (1, 1)
    assert [one.value for one in Queue.open(path).peek()][-1] == b"y"
    refused = run("publish", "-q", path, "--raw", "--dedup-field", "job", stdin="x", expect=2)
    assert "--dedup-field" in refused.err
    plain = tmp_path / "plain"
    run("queue", "create", plain)
    refused = run("publish", "-q", plain, "--dedup-field", "job", stdin=lines, expect=2)
    assert f"`spark-mq queue configure {plain} --set dedup_window=1h`" in refused.err


@pytest.mark.parametrize(
    ("given", "line", "named"),
    [
        (["--dedup-field", "job"], '{"job": "a"}', "queue create {} --set dedup_window=1h"),
        (["--envelope"], '{"value": "a", "dedup_id": "b"}', "--create"),
        (["--dedup-field", "job"], '{"order": 1}', "has no field 'job'"),
        ([], "no json", "is not JSON"),
        (["--envelope"], '{"value": "a", "priority": 12}', "priority"),
        (["missing.jsonl"], "", "cannot be read"),
    ],
)  # fmt: skip
def test_a_publish_that_is_refused_creates_no_queue(
    run: Run, tmp_path: Path, given: list[str], line: str, named: str
) -> None:
    path = tmp_path / "none"
    refused = run("publish", "-q", path, "--create", *given, stdin=line, expect=2)
    assert named.format(path) in " ".join(refused.err.split())
    assert not path.exists()
    run("publish", "-q", path, "--create", stdin='{"job": "a"}')
    assert [one.value for one in Queue.open(path).peek()] == [b'{"job": "a"}']


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["work", "--threads", "0", "--", "true"],
         "--threads='0' is not valid: give a whole number from 1 on"),
        (["dlq", "redrive", "--rate", "fast"], "--rate='fast' is not valid: give a number"),
        (["web", "--port", "99999"],
         "--port='99999' is not valid: give a whole number from 0 to 65,535"),
        (["publish", "--priority", "x"],
         "--priority='x' is not valid: give a whole number from 0 to 9"),
        (["group", "resolve", "g", "x", "--to", "discard"],
         "SEQUENCES='x' is not a sequence: give a number or VERSION:ROW"),
        (["peek", "--after", "-1"], "--after='-1' is not a sequence: give a number or VERSION:ROW"),
        (["web", "missing/folder"], "PATH='missing/folder' is not there: give a queue"),
        (["web", ".", "--max-unswept", "soon"], "--max-unswept='soon' is not a duration"),
        (["web", ".", "--max-age", "old"], "--max-age='old' is not a duration"),
    ],
)  # fmt: skip
def test_a_value_that_is_wrong_is_refused_in_one_form(
    run: Run, given: list[str], reported: str
) -> None:
    place = [] if given[0] == "web" else ["-q", "none"]
    words = given[:2] if given[0] in ("dlq", "group") else given[:1]
    refused = run(*words, *place, *given[len(words) :], expect=2)
    assert f"spark-mq: error: {reported}" in refused.err
    assert refused.out == ""


def test_a_wrong_value_of_the_environment_names_its_variable(run: Run) -> None:
    refused = run("work", "a:b", "-q", "q", SPARK_MQ_THREADS="x", expect=2)
    assert "SPARK_MQ_THREADS='x' is not valid" in refused.err


def keyed(run: Run, path: Path) -> Queue:
    """Return a queue with lanes and an ordered group, made by commands."""
    run("queue", "create", path, "--lanes", "8")
    run("group", "configure", "billing", "--create", "-q", path)
    assert "key" in run("group", "configure", "billing", "--set", "order=key", "-q", path).out
    lines = [json.dumps({"k": "hot" if n % 2 else f"key-{n}"}) for n in range(20)]
    run("publish", "-q", path, "--key-field", "k", stdin="\n".join(lines))
    run("publish", "-q", path, "--key-field", "k", "--priority", "9", stdin='{"k": "hot"}')
    return Queue.open(path)


def test_top_shows_the_lane_that_holds_back_most(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "keyed"
    queue = keyed(run, path)
    assert "HELD LANE" not in run("top", "-q", path, "--count", "1").out
    queue.group("billing").lease("worker-7", max_messages=1)
    assert "HELD LANE" in run("top", "-q", path, "--count", "1").out
    (held,) = run("top", "-q", path, "--count", "1", "-o", "json").row["held_lanes"]
    assert (held["group"], held["held_by"]) == ("billing", "lease")


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        ("peek --state dead", 2, "--group"),
        ("peek -g none", 3, "audit, billing"),
        ("top orders", 2, "give the queue by -q/--queue"),
        ("trace", 2, "--message-id"),
        ("trace 1:2 --message-id x", 2, "--message-id"),
        ("trace 12", 2, "12"),
        ("trace id-bad", 2, "--message-id id-bad"),
        ("trace --message-id none", 3, "no message has this id"),
        ("trace --now", 2, "--message-id"),
        ("trace --now --message-id none", 3, "no message has this id"),
        ("throughput -g biling", 3, "billing"),
        ("throughput --since never", 2, "never"),
        ("changes -g nobody", 3, "nobody"),
        ("group describe billing lanes", 2, "has no lanes"),
        ("group describe billing lanes", 2, "--lanes 64"),
        ("group describe nope workers", 3, "nope"),
        ("group pause none", 3, "no consumer group"),
    ],
)
def test_a_wrong_call_prints_nothing_and_exits_with_its_code(
    run: Run, queue: Queue, words: str, code: int, reported: str
) -> None:
    refused = run(*words.split(), "-q", queue.path, expect=code)
    assert reported in refused.err
    assert refused.out == ""


def test_an_envelope_may_have_a_priority(run: Run, queue: Queue) -> None:
    lines = ['{"value": "a", "priority": 3}', '{"value": "b"}']
    run("publish", "-q", queue.path, "--envelope", "--priority", "5", stdin="\n".join(lines))
    priorities = {one.value: one.priority for one in queue.peek(20)}
    assert (priorities[b"a"], priorities[b"b"]) == (3, 5)
    bad = run("publish", "-q", queue.path, "--envelope", stdin='{"value": "a", "priority": 10}',
              expect=2)  # fmt: skip
    assert "from 0 to 9" in bad.err
    assert run("publish", "-q", queue.path, "--raw", "--priority", "2", stdin="x").code == 0
    assert {one.value: one.priority for one in queue.peek(20)}[b"x"] == 2


def test_dead_letters_are_redriven_to_another_queue(run: Run, queue: Queue, tmp_path: Path) -> None:
    here, other = ("-q", queue.path), Queue.create(tmp_path / "repairs")
    queue.sweep()
    done = run("dlq", "redrive", *here, "--to", other.path, "--yes", "-o", "json")
    assert (done.row["redriven"], done.row["groups"]) == (1, {})
    assert [one.message_id for one in other.peek()] == ["id-bad"]
    letters = queue.dead_letters.path
    assert "dead-letter queue" in run("dlq", "redrive", *here, "--to", letters, "-y", expect=2).err


def test_a_letter_of_a_dropped_group_goes_to_all_groups_if_asked_for(
    run: Run, queue: Queue
) -> None:
    queue.sweep()
    queue.drop_group("billing")
    here = ("-q", queue.path)
    done = run("dlq", "redrive", *here, "-o", "json", expect=1)  # nothing is asked
    assert (done.row["redriven"], done.row["without_group"]) == (0, {"billing": 1})
    assert "1 letter of groups that do not exist stay: billing (1)" in done.err
    assert "or give to_all_groups=True (--all-groups)" in done.err
    asked = run("dlq", "redrive", "--all-groups", *here, expect=2).err
    assert "Redrive 1 dead letter of this queue to all groups?" in asked
    done = run("dlq", "redrive", "--all-groups", *here, "-y", "-o", "json")
    assert (done.row["redriven"], done.row["groups"]) == (1, {})


def test_ctrl_c_ends_a_redrive_after_the_letters_in_hand(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.sweep()
    real = Queue.redrive

    def interrupted(self: Queue, *, stop: threading.Event, **given: Any) -> Any:
        found = real(self, stop=stop, **given)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(30)
        return found

    monkeypatch.setattr(Queue, "redrive", interrupted)
    ended = run("dlq", "redrive", "-q", queue.path, "--yes", expect=130)
    assert "interrupted. Redriven: 1. Run it again for the rest" in ended.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_to_a_question_changes_nothing_and_is_no_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run_here(["group", "drop", "audit", "-q", queue.path]) == 130
    said = capsys.readouterr().err
    assert said.endswith("spark-mq: nothing was changed\n")
    assert "error" not in said
    assert "audit" in queue.groups()


def test_a_folder_that_is_no_queue_is_not_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "q" / "messages" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    for name in ("q", "table", "none"):
        run("peek", "-q", tmp_path / name, expect=3)
