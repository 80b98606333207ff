"""Bad input is refused at the door: the error names option, value and fix, and nothing has been
changed.
"""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.byte_store import ByteStore
from support.handles import Killed, contents, die, lease, leased
from support.queues import Make
from support.tables import ledgers_of, messages_of

from spark_mq import Queue, errors

VALUES = pa.schema([("value", pa.binary())])


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    """A queue with a message published, and one leased by "w"."""
    queue = delta_queue()
    leased(queue, "a", "b", count=1)
    return queue


Refused = Callable[..., Any]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Return the error of a call that must fail without changing a file.

    Its message has the expected words.
    """

    def error_of(kind: type[Exception], call: Callable[[], Any], *reported: str) -> Any:
        before = contents(tmp_path)
        with pytest.raises(kind) as caught:
            call()
        assert contents(tmp_path) == before
        for part in reported:
            assert part in str(caught.value)
        return caught.value

    return error_of


# -- the path


def test_a_queue_is_opened_or_created_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"use Queue\.open\(path\) or Queue\.create\(path\)"):
        Queue(str(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [Queue.open, Queue.create])
def test_a_path_that_is_another_delta_table(
    refused: Refused, tmp_path: Path, call: Callable[..., Any]
) -> None:
    write_deltalake(tmp_path, pa.table({"x": [1]}))
    reported = ("itself a Delta table", "path of its own")
    error = refused(errors.NotAQueue, lambda: call(tmp_path), *reported)
    assert error.path == str(tmp_path)


@pytest.mark.parametrize("call", [Queue.open, Queue.create, lambda at: Queue.drop_at(at, at.name)])
@pytest.mark.parametrize("description", [None, "mine", '{"format": "other"}', "[1]"])
def test_messages_of_somebody_else(
    refused: Refused, tmp_path: Path, description: str | None, call: Callable[..., Any]
) -> None:
    DeltaTable.create(tmp_path / "messages", VALUES, description=description)
    refused(errors.NotAQueue, lambda: call(tmp_path), "messages", "not one of a queue")


def test_leases_of_somebody_else(refused: Refused, queue: Queue) -> None:
    shutil.rmtree(ledgers_of(queue).path)
    DeltaTable.create(ledgers_of(queue).path, pa.schema([("x", pa.int64())]), description="mine")
    refused(errors.NotAQueue, lambda: Queue.open(queue.path), "leases/")
    refused(errors.QueueExists, lambda: Queue.create(queue.path))


def test_dead_letters_of_somebody_else(refused: Refused, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "theirs" / "messages", pa.table({"x": [1]}))
    queue = Queue.create(tmp_path / "q", dead_letter_path=tmp_path / "theirs")
    refused(errors.NotAQueue, lambda: queue.dead_letters, "theirs")


def test_a_queue_of_a_later_version(refused: Refused, tmp_path: Path) -> None:
    DeltaTable.create(
        tmp_path / "messages",
        VALUES,
        description=json.dumps({"format": "spark_mq queue", "format_version": 99}),
    )
    refused(errors.UnsupportedTable, lambda: Queue.open(tmp_path), "99", "update spark_mq")


@pytest.mark.parametrize(
    "died_before", ["messages", "leases", "dead_letters/messages", "dead_letters/leases"]
)
def test_a_half_made_queue_is_finished_by_making_it_again(
    refused: Refused, tmp_path: Path, byte_store: ByteStore, died_before: str
) -> None:
    path = tmp_path / "q"
    byte_store.inject("create", of=f"q/{died_before}", before=die)
    with pytest.raises(Killed):
        Queue.create(path, visibility_timeout="7s")
    if died_before == "messages":
        error = refused(errors.QueueNotFound, lambda: Queue.open(path), str(path), "Queue.create")
        assert isinstance(error, LookupError)
    elif died_before == "leases":
        other = "visibility_timeout=7s, not 1m"
        refused(errors.QueueExists, lambda: Queue.create(path), other)
    else:
        assert Queue.open(path).settings.group.visibility_timeout == timedelta(seconds=7)
    exist_ok = died_before.startswith("dead")
    queue = Queue.create(path, visibility_timeout="7s", exist_ok=exist_ok)
    assert queue.settings.group.visibility_timeout == timedelta(seconds=7)
    leased(queue, "a").ack()
    queue.dead_letters.publish("b")


def test_a_folder_with_other_files_is_not_made_a_queue(refused: Refused, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".hidden").touch()  # what a file system leaves everywhere is no hindrance
    Queue.create(mine, dead_letter_path=tmp_path / "dead")
    (mine / "report.csv").touch()
    Queue.create(mine, exist_ok=True)  # a queue that is there stays one
    for name in "abcd":
        (tmp_path / f"{name}.csv").touch()
    reported = (str(tmp_path), "a.csv, b.csv, c.csv and 2 more", "folder of its own")
    refused(errors.NotAQueue, lambda: Queue.create(tmp_path, exist_ok=True), *reported)


# -- tables that were changed under the queue


def test_messages_gone(refused: Refused, queue: Queue) -> None:
    shutil.rmtree(messages_of(queue).path)
    refused(errors.QueueNotFound, lambda: Queue.open(queue.path))
    refused(errors.NotAQueue, lambda: Queue.create(queue.path), "leases/", "no messages/")
    with pytest.raises(errors.NotAQueue, match="there is no longer a Delta table"):
        queue.publish("x")


def test_messages_made_anew(refused: Refused, queue: Queue) -> None:
    """Old ledgers over a new log: sequences would mean other messages."""
    path = messages_of(queue).path
    schema, known = DeltaTable(path).schema(), DeltaTable(path).metadata()
    shutil.rmtree(path)
    DeltaTable.create(
        path, schema, description=known.description, configuration=known.configuration
    )
    refused(errors.NotAQueue, lambda: Queue.open(queue.path), "another messages/ table")


def test_a_queue_made_anew_under_a_handle(refused: Refused, queue: Queue) -> None:
    held = queue.group().lease("w")
    shutil.rmtree(queue.path)
    fresh = Queue.create(queue.path)
    for _ in range(5):
        leased(fresh, "x", count=1)
    for call in (held.ack, lambda: queue.group().lease("w")):
        refused(errors.NotAQueue, call, "created again after", "Open the queue again")


# -- secrets

SECRET = "s3cr3t-never-reported"


def test_secrets_are_never_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"AWS_SECRET_ACCESS_KEY": SECRET, "azure_storage_account_key": SECRET}
    queue = Queue.create(tmp_path / "q", storage_options=options)
    queue.publish("a")
    shown = (
        *(queue, queue.group(), lease(queue), queue.dead_letters, queue.stats()),
        *(messages_of(queue), ledgers_of(queue)),
    )

    def publish_without_a_log() -> None:
        shutil.rmtree(messages_of(queue).path)
        queue.publish("b")

    no_url = {**options, "AWS_ENDPOINT_URL": "no url"}
    calls: list[Callable[[], Any]] = [
        lambda: Queue.create(tmp_path / "q", storage_options=options),
        lambda: Queue.open(tmp_path / "none", storage_options=options),
        lambda: queue.publish([None]),
        lambda: queue.group().ack("x"),
        lambda: Queue.open("nonsense://bucket/q", storage_options=options),
        lambda: Queue.create("s3://no-such-bucket/q", storage_options=no_url),
        publish_without_a_log,
    ]
    reported = [repr(thing) + str(thing) for thing in shown]
    for call in calls:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - any error
            call()
        error = caught.value
        reported += [repr(error), str(getattr(error, "data", ""))]
        reported += traceback.format_exception(error)
    assert not [text for text in (*reported, caplog.text) if SECRET in text]
