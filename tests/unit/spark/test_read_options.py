"""The options of the source and the sink: what they mean for the tasks, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.tables import messages_of

from spark_mq import InvalidOption, InvalidSchema, Message, Queue
from spark_mq.errors import CorruptLog, GroupNotFound, QueueNotFound
from spark_mq.spark import SparkMQDataSource


def read(**options: str) -> Any:
    """Return a batch reader, as Spark makes it."""
    source = SparkMQDataSource({"path": "/q", **options})
    return source.reader(source.schema())  # type: ignore[arg-type]


VALUES = t.StructType().add("value", "binary")


def write(columns: t.StructType = VALUES, **options: str) -> Any:
    """Return the writer of a DataFrame, as Spark makes it."""
    return SparkMQDataSource({"path": "/q", **options}).writer(columns, False)


def stream(**options: str) -> Any:
    """Return the reader of a stream, as Spark makes it."""
    columns: Any = SparkMQDataSource({"path": "/q"}).schema()
    return SparkMQDataSource({"path": "/q", **options}).streamReader(columns)


def test_the_driver_resolves_a_path_for_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have another home, and another working directory."""
    Queue.create(tmp_path / "q", durable=False).publish("a")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "q")
    for given in ("~/q", "q"):
        assert write(path=given).options.path == path
        for paths in (given, json.dumps([given])):
            assert [part.queue for part in read(path=paths).partitions()] == [path]


@pytest.mark.parametrize("path", ["$HOME/q", ""])
def test_a_path_that_nobody_means_is_refused(path: str) -> None:
    for make in (read, write):
        with pytest.raises(InvalidOption) as caught:
            make(path=path)
        assert caught.value.data["option"] == "path"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"consumergrup": "g"}, ["consumergrup", "did you mean 'consumerGroup'"]),
        ({"colour": "red"}, ["colour", "maxMessagesPerTrigger"]),
        # Spark gives an owner only to a table of its catalog, which it could not read.
        ({"Owner": "me"}, ["CREATE TABLE", "Use CREATE TEMPORARY VIEW orders USING spark_mq"]),
        ({"lanes": "64"}, ["option 'lanes'", "Queue.create(path, lanes=64)"]),
        ({"visibilityTimeout": "soon"}, ["visibilityTimeout='soon'", "'30s'"]),
        ({"visibilityTimeout": "1ms"}, ["visibilityTimeout='1ms' is too short: give 1s or more"]),
        ({"maxLeaseDuration": "1ms"}, ["maxLeaseDuration='1ms' is too short: give 1s or more"]),
        (
            {"visibilityTimeout": "2h", "maxLeaseDuration": "1h"},
            ["visibilityTimeout='2h'", "maxLeaseDuration='1h'"],
        ),
        ({"consumerGroup": ".."}, ["consumerGroup='..'", "a dot"]),
        ({"workerId": "w/1"}, ["workerId='w/1'", "letters"]),
        ({"maxMessagesPerTrigger": "0"}, ["maxMessagesPerTrigger='0'", "whole number from 1"]),
        ({"maxBytesPerTrigger": "lots"}, ["maxBytesPerTrigger='lots'", "'64m'"]),
        ({"ack": "on_succes"}, ["ack='on_succes'", "did you mean 'on_success'"]),
        ({"ack": "on_receive"}, ["ack='on_receive' needs foreachBatch", "give it to for_each_b"]),
        ({"startingPosition": "yesterday"}, ["startingPosition='yesterday'", "earliest"]),
        ({"path": '["s3://b/q", "S3A://b/q/"]'}, ["names s3://b/q twice"]),
        ({"path": "[]"}, ["path='[]' is not a list of paths"]),
        ({"path": "[1]"}, ["path='[1]' is not a list of paths"]),
        ({"path": '["a"'}, ["is not a list of paths"]),
        ({"createGroup": "no"}, ["createGroup='no'", "true, false"]),
        ({"outcomes": "true"}, ["name it by the option consumerGroup"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_refused_option_of_the_source_is_named_with_its_value(
    given: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InvalidOption) as caught:
        read(**given)
    for part in words:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "leased", "acked"),
    [
        ({}, 9, 9),
        ({"ack": "On_Success"}, 9, 9),
        ({"ack": "manual"}, 9, 0),
        ({"maxMessagesPerTrigger": "7"}, 7, 0),  # the next lease acks them
        ({"maxBytesPerTrigger": "6k"}, 4, 0),
        ({"maxBytesPerTrigger": "6m"}, 9, 9),
        ({"startingPosition": str((1 << 32) + 4)}, 5, 5),
    ],
)
def test_the_limits_the_ack_and_the_start_reach_the_stream(
    tmp_path: Path, options: dict[str, str], leased: int, acked: int
) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    queue.publish([os.urandom(1_100) for _ in range(9)])
    reader = stream(path=queue.path, **options)
    first = reader.initialOffset()
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    parts = reader.partitions(first, second)
    assert sum(piece.rows for part in parts for piece, _ in part.pieces) == leased
    reader.latestOffset(second, reader.getDefaultReadLimit())
    reader.stop()
    assert queue.group().stats().acked == acked


def test_a_batch_of_two_queues_has_each_lane_of_each_in_one_task(tmp_path: Path) -> None:
    queues = [Queue.create(tmp_path / name, lanes=8, order="key") for name in ("one", "two")]
    for queue, keys in zip(queues, ("abba", "acccc"), strict=True):
        queue.publish([Message("", key=key) for key in keys])
    reader = stream(path=json.dumps([queue.path for queue in queues]), minPartitions="4")
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    reader.stop()
    batches = [batch for part in parts for batch in reader.read(part)]
    assert sorted(batch["key"].to_pylist() for batch in batches) == [
        ["a"], ["a", "a"], ["b", "b"], ["c", "c", "c", "c"]
    ]  # fmt: skip
    assert all(part.keeps_lanes for part in parts)


def test_a_page_that_no_task_can_read_is_named_and_its_messages_are_dead_in_the_replay(
    tmp_path: Path,
) -> None:
    """Its footer is sound, so that the driver finds nothing wrong before."""
    queue = Queue.create(tmp_path / "q", durable=False)
    queue.publish("good")
    (bad,) = queue.publish("poor").sequences
    path = Path(messages_of(queue).path, messages_of(queue).index().file_at(bad).path)
    path.write_bytes(path.read_bytes().replace(b"poor", b"pOor"))

    def values(reader: Any) -> list[bytes]:
        batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        return [row["value"] for batch in batches for row in batch.to_pylist()]

    reader = stream(path=queue.path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(CorruptLog, match="cannot be read") as caught:
        values(reader)
    for part in (path.name, str(bad), "backup"):
        assert part in str(caught.value)
    assert values(stream(path=queue.path)) == [b"good"]
    assert queue.group().stats().dead == 1


def test_a_query_over_what_is_there_waits_for_the_limit_of_the_rate(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durable=False, rate_limit="100/s", rate_burst="100ms")
    queue.publish([str(n) for n in range(25)])
    reader, sizes = stream(path=queue.path), []
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        parts = reader.partitions(start, end)
        sizes.append(sum(piece.rows for part in parts for piece, _ in part.pieces))
        start = end
    assert sum(sizes) == 25
    assert max(sizes) <= 10
    assert queue.group().stats().acked == 25


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"producerId": "p"}, "producerId needs 'producerSequence' too"),
        ({"producerId": "p", "producerSequence": "-1"}, "producerSequence='-1' is not a number"),
        ({"producerId": "a b", "producerSequence": "1"}, "producerId='a b'"),
        ({"pth": "p"}, "did you mean 'path'"),
    ],
)
def test_a_refused_option_of_the_sink_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        write(**given)


def test_a_missing_group_is_refused_and_not_made(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durable=False)
    queue.group("billing").ensure()
    wrong = {"path": queue.path, "consumerGroup": "biling"}
    for call in (stream(**wrong, createGroup="false").initialOffset, read(**wrong).partitions):
        with pytest.raises(GroupNotFound, match=r"'biling'.*Did you mean 'billing'"):
            call()
    assert queue.groups() == ["billing"]
    stream(path=queue.path, consumerGroup="billing", createGroup="false").initialOffset()


def test_a_queue_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    makes = (stream(path=path).initialOffset, read(path=path).partitions, lambda: write(path=path))
    for call in makes:
        with pytest.raises(QueueNotFound, match=r"Queue\.create") as caught:
            call()
        assert path in str(caught.value)
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("sequense", "long", "no column 'sequense'"),
        ("value", "string", "'value' is binary, not string. Cast it"),
    ],
)
def test_a_schema_that_the_source_cannot_give_is_refused(
    name: str, kind: str, reported: str
) -> None:
    source, columns = SparkMQDataSource({"path": "/q"}), t.StructType().add(name, kind)
    reader: Any = source.streamReader(columns)
    for call in (lambda: source.reader(columns), reader.initialOffset):
        with pytest.raises(InvalidSchema, match=reported):
            call()


def test_a_stream_refuses_to_read_outcomes() -> None:
    with pytest.raises(InvalidOption, match=r"outcomes='true' is for spark\.read"):
        stream(consumerGroup="g", outcomes="true").initialOffset()


def test_overwriting_a_queue_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be overwritten. Use mode\('append'\)"):
        SparkMQDataSource({"path": "/q"}).writer(VALUES, True)


def test_a_stream_takes_no_number_of_its_user() -> None:
    given = {"path": "/q", "producerId": "p", "producerSequence": "1"}
    with pytest.raises(InvalidOption, match="A stream numbers its batches itself"):
        SparkMQDataSource(given).streamWriter(VALUES, False)


def test_the_columns_of_a_dataframe_are_checked_before_any_job(tmp_path: Path) -> None:
    path = Queue.create(tmp_path / "q", durable=False).path
    write(t.StructType().add("Value", "string").add("deliver_AT", "timestamp"), path=path)
    header = t.StructType().add("key", "string").add("value", "binary")  # as Kafka's source has it
    kafka = t.StructType().add("VALUE", "binary").add("Key", "binary")
    write(kafka.add("headers", t.ArrayType(header)), path=path)
    number = t.StructType().add("value", "long")
    with pytest.raises(InvalidSchema, match="bigint, not string or binary: cast it"):
        write(number, path=path)
    with_id = t.StructType().add("value", "string").add("dedup_id", "string")
    with pytest.raises(InvalidOption, match="no dedup_window"):
        write(with_id, path=path)


def test_a_write_without_rows_makes_no_file_and_a_null_value_is_refused(tmp_path: Path) -> None:
    writer = write(path=Queue.create(tmp_path / "q", durable=False).path)
    rows = pa.record_batch({"value": [b"good", None]})
    assert writer.write(iter([rows.slice(0, 0)])).files == ()
    with pytest.raises(InvalidSchema, match="1 values are null"):
        writer.write(iter([rows]))


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_files_of_a_repeated_write_are_logged_if_they_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_ids: bool
) -> None:
    queue = Queue.create(tmp_path / "queue", durable=False, dedup_window="1h")
    columns = {"value": [b"a"], **({"dedup_id": ["one"]} if with_ids else {})}
    for _ in range(2):
        caplog.clear()
        writer = write(path=queue.path, producerId="p", producerSequence="1")
        written = writer.write(iter(pa.table(columns).to_batches()))
        writer.commit([written])
    assert "is not published again" in caplog.text
    stays = [messages_of(queue).files.exists(file.path) for file in written.files]
    assert stays == [not with_ids]
    assert ("stay unpublished" in caplog.text) is stays[0]
