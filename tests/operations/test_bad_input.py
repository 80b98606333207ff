"""Bad input is refused at the door: the error names option, value and fix, and nothing has been
changed.
"""

from __future__ import annotations

import json
import math
import shutil
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.byte_store import ByteStore
from support.handles import Killed, again, die, lease
from support.tables import context_of, ledgers_of, messages_of

from spark_mq import Message, Queue, errors
from spark_mq.parquet.schema import MESSAGE_SCHEMA
from spark_mq.storage.message_table import MessageTable
from spark_mq.testing import ManualClock, memory_queue

Make = Callable[..., Queue]

AWARE = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)


@pytest.fixture
def queue(delta_queue: Make) -> Queue:
    """A queue with a message published, and one leased by "w"."""
    queue = delta_queue()
    queue.publish(["a", "b"])
    lease(queue, 1)
    return queue


def contents(root: Path | str) -> dict[str, int]:
    """Every file under a path with its size: a commit, or a data file left behind, would show."""
    return {
        str(file): file.stat().st_size for file in sorted(Path(root).rglob("*")) if file.is_file()
    }


Refused = Callable[..., Any]
Check = Callable[..., None]


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


@pytest.fixture
def bad(refused: Refused) -> Check:
    """Check that a call refuses the value of an option, and that the error names both."""

    def check(option: str, value: Any, call: Callable[[], Any], *reported: str) -> None:
        error = refused(errors.InvalidOption, call, *reported)
        assert error.option == option
        assert error.value is value or error.value == value
        assert f"{option}={value!r}" in str(error)
        assert isinstance(error, ValueError)

    return check


# -- the path


def test_a_queue_is_opened_or_created_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"use Queue\.open\(path\) or Queue\.create\(path\)"):
        Queue(str(tmp_path))  # type: ignore[arg-type]


def test_a_path_without_a_queue(refused: Refused, tmp_path: Path) -> None:
    error = refused(
        errors.QueueNotFound,
        lambda: Queue.open(tmp_path / "q"),
        str(tmp_path / "q"),
        "Queue.create",
    )
    assert error.path == str(tmp_path / "q")
    assert isinstance(error, LookupError)


def test_a_queue_that_is_there_already(refused: Refused, queue: Queue) -> None:
    error = refused(
        errors.QueueExists,
        lambda: Queue.create(queue.path),
        queue.path,
        "Queue.open",
        "exist_ok=True",
    )
    assert error.path == queue.path
    assert Queue.create(queue.path, exist_ok=True).stats()["published"] == 2


def test_a_path_that_is_another_delta_table(refused: Refused, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"x": [1]}))
    for call in (Queue.open, Queue.create):
        error = refused(
            errors.NotAQueue,
            lambda call=call: call(tmp_path / "t"),
            "itself a Delta table",
            "path of its own",
        )
        assert error.path == str(tmp_path / "t")


@pytest.mark.parametrize("description", [None, "mine", '{"format": "other"}', "[1]"])
def test_messages_of_somebody_else(
    refused: Refused, tmp_path: Path, description: str | None
) -> None:
    DeltaTable.create(tmp_path / "q" / "messages", MESSAGE_SCHEMA, description=description)
    refused(errors.NotAQueue, lambda: Queue.open(tmp_path / "q"), "messages", "not one of a queue")
    refused(
        errors.NotAQueue, lambda: Queue.create(tmp_path / "q"), "messages", "not one of a queue"
    )


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
        MESSAGE_SCHEMA,
        description=json.dumps({"format": "spark_mq queue", "format_version": 99}),
    )
    refused(errors.UnsupportedTable, lambda: Queue.open(tmp_path), "99", "update spark_mq")


@pytest.mark.parametrize(
    "died_before", ["messages", "leases", "dead_letters/messages", "dead_letters/leases"]
)
def test_a_half_made_queue_is_finished_by_making_it_again(
    refused: Refused, tmp_path: Path, byte_store: ByteStore, died_before: str
) -> None:
    byte_store.inject("create", of=f"q/{died_before}", before=die)
    with pytest.raises(Killed):
        Queue.create(tmp_path / "q", visibility_timeout="7s")
    if died_before == "messages":
        refused(errors.QueueNotFound, lambda: Queue.open(tmp_path / "q"))
    elif died_before == "leases":
        refused(
            errors.QueueExists,
            lambda: Queue.create(tmp_path / "q"),
            "visibility_timeout=7s, not 1m",
        )
    else:
        assert Queue.open(tmp_path / "q").settings.group.visibility_timeout == timedelta(seconds=7)
    queue = Queue.create(
        tmp_path / "q", visibility_timeout="7s", exist_ok=died_before.startswith("dead")
    )
    assert queue.settings.group.visibility_timeout == timedelta(seconds=7)
    queue.publish("a")
    lease(queue).ack()
    queue.dead_letters.publish("b")


def test_a_folder_with_other_files_is_not_made_a_queue(refused: Refused, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".hidden").touch()
    Queue.create(mine, dead_letter_path=tmp_path / "dead").publish(
        "a"
    )  # what a file system leaves everywhere is no hindrance
    (mine / "report.csv").touch()
    assert Queue.create(mine, exist_ok=True).stats()["published"] == 1, (
        "a queue that is there stays one"
    )
    for name in ("a.csv", "b.csv", "c.csv", "d.csv"):
        (tmp_path / name).touch()
    reported = ("a.csv, b.csv, c.csv and 2 more", "folder of its own")
    error = refused(
        errors.NotAQueue, lambda: Queue.create(tmp_path, exist_ok=True), str(tmp_path), *reported
    )
    assert error.path == str(tmp_path)


def test_a_dead_letter_path_that_is_the_queue(refused: Refused, tmp_path: Path) -> None:
    error = refused(
        errors.InvalidOption,
        lambda: Queue.create(tmp_path / "q", dead_letter_path=tmp_path / "q"),
        "dead_letter_path",
        "itself",
    )
    assert error.option == "dead_letter_path"


# -- tables that were changed under the queue


def test_messages_gone(refused: Refused, queue: Queue) -> None:
    shutil.rmtree(messages_of(queue).path)
    refused(errors.QueueNotFound, lambda: Queue.open(queue.path))
    refused(errors.NotAQueue, lambda: Queue.create(queue.path), "leases/", "no messages/")
    with pytest.raises(errors.NotAQueue, match="there is no longer a Delta table"):
        queue.publish("x")


def test_messages_made_anew(refused: Refused, queue: Queue) -> None:
    """Old ledgers over a new log: sequences would mean other messages."""
    held = again(queue)
    held.stats()
    shutil.rmtree(messages_of(queue).path)
    MessageTable(messages_of(queue).path).create(context_of(queue).settings.to_json())
    refused(errors.NotAQueue, lambda: Queue.open(queue.path), "another messages/ table")
    with pytest.raises(errors.NotAQueue, match="created again after"):
        held.publish("x")
    assert DeltaTable(messages_of(queue).path).version() == 0


def test_a_queue_made_anew_under_a_handle(refused: Refused, queue: Queue) -> None:
    held = queue.group()
    lease_id = held.lease("w").lease_id
    shutil.rmtree(queue.path)
    fresh = Queue.create(queue.path)
    for _ in range(5):
        fresh.publish("x")
        lease(fresh, 1)
    refused(
        errors.NotAQueue, lambda: held.ack(lease_id), "created again after", "Open the queue again"
    )
    refused(errors.NotAQueue, lambda: held.lease("w"), "created again after")


@pytest.mark.parametrize("table", ["messages", "leases"])
@pytest.mark.parametrize(
    ("protocol", "feature"),
    [
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            },
            "deletionVectors",
        ),
        ({"minReaderVersion": 2, "minWriterVersion": 5}, "columnMapping"),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, "changeDataFeed"),
        (
            {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": ["rowTracking", "domainMetadata", "appendOnly"],
            },
            "rowTracking",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]},
            "inCommitTimestamp",
        ),
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["notYetInvented"],
                "writerFeatures": ["notYetInvented"],
            },
            "notYetInvented",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_with_features_that_an_engine_cannot_handle(
    refused: Refused, queue: Queue, table: str, protocol: dict[str, Any], feature: str
) -> None:
    path = Path(queue.path, table)
    version = DeltaTable(path).version() + 1
    commit = path / "_delta_log" / f"{version:020d}.json"
    commit.write_text(
        json.dumps({"commitInfo": {"timestamp": 0, "operation": "UPGRADE"}})
        + "\n"
        + json.dumps({"protocol": protocol})
        + "\n"
    )
    error = refused(errors.UnsupportedTable, lambda: Queue.open(queue.path), str(path), feature)
    assert error.path == str(path)


def test_a_commit_that_is_not_readable_names_itself(refused: Refused, queue: Queue) -> None:
    queue.publish("c")
    broken = Path(messages_of(queue).path, "_delta_log", f"{1:020d}.json")
    broken.write_text('{"add": ')
    error = refused(
        errors.CorruptLog, MessageTable(messages_of(queue).path).index, "commit 1", "backup"
    )
    assert error.version == 1


def test_a_commit_that_is_gone_names_itself(refused: Refused, queue: Queue) -> None:
    queue.publish("c")
    DeltaTable(messages_of(queue).path).create_checkpoint()
    Path(messages_of(queue).path, "_delta_log", f"{1:020d}.json").unlink()
    error = refused(errors.CorruptLog, lambda: again(queue).stats(), "commit 1", "gone", "backup")
    assert (error.path, error.version) == (messages_of(queue).path, 1)


# -- settings

HUGE = "1" + "0" * 30
BAD_DURATIONS = [
    -1,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    None,
    "",
    "soon",
    "-5s",
    "5 parsecs",
    "5s 3m",
    HUGE,
    10**30,
    [],
    timedelta(-1),
]
BAD_COUNTS = [0, -1, 1.5, math.nan, math.inf, True, False, "", "many", "1.5", [], 10**30]


@pytest.mark.parametrize("value", [*BAD_DURATIONS, 0, "0s"], ids=repr)
def test_bad_visibility_timeouts(bad: Check, tmp_path: Path, queue: Queue, value: Any) -> None:
    bad(
        "visibility_timeout",
        value,
        lambda: Queue.create(tmp_path / "n", visibility_timeout=value),
        "'30s'",
    )
    bad("visibility_timeout", value, lambda: memory_queue(visibility_timeout=value))
    if value is not None:
        group = queue.group()
        bad("visibility_timeout", value, lambda: group.lease("w", visibility_timeout=value))
        bad("timeout", value, lambda: group.extend("x", value))


@pytest.mark.parametrize("option", ["retention", "clock_skew", "retry_delay", "max_retry_delay"])
@pytest.mark.parametrize("value", BAD_DURATIONS, ids=repr)
def test_bad_durations(bad: Check, tmp_path: Path, option: str, value: Any) -> None:
    bad(option, value, lambda: Queue.create(tmp_path / "q", **{option: value}), "zero or more")


@pytest.mark.parametrize("value", [value for value in BAD_DURATIONS if value is not None], ids=repr)
def test_bad_delays_and_waits(bad: Check, queue: Queue, value: Any) -> None:
    group = queue.group()
    bad("delay", value, lambda: group.nack("x", delay=value))
    bad("wait", value, lambda: group.lease("w", wait=value))


@pytest.mark.parametrize("option", ["max_delivery_attempts", "max_in_flight", "max_tracked_ranges"])
@pytest.mark.parametrize("value", BAD_COUNTS, ids=repr)
def test_bad_limits(bad: Check, tmp_path: Path, option: str, value: Any) -> None:
    bad(option, value, lambda: Queue.create(tmp_path / "q", **{option: value}), "whole number")


@pytest.mark.parametrize("value", [*BAD_COUNTS, 2**31, "10"], ids=repr)
def test_bad_batch_sizes(bad: Check, queue: Queue, value: Any) -> None:
    group = queue.group()
    bad("max_messages", value, lambda: group.lease("w", max_messages=value), "1 to")
    bad("max_messages", value, lambda: group.work(print, max_messages=value, until="empty"), "1 to")
    bad("max_messages", value, lambda: queue.publisher(max_messages=value), "1 to")


def test_an_unknown_setting_is_named_with_a_hint(refused: Refused, tmp_path: Path) -> None:
    error = refused(
        errors.InvalidOption,
        lambda: Queue.create(tmp_path / "q", max_inflight=3),
        "'max_inflight'",
        "'max_in_flight'",
    )
    assert (error.option, error.value) == ("max_inflight", 3)


BAD_NAMES = [
    "",
    " ",
    "a b",
    "a/b",
    "ä",
    "a'b",
    "a\n",
    "x" * 129,
    "__horizon",
    "__x",
    None,
    5,
    b"w",
    True,
]


@pytest.mark.parametrize("value", BAD_NAMES, ids=repr)
def test_bad_names(bad: Check, queue: Queue, value: Any) -> None:
    bad("group", value, lambda: queue.group(value), "letters")
    if value is not None:  # the default
        bad("worker_id", value, lambda: queue.group().lease(value))
        publish = lambda: queue.publish("a", producer_id=value, producer_sequence=1)  # noqa: E731
        bad("producer_id", value, publish)


@pytest.mark.parametrize("value", ["a", "A-b_c.9", "x" * 128, "_x", "null", "1"])
def test_good_names(queue: Queue, value: str) -> None:
    assert len(lease(queue, group=value)) == 2
    assert value in queue.groups()
    assert again(queue).group(value).stats().leased == 2


@pytest.mark.parametrize("value", [-1, True, 1.5, "x", math.nan, 2**63, None], ids=repr)
def test_bad_producer_numbers(refused: Refused, queue: Queue, value: Any) -> None:
    error = refused(
        errors.InvalidOption,
        lambda: queue.publish("a", producer_id="p", producer_sequence=value),
        "producer_sequence",
    )
    assert (error.option, error.value) == ("producer_sequence", value)


def test_a_producer_number_needs_its_producer(refused: Refused, queue: Queue) -> None:
    refused(errors.InvalidOption, lambda: queue.publish("a", producer_sequence=1), "go together")


@pytest.mark.parametrize(
    "value",
    [
        "first",
        "",
        "2026-01-31T12:00:00",
        -1,
        True,
        1.5,
        math.nan,
        None,
        b"earliest",
        [],
        AWARE.date(),
    ],
    ids=repr,
)
def test_bad_positions(bad: Check, queue: Queue, value: Any) -> None:
    bad("start", value, lambda: queue.group("g", start=value), "earliest, latest")
    bad("to", value, lambda: queue.group().seek(value))


def test_a_position_beyond_every_sequence(refused: Refused, queue: Queue) -> None:
    refused(errors.InvalidOption, lambda: queue.group("g", start=2**63), str(2**63))
    refused(errors.InvalidOption, lambda: queue.group().seek(2**70))


def test_instants_without_a_time_zone(refused: Refused, queue: Queue, clock: ManualClock) -> None:
    refused(
        errors.InvalidOption, lambda: queue.group("g", start=NAIVE), "time zone", "timezone.utc"
    )
    refused(errors.InvalidOption, lambda: queue.group().seek(NAIVE), "time zone")
    refused(
        errors.InvalidOption, lambda: again(queue, clock=lambda: NAIVE).publish("a"), "time zone"
    )
    with pytest.raises(errors.InvalidOption, match="time zone"):
        clock.set(NAIVE)


# -- publishing


@pytest.mark.parametrize(
    ("messages", "reported"),
    [
        (5, ["int", "bytes, str, Message", "queue.publish(str(value))"]),
        (True, ["bool", "bytes, str, Message"]),
        (None, ["NoneType", "bytes, str, Message", "queue.publish('text')"]),
        ({"order": 1}, ["dict", "bytes, str, Message", "queue.publish(Message.json(value))"]),
        ({}, ["dict", "queue.publish(Message.json(value))"]),
        ({"order": 1}.keys(), ["dict_keys", "queue.publish(sorted(values))"]),
        ({"a", "b"}, ["set", "bytes, str, Message", "queue.publish(sorted(values))"]),
        (frozenset("a"), ["frozenset", "queue.publish(sorted(values))"]),
        (bytearray(b"a"), ["bytearray", "queue.publish(bytes(value))"]),
        (memoryview(b"a"), ["memoryview", "queue.publish(bytes(value))"]),
        (pa.record_batch({"value": ["a"]}), ["RecordBatch", "queue.publish(pyarrow.table(value))"]),
        ([{"order": 1}], ["message 0", "dict", "bytes or str", "Message.json(value)"]),
        ([{"a"}], ["message 0", "set", "bytes or str", "sorted(values)"]),
        (["a", 5.5], ["message 1", "float", "bytes or str", "str(value)"]),
        (Message({"order": 1}), ["message 0", "dict", "bytes or str", "Message.json(value)"]),
        ([None], ["message 0", "NoneType", "bytes or str"]),
        (["a", 5], ["message 1", "int"]),
        ([Message(None)], ["message 0", "NoneType"]),
        ([["a"]], ["message 0", "list"]),
        ({"value": 1}.values(), ["message 0", "int"]),
        (Message("a", key=5), ["message 0", "key", "int"]),
        (Message("a", headers={"a": 1}), ["message 0", "headers"]),
        (Message("a", headers={1: "a"}), ["message 0", "headers"]),
        (Message("a", headers=["a"]), ["message 0", "headers"]),
        (Message("a", message_id=7), ["message 0", "message_id", "int"]),
        (Message("a", deliver_at="soon"), ["message 0", "deliver_at", "time zone", "timedelta"]),
        (Message("a", expires_at=timedelta(days=-1)), ["message 0", "expires_at", "from now"]),
        ("\ud800", ["message 0", "UTF-8"]),
    ],
    ids=repr,
)
def test_bad_messages(refused: Refused, queue: Queue, messages: Any, reported: list[str]) -> None:
    error = refused(errors.InvalidOption, lambda: queue.publish(messages), *reported)
    assert error.option == "messages"


@pytest.mark.parametrize(
    ("messages", "options", "which"),
    [
        (["a", Message("b", deliver_at="10m", expires_at="5m")], {}, "message 1"),
        (Message("a", deliver_at="5m", expires_at="5m"), {}, "message 0"),
        (Message("a", deliver_at=AWARE, expires_at=AWARE), {}, "message 0"),
        (["a", Message("b", expires_at="5m")], {"deliver_at": "10m"}, "message 1"),
        (
            pa.table({"value": ["a"], "deliver_at": [AWARE], "expires_at": [AWARE]}),
            {},
            "message 0",
        ),
    ],
    ids=repr,
)
def test_a_message_that_expires_before_it_is_due(
    refused: Refused, queue: Queue, messages: Any, options: dict[str, Any], which: str
) -> None:
    words = (which, "expires_at", "deliver_at", "Give a later expires_at")
    error = refused(errors.InvalidOption, lambda: queue.publish(messages, **options), *words)
    assert error.option == "expires_at"
    assert error.value is not None


def test_a_buffered_message_that_expires_before_it_is_due(queue: Queue) -> None:
    with queue.publisher() as publisher, pytest.raises(errors.InvalidOption, match="expires_at"):
        publisher.publish(Message("a", deliver_at="10m", expires_at="5m"))


INSTANTS = pa.array([AWARE], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("columns", "column", "reported"),
    [
        ({"body": ["a"]}, "value", ["no column 'value'"]),
        ({"values": ["a"]}, "value", ["no column 'value'", "rename 'values'"]),
        ({"value": [1]}, "value", ["int64", "cast"]),
        ({"value": [{"a": 1}]}, "value", ["struct", "to_json"]),
        ({"value": pa.nulls(1)}, "value", ["null"]),
        ({"value": ["a", None, None]}, "value", ["2 values are null"]),
        ({"value": ["a"], "keys": ["k"]}, "keys", ["'keys'", "did you mean 'key'"]),
        ({"value": ["a"], "zzz": ["k"]}, "zzz", ["'zzz'", "drop it"]),
        ({"value": ["a"], "key": [1]}, "key", ["int64", "string", "cast"]),
        ({"value": ["a"], "headers": ["x"]}, "headers", ["map<string,string>"]),
        ({"value": ["a"], "published_at": ["now"]}, "published_at", ["timestamp"]),
        (
            {"value": ["a"], "published_at": INSTANTS.cast(pa.timestamp("us"))},
            "published_at",
            ["timestamp"],
        ),
        ({"value": ["a"], "deliver_at": ["soon"]}, "deliver_at", ["timestamp"]),
        ({"value": ["a"], "lane": [1]}, "lane", ["not one of a message"]),
        ({"value": ["a"], "sequence": [1]}, "sequence", ["'sequence'"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_tables(
    refused: Refused, queue: Queue, columns: dict[str, Any], column: str, reported: list[str]
) -> None:
    error = refused(errors.InvalidSchema, lambda: queue.publish(pa.table(columns)), *reported)
    assert error.column == column


def test_a_table_with_a_column_twice(refused: Refused, queue: Queue) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    error = refused(errors.InvalidSchema, lambda: queue.publish(table), "'value'", "twice")
    assert error.column == "value"


def test_an_instant_beyond_all_microseconds(refused: Refused, queue: Queue) -> None:
    late = pa.array([2**62], pa.int64()).cast(pa.timestamp("s", "UTC"))
    refused(
        errors.InvalidSchema,
        lambda: queue.publish(pa.table({"value": ["a"], "published_at": late})),
        "published_at",
    )


# -- settling


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "5", True, None, b"1"], ids=repr)
@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
def test_sequences_that_are_none(refused: Refused, queue: Queue, verb: str, value: Any) -> None:
    held = queue.group().lease("w")
    assert held is not None
    for settle in (
        getattr(held, verb),
        lambda sequences: getattr(queue.group(), verb)(held.lease_id, sequences),
    ):
        error = refused(
            errors.InvalidOption,
            lambda settle=settle: settle([held.messages[0].sequence, value]),
            repr(value),
            "sequence",
        )
        assert (error.option, error.value) == ("sequences", value)
    assert held.ack().settled == 1


def test_sequences_that_are_no_collection(refused: Refused, queue: Queue) -> None:
    held = queue.group().lease("w")
    assert held is not None
    error = refused(errors.InvalidOption, lambda: held.ack(held.messages[0].sequence), "list")
    assert error.option == "sequences"


def test_settling_nothing_changes_nothing(tmp_path: Path, queue: Queue) -> None:
    held = queue.group().lease("w")
    assert held is not None
    before = contents(tmp_path)
    assert held.ack([]).settled == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize("lease_id", [None, 5, b"x"], ids=repr)
def test_lease_ids_that_are_none(refused: Refused, queue: Queue, lease_id: Any) -> None:
    for verb in ("ack", "nack", "reject", "release", "extend"):
        error = refused(
            errors.InvalidOption,
            lambda verb=verb: getattr(queue.group(), verb)(lease_id),
            "lease_id",
        )
        assert error.option == "lease_id"


# -- secrets

SECRET = "s3cr3t-never-reported"


def test_secrets_of_storage_options_are_never_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"AWS_SECRET_ACCESS_KEY": SECRET, "azure_storage_account_key": SECRET}
    queue = Queue.create(tmp_path / "q", storage_options=options)
    queue.publish("a")
    held = lease(queue)
    reported = [
        repr(thing) + str(thing)
        for thing in (
            queue,
            queue.group(),
            held,
            messages_of(queue),
            ledgers_of(queue),
            queue.dead_letters,
            queue.stats(),
        )
    ]
    calls: list[Callable[[], Any]] = [
        lambda: Queue.create(tmp_path / "q", storage_options=options),
        lambda: Queue.open(tmp_path / "none", storage_options=options),
        lambda: queue.publish([None]),
        lambda: queue.group().ack("x"),
        lambda: Queue.open("nonsense://bucket/q", storage_options=options),
        lambda: Queue.create(
            "s3://no-such-bucket/q", storage_options={**options, "AWS_ENDPOINT_URL": "no url"}
        ),
    ]
    for call in calls:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - any error
            call()
        reported += [
            repr(caught.value),
            str(getattr(caught.value, "data", "")),
            "".join(traceback.format_exception(caught.value)),
        ]
    shutil.rmtree(messages_of(queue).path)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        queue.publish("b")
    reported += ["".join(traceback.format_exception(caught.value)), caplog.text]
    assert not [text for text in reported if SECRET in text]


def test_payloads_are_not_in_errors_of_the_door(queue: Queue) -> None:
    """What people put into messages is theirs: an error says where, not what."""
    with pytest.raises(errors.InvalidOption) as caught:
        queue.publish(["fine", {"card": "4111"}])
    assert "4111" not in str(caught.value) + repr(caught.value.data)
