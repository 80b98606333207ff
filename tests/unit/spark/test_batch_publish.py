"""What the numbers of a batch do to a write, without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from support.tables import messages_of

from spark_mq import Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark.batch_publish import BatchPublisher, SinkProducer
from spark_mq.spark.options import WriteOptions
from spark_mq.spark.sink import QueueStreamWriter, commit_files, write_files
from spark_mq.storage.publishes import PendingPublish
from spark_mq.testing import FakeBatchLease, memory_queue

STREAM = "8a8b4c2e-0000-4000-8000-000000000000"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "queue", durable=False)


def write(queue: Queue, producer: SinkProducer) -> bool:
    log = messages_of(queue)
    return producer.commit(log, PendingPublish(log.files, [pa.table({"value": [b"a"]})]))


def producer(publisher: BatchPublisher, number: str = "1", stream: str = STREAM) -> SinkProducer:
    options = publisher.options(stream, number)
    found = SinkProducer.parse({name.lower(): value for name, value in options.items()})
    assert found is not None
    return found


def test_a_replay_is_skipped_and_a_second_write_of_a_run_is_an_error(queue: Queue) -> None:
    first, replay = BatchPublisher(), BatchPublisher()
    assert write(queue, producer(first))
    with pytest.raises(InvalidOption, match="producerPart"):
        write(queue, producer(first))
    assert not write(queue, producer(replay))
    assert write(queue, producer(replay, "2"))
    assert write(queue, producer(replay, stream=str(uuid.uuid4())))
    assert queue.group("look").ensure().stats().ready == 3


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_files_of_a_repeated_write_are_logged_if_they_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_ids: bool
) -> None:
    queue = Queue.create(tmp_path / "queue", durable=False, dedup_window="1h")
    options, log = WriteOptions(queue.path), messages_of(queue)
    columns = {"value": [b"a"], **({"dedup_id": ["one"]} if with_ids else {})}
    for _ in range(2):
        caplog.clear()
        written = write_files(options, iter(pa.table(columns).to_batches()))
        commit_files(options, [written], SinkProducer("p", 1))
    assert "is not published again" in caplog.text
    stays = [log.files.exists(file.path) for file in written.files]
    assert stays == [not with_ids]
    assert ("stay unpublished" in caplog.text) is stays[0]


def test_a_call_of_a_driver_that_failed_may_be_repeated(queue: Queue) -> None:
    publisher = BatchPublisher()
    with pytest.raises(InvalidOption):
        publisher.publish(queue, [object()], STREAM, "1", None)  # type: ignore[list-item]
    receipt = publisher.publish(queue, ["a"], STREAM, "1", None)
    assert not receipt.duplicate
    again = BatchPublisher().publish(queue, ["a"], STREAM, "1", None)
    assert (again.duplicate, again.sequences) == (True, receipt.sequences)


def test_a_stream_takes_no_number_of_its_user(queue: Queue) -> None:
    options = WriteOptions(queue.path, producer=SinkProducer("p", 1))
    with pytest.raises(InvalidOption, match="A stream numbers its batches itself"):
        QueueStreamWriter(options)


def test_a_fake_lease_publishes_each_part_once() -> None:
    source, target = memory_queue(), memory_queue()
    source.publish("a")
    lease = source.group().lease("w")
    assert lease is not None
    fake = FakeBatchLease(lease)
    assert set(fake.publish_options) == {"producerId", "producerSequence"}
    fake.publish(target, ["one"])
    fake.publish(target, ["two"], part="two")
    with pytest.raises(InvalidOption, match="Give part= a name"):
        fake.publish(target, ["three"])
    assert target.group("look").ensure().stats().ready == 2
